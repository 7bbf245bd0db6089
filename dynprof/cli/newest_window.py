"""Which window a command takes of a folder, and which newer ones it passes over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.cli.outcome import say, say_skipped

if TYPE_CHECKING:
    from pathlib import Path


def newest_window(path: Path) -> Path:
    """Return what to read of what a command was given; say which newer windows have no capture."""
    from dynprof.analysis.runs.newest import newest_window as newest

    path = path.resolve() if path.is_symlink() else path  # the user named it; others are skipped
    say_skipped(path)
    found, passed_over = newest(path)
    for words in passed_over:
        say(f"passed over: {words}", err=True)
    return found
