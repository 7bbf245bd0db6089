"""All ranks of a job open a window at the same step, by messages in the job's key-value store.

``messages`` defines the messages and ``agreement_rules`` the rules: which ranks, which profiler,
which step. ``leader`` and ``member`` apply them. ``job_windows`` keeps the state of each window.
``store`` transports the messages, ``participant`` has the threads, and ``agreements`` handles
edits. Other packages use ``agreements``, ``member`` and ``job_windows``.
"""
