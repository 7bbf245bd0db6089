"""A training job to which something happens, and whose losses must not notice."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynprof.files.layout import write_atomic
from tests.integration.running import PYTHON, TORCH_JOB, RunningJob, wait_for
from tests.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dynprof.journal.status import Status

MOST_STEPS = 30_000
LOOP = """
import json, os
BEFORE
counter = os.open("steps", os.O_WRONLY | os.O_CREAT)
dp.init("prof_config")
losses = []
while not os.path.exists("end"):
    losses.append(train_one_step().item())
    step = len(losses)
    os.pwrite(counter, b"%9d" % step, 0)
    EACH
    time.sleep(0.001)
    dp.step()
print("losses", json.dumps(losses))
"""
BARE = f"losses = [train_one_step().item() for _ in range({MOST_STEPS})]; print(losses)"


@functools.cache
def bare_losses() -> list[float]:
    """Return the losses of the same training without dynprof; workers of xdist share them."""
    shared = Path(os.environ["XDG_CACHE_HOME"], "bare_losses.json")
    if not shared.exists():
        write_atomic(shared, _train_bare())
    losses: list[float] = json.loads(shared.read_text())
    return losses


def _train_bare() -> str:
    script = TORCH_JOB.replace(", dynprof as dp", "") + BARE
    done = run([sys.executable, "-c", script])
    assert done.returncode == 0, done.stderr
    return done.stdout


class TroubledJob(RunningJob):
    """A job that trains until it is told to end.

    Args:
        folder: Where it works.
        before: Lines to run before ``init()``.
        each: Lines to run in every step.
        through: The beginning of its command line.
        env: Environment variables to add.
    """

    def __init__(
        self,
        folder: Path,
        before: str = "",
        each: str = "",
        through: Sequence[str] = PYTHON,
        **env: str,
    ) -> None:
        lines = each.strip("\n").replace("\n", "\n    ")
        script = TORCH_JOB + LOOP.replace("BEFORE", before).replace("EACH", lines)
        self._folder = folder
        super().__init__(folder, script, through, **env)

    def __enter__(self) -> TroubledJob:
        wait_for("the first line of the log", lambda: "watches" in self.log() or None)
        return self

    def still_trains(self) -> None:
        """Wait until it has taken some more steps."""
        now = self._steps()
        wait_for("more steps", lambda: self._steps() > now + 20 or None)

    def _steps(self) -> int:
        return int((self._folder / "steps").read_text() or 0)

    def ends_unharmed(self) -> None:
        """End it; every loss must be what it is without dynprof, to the last bit."""
        (self._folder / "end").touch()
        (line,) = [line for line in self.end().splitlines() if line.startswith("losses ")]
        losses = json.loads(line.removeprefix("losses "))
        assert 0 < len(losses) <= MOST_STEPS
        assert losses == bare_losses()[: len(losses)]

    def answer(self, number: int, outcome: str) -> Status:
        """Wait until a request has come to this end."""
        return self.when(
            f"request {number}: {outcome}",
            lambda status: any((a.number, a.outcome) == (number, outcome) for a in status.edits),
        )


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a memory disk on a folder; skip the test where this user may not."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=770", "tmpfs", str(folder)]
    if os.geteuid() or not shutil.which("mount") or run(mount).returncode:
        pytest.skip("this user cannot mount a file system")
    try:
        yield
    finally:
        run(["umount", "-l", str(folder)])


def without_privilege() -> tuple[str, ...]:
    """Return the beginning of a command line under which root too obeys permissions."""
    if os.geteuid():
        return PYTHON
    if not shutil.which("setpriv"):
        pytest.skip("root obeys no permissions, and setpriv is not there to change that")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search", *PYTHON)
