"""The ranks of a job agree on the step at which all of them open a window.

In comes what the leader's operator has asked for; out goes, on each rank that is asked, the step at
which it opens, or why it does not. One rank leads, rank 0; what is said goes through the job's own
key-value store, on a connection and a thread of dynprof's. Never touches a profiler, never waits on
a thread that trains, and takes part in no collective. Others use ``coordinator``, ``job_group``,
``terms`` (and what came of them), ``messages`` and ``wire``.
"""
