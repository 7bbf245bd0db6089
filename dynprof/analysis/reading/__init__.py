"""Reads the bytes of a trace into columns of numbers.

Takes a file, also a compressed, truncated or damaged one. Returns a ``Trace``: every event in NumPy
columns, in whole nanoseconds. It knows no operators and no steps. Others use ``trace``,
``columns``, ``events``, ``chunks`` and ``spans``.
"""
