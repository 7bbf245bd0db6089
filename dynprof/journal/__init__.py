"""What happened, for operators: the maintenance log, the status file, what became of each edit.

In comes what any thread has to tell; out go two files, written by one thread of its own, so that no
disk keeps the training waiting. Decides nothing. Others use ``journal`` (to tell), ``status`` and
``status_file`` (to read) and ``edit_outcomes``.
"""
