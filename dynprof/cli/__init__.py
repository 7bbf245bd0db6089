"""The command ``dynprof``: one file per command or pair of commands.

``app`` imports it when the command runs. It does what an operator could do: it changes the config
file, and reads status files, logs and captures. It never touches a session or a profiler. Others
use ``app``, which ``python -m dynprof`` runs; :mod:`dynprof.cli.demo` has the demo.
"""
