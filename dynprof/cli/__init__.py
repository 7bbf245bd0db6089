"""The command ``dynprof``; one file a command, imported by nobody else."""

from dynprof.cli.app import app

__all__ = ["app"]
