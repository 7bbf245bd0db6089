"""Begins a session in a process whose script does not know of dynprof, or that already runs.

In come a command line, the environment of an interpreter that starts, or the id of a running
process; out goes a session of that process. What is no rank of a job is left alone. Nothing that
fails here ends or changes what was started, and a process that does not answer in time is left as
it was. Others use ``command_line``, ``pth_file``, ``variables`` and ``watched_processes`` to
start, ``attaching``, ``candidates`` and ``stopped_thread`` to attach; interpreters that start use
``startup``, and the process reached uses ``injected``.
"""
