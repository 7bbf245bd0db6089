"""The command ``dynprof``; one file a command, which ``app`` imports when the command runs.

Acts as a person would: it changes the config file, and reads status files, logs and captures. Never
touches a session or a profiler. ``python -m dynprof`` runs its ``app``.
"""

from dynprof.cli.app import app

__all__ = ["app"]
