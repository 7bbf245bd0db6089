"""Whole analyses: of one trace, of every trace below a path, of the newest window.

Takes paths, local or of one of fsspec's file systems. Returns the files that were written and, for
each trace that failed, the reason. It computes nothing itself. Others use ``one_trace``,
``recorded_window``, ``many_traces``, ``executors``, ``remote_files``, ``window_difference``,
``window_report``, ``trend``, ``merge`` and ``query``.
"""
