"""Whole analyses: of one trace, of every trace below a path, of the newest window.

In come paths, local or behind a file system of fsspec's; out go the files that were made and, for
each trace that failed, the reason. Computes nothing itself. Others use ``one_trace``, ``newest``,
``many_traces``, ``executors``, ``remote_files``, ``window_difference``, ``window_report`` and
``merge``.
"""
