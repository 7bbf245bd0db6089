"""Jobs of several processes, begun by a launcher, and what their statuses say."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from dynprof.errors import CaptureError
from dynprof.journal.status import Status, load_status
from tests.integration.running import wait_for
from tests.processes import Process, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def statuses(folder: Path) -> dict[str, Status]:
    """Return what lies in the status directory, by file name."""
    found = {}
    for path in (folder / "prof_config/status").glob("*.json"):
        with contextlib.suppress(CaptureError):
            found[path.name] = load_status(path)
    return found


def when(folder: Path, what: str, wanted: Callable[[dict[str, Status]], bool]) -> dict[str, Status]:
    """Wait until the statuses of a folder are as wanted."""

    def found() -> dict[str, Status] | None:
        now = statuses(folder)
        return now if wanted(now) else None

    try:
        return wait_for(what, found)
    except AssertionError as error:
        raise AssertionError(f"{error}; there are {statuses(folder)}") from None


@contextlib.contextmanager
def launched(folder: Path, script: str, *launcher: str) -> Iterator[Process]:
    """Run a script through a launcher, and end the whole tree."""
    (folder / "job.py").write_text(script)
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    with start(
        [sys.executable, *launcher, "job.py"],
        cwd=folder,
        env={**clean, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    ) as process:
        yield process
