"""``python -m dynprof``: the command."""

from dynprof.cli import app

app(prog_name="dynprof")
