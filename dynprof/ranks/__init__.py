"""All ranks of a job open a window at the same step, by messages in the job's key-value store.

``messages`` defines the messages and ``agreement_rules`` the rules: which ranks, which profiler,
which step. ``leader`` and ``member`` apply them. ``record`` keeps the state of each window.
``store`` transports the messages, ``taking_part`` has the threads, and ``agreements`` handles
edits. Other rooms use ``agreements``, ``member`` and ``record``.
"""
