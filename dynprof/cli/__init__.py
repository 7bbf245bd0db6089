"""The command ``dynprof``: one file per command, which ``app`` imports when the command runs.

It does what an operator could do: it changes the config file, and reads status files, logs and
captures. It never touches a session or a profiler. ``python -m dynprof`` runs its ``app``.
"""

from dynprof.cli.app import app

__all__ = ["app"]
