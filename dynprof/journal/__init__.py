"""Reports for operators: log, status, step history, stacks of a hang and the outcome of each edit.

Input: messages of any thread, and the step counter. Output: files, written by a separate thread, so
that no disk blocks the training, and events for a command and for trackers. This package makes no
decisions. Other packages use ``journal`` (to report), ``status``, ``history``, ``pace_changes`` and
``log_reading`` (to read), ``edit_outcomes``, ``memory_growth``, ``stack_dump``, ``events`` and
``event_command``.
"""
