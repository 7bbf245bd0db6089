"""Reports for operators: the maintenance log, the status file and the outcome of each edit.

Input: messages of any thread. Output: two files, written by a separate thread, so that no disk
blocks the training. This package makes no decisions. Other packages use ``journal`` (to report),
``status`` and ``status_file`` (to read) and ``edit_outcomes``.
"""
