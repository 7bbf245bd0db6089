"""Begins a session in a process whose script does not know of dynprof.

In come a command line or the environment of an interpreter that starts; out goes a session of that
process, begun before its script. What is no rank of a job is left alone, and nothing that fails
here ends or changes what was started. Others use ``command_line``, ``pth_file``,
``variables``, ``watched_processes`` and ``which_process``; interpreters use ``startup``.
"""
