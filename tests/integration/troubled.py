"""A training job under adverse events, whose losses must not change."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynprof.runtime.safe_write import write_atomic
from tests import warm_interpreter
from tests.integration.running import PYTHON, TORCH_JOB, RunningJob, wait_for
from tests.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dynprof.journal.status import Status

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
    time.sleep(0.002)
    dp.step()
print("losses", json.dumps(losses))
"""
BARE = "print([train_one_step().item() for _ in range({steps})])"
AT_LEAST = 3_000


def bare_losses(steps: int) -> list[float]:
    """Return the first losses of the same training without dynprof; xdist's workers share them."""
    shared = Path(os.environ["XDG_CACHE_HOME"], "bare_losses.json")
    losses: list[float] = json.loads(shared.read_text()) if shared.exists() else []
    if len(losses) < steps:
        script = TORCH_JOB.replace(", dynprof as dp", "")
        script += BARE.format(steps=max(AT_LEAST, 2 * steps))
        done = warm_interpreter.run(script, shared.parent, os.environ)
        assert done.returncode == 0, done.stderr
        write_atomic(shared, done.stdout)
        losses = json.loads(done.stdout)
    return losses[:steps]


class TroubledJob(RunningJob):
    """A job that trains until the test ends it.

    Args:
        folder: Its working directory.
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
        """End it; every loss must be bit-identical to that without dynprof."""
        (self._folder / "end").touch()
        (line,) = [line for line in self.end().splitlines() if line.startswith("losses ")]
        losses = json.loads(line.removeprefix("losses "))
        assert losses
        assert losses == bare_losses(len(losses))

    def answer(self, number: int, outcome: str) -> Status:
        """Wait until a request has this result."""
        return self.when(
            f"request {number}: {outcome}",
            lambda status: any((a.number, a.outcome) == (number, outcome) for a in status.edits),
        )


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a memory disk on a folder; skip the test if this user may not."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=770", "tmpfs", str(folder)]
    if os.geteuid() or not shutil.which("mount") or run(mount).returncode:
        pytest.skip("this user cannot mount a file system")
    try:
        yield
    finally:
        run(["umount", "-l", str(folder)])


@contextlib.contextmanager
def mounted_over(source: Path, place: Path) -> Iterator[None]:
    """Mount a file over another, as containers do; skip the test if that is denied."""
    bind = ["mount", "--bind", str(source), str(place)]
    if os.geteuid() or not shutil.which("mount") or run(bind).returncode:
        pytest.skip("this user cannot mount a file")
    try:
        yield
    finally:
        run(["umount", "-l", str(place)])


WITHOUT_PRIVILEGE = """
import ctypes
version_3, this_thread, none = 0x20080522, 0, (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(version_3, this_thread), none) == 0
"""
"""Removes root's privileges over permissions, on this thread and its new threads."""
