"""What costs a step time that it need not cost, and what to try about it.

In comes a measured trace; out come findings, the worst first, each with the share of a step that
it takes. Counts nothing anew and writes nothing. Others use ``ranking`` and ``finding``.
"""
