"""All ranks of a job open a window at the same step, by messages in the job's key-value store.

Read ``messages`` (what they say), ``agreement_rules`` (who, with what, when), ``leader`` and
``member`` (what each does), ``record`` (what is known of a window), ``store`` and ``job_group``
(how messages get there), ``taking_part`` (the threads), ``agreements`` (what becomes of an edit),
and ``attached_step_numbers`` (of a process that dynprof was attached to). Others use
``agreements``, ``member`` and ``attached_step_numbers``.
"""
