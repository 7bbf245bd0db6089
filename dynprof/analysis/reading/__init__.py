"""From the bytes of a trace to columns of numbers.

In comes a file, compressed or torn; out goes a ``Trace``: every event in NumPy columns, in whole
nanoseconds. Knows no operators and no steps. Others use ``trace``, ``columns``, ``categories``,
``events``, ``json_lists``, ``chunks``, ``intervals``, ``inflate`` and ``two_processes``.
"""
