"""Reports for operators: the maintenance log, the status file, stacks and the outcome of each edit.

Input: messages of any thread. Output: log and status, written by a separate thread, so that no disk
blocks the training; and the stacks of a rank that stands still. This package makes no decisions.
Other packages use ``journal`` (to report), ``status`` and ``status_file`` (to read),
``edit_outcomes``, ``memory_growth`` and ``stack_dump``.
"""
