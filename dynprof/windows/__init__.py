"""The training thread's side: a window opens, moves from step to step, closes or is discarded.

Input: the inbox and the calls of ``step()``. Output: recordings for the exporter, and the cost of
each window. The package reads no config file and writes no trace. Other packages use ``loop``,
``driver`` and ``window`` (the engine), ``cost_account`` and ``process_context``.
"""
