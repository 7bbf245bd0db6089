"""All ranks of a job open a window at the same step, by messages in the job's key-value store.

``messages`` defines the messages and ``agreement_rules`` the rules: which ranks, which profiler,
which step. ``leader`` and ``member`` apply them. ``record`` keeps the state of each window.
``store`` and ``job_group`` transport the messages, ``taking_part`` has the threads, and
``agreements`` handles edits. ``step_numbers`` serves processes whose first steps were not counted.
Other rooms use ``agreements``, ``member`` and ``step_numbers``.
"""
