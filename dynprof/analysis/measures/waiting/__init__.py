"""Why devices wait, how long their work is queued, and when threads have nothing to do.

Input: the gaps of a device, and what the host did during them. Output: one cause for each
nanosecond, and the delay of each launch. It judges nothing: ``findings`` says what is too long.
Other folders use ``gaps``, ``host_waits`` and ``queue``.
"""
