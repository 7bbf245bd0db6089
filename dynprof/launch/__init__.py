"""Starts a session in a process whose script does not use dynprof, or that already runs.

The input is a command line, the environment of a starting interpreter, or the ID of a running
process. The output is a session in that process. Processes that are not ranks of a job are left
alone. A failure here never ends or changes the job. A process that does not answer in time is left
unchanged. Other packages use ``environment`` to start. They use ``processes``, ``attaching`` and
``stopped_thread`` to attach. Starting interpreters use ``startup``; the target process runs
``injected``.
"""
