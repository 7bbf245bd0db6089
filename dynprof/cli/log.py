"""``dynprof log``: print the logs of all ranks, merged by time."""

from __future__ import annotations

import contextlib
import heapq
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dynprof.cli.config_directory import Directory, directory_of
from dynprof.cli.history import SharedChanges
from dynprof.cli.numbers import at_least
from dynprof.cli.outcome import NOT_WATCHED, fail, say, say_skipped
from dynprof.journal.journal import LOG_BYTES, printable
from dynprof.runtime.layout import LOG_DIR
from dynprof.runtime.safe_open import open_inside

POLL_S = 0.2
"""Seconds between two reads of the logs with ``--follow``."""
READ_BYTES = 8 * LOG_BYTES
"""Bytes read from a log at a time; a log that dynprof writes is never this large."""
STYLES = {"WARNING": "yellow", "ERROR": "bold red"}
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (\w+)")


def log(
    directory: Directory,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", metavar="", help="Keep printing new records, until Ctrl-C."),
    ] = False,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines", "-n", parser=at_least(1), metavar="N", help="Print only the newest N."
        ),
    ] = None,
) -> None:
    """Print the maintenance logs of all ranks, merged by time.

    A change of the pace that several ranks have logged is printed once.

    Exit code 0: printed; 2: there is no such directory; 3: there is no log. ``--follow`` waits for
    one instead.

    Example: dynprof log prof_config --follow
    """
    directory = directory_of(directory)
    say_skipped(directory / LOG_DIR)
    paths = _paths(directory)
    if not paths:
        text = f"there is no log in {directory / LOG_DIR}; no job has called dp.init() yet"
        if not follow:
            fail(text, NOT_WATCHED)
        say(f"{text}; waiting for one", err=True)
    console = Console(highlight=False, soft_wrap=True)
    tails = {path: _Tail(path) for path in paths}
    older = [_Tail(path).records() for path in _rotated(directory)]
    shared = SharedChanges()
    records = shared.fold(heapq.merge(*older, *(tail.records() for tail in tails.values())))
    for record in records[-lines:] if lines else records:
        _print(console, record)
    if follow:
        _follow(directory, console, tails, shared)


def _paths(directory: Path) -> list[Path]:
    return sorted((directory / LOG_DIR).glob("dp_*.log"))


def _rotated(directory: Path) -> list[Path]:
    return sorted((directory / LOG_DIR).glob("dp_*.log.[0-9]*"), reverse=True)


class _Tail:
    """Reads the new records of a log, from where the last read ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._inode = 0

    def records(self) -> Iterator[str]:
        """Yield complete records, each with its continuation lines."""
        text = b""
        try:
            with open_inside(self._path, linked_folder=True) as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode or os.fstat(file.fileno()).st_size < self._at:
                    text = self._rest_of_rotated()  # a new file has this name
                    self._inode, self._at = inode, 0
                file.seek(self._at)
                fresh = file.read(READ_BYTES)
        except OSError:
            return
        self._at += fresh.rfind(b"\n") + 1
        text += fresh
        whole = text[: text.rfind(b"\n") + 1]
        record = ""
        for line in whole.decode("utf-8", "replace").splitlines():
            if _LINE.match(line) and record:
                yield record
                record = ""
            record += f"\n{line}" if record else line
        if record:
            yield record

    def _rest_of_rotated(self) -> bytes:
        """Return what was written after the last read and before the file was rotated."""
        rotated = Path(f"{self._path}.1")
        with contextlib.suppress(OSError), open_inside(rotated, linked_folder=True) as file:
            if os.fstat(file.fileno()).st_ino == self._inode:
                file.seek(self._at)
                return file.read(READ_BYTES)
        return b""


def _follow(
    directory: Path, console: Console, tails: dict[Path, _Tail], shared: SharedChanges
) -> None:
    try:
        while True:
            time.sleep(POLL_S)
            for path in _paths(directory):
                tails.setdefault(path, _Tail(path))
            for record in shared.fold(heapq.merge(*(t.records() for t in tails.values()))):
                _print(console, record)
    except KeyboardInterrupt:
        return


def _print(console: Console, record: str) -> None:
    level = _LINE.match(record)
    style = STYLES.get(level.group(1), "") if level else ""
    for line in record.split("\n"):
        console.print(Text(printable(line), style=style))
