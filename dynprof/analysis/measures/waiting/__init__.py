"""Why devices wait, how long their work stands in a queue, and when threads have nothing to do.

In come the gaps between what a device ran and what the host did meanwhile; out goes one cause for
each nanosecond, and the delay of each launch. Judges nothing: what is too long, ``findings`` say.
Others use ``gaps``, ``host_waits``, ``idle``, ``queue`` and ``cut_spans``.
"""
