"""Reports for operators: the log, the status file, the step history and the outcome of each edit.

Input: messages of any thread, and the step counter. Output: three files, written by a separate
thread, so that no disk blocks the training. This package makes no decisions. Other packages use
``journal`` (to report), ``status``, ``status_file``, ``history`` and ``pace_changes`` (to read) and
``edit_outcomes``.
"""
