"""Training scripts as real processes, whose config this process edits."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import gzip
import json
import os
import re
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dynprof.captures.manifest import Manifest, load_manifest
from dynprof.errors import CaptureError
from dynprof.journal.status import Status, load_status
from tests import warm_interpreter
from tests.pace import patience_s
from tests.processes import Process, start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Found = TypeVar("Found")
AT_START = ("PYTHON", "GLIBC_TUNABLES", "MALLOC_", "LD_")
"""Prefixes of variables that an interpreter reads at its start."""
PYTHON = (sys.executable, "-W", "error::RuntimeWarning")

LOOP = """
import time, dynprof as dp
dp.init("prof_config")
while True:
    time.sleep(0.01)
    dp.step()
"""
"""A job without torch that steps forever."""
DESCENT = """
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
class Descent:
    def zero_grad(self):
        for weight in model.parameters():
            weight.grad = None
    def step(self):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(weight.grad, alpha=-0.01)
optimizer = Descent()
"""
"""A small model, and an optimizer that is not torch's.

torch's optimizers load the compiler, which takes as long as torch itself.
"""
TORCH_JOB = (
    """
import sys, time, torch, dynprof as dp
torch.manual_seed(0)
torch.set_num_threads(1)
"""
    + DESCENT
    + """
def train_one_step():
    optimizer.zero_grad()
    loss = model(torch.randn(16, 32)).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""
)
"""The beginning of a script that trains that model."""
TORCH_JOB_WITH_OPTIMIZER = TORCH_JOB.replace(
    "Descent()", "torch.optim.SGD(model.parameters(), lr=0.01)"
)
"""The same with an optimizer of torch."""


def wait_for(what: str, found: Callable[[], Found | None]) -> Found:
    """Return the result of ``found`` as soon as it is not None."""
    limit_s, began_s = patience_s(), time.monotonic()
    while (waited_s := time.monotonic() - began_s) < limit_s:
        if (value := found()) is not None:
            return value
        time.sleep(min(0.01 + waited_s / 20, 0.05))  # a long wait leaves the CPU to the job
    raise AssertionError(f"waited {limit_s:.0f} s for {what}")


def below(folder: Path, pattern: str) -> list[Path]:
    """Return the paths of a name below a folder whose subfolders appear and disappear.

    ``Path.rglob`` raises if a folder disappears before it is read.
    """
    return [
        Path(place, name)
        for place, folders, names in os.walk(folder)
        for name in fnmatch.filter([*folders, *names], pattern)
    ]


@functools.cache
def _ask_the_self_test() -> None:
    """Store the self-test's answer for jobs; a job killed before its end would run it again."""
    from dynprof.backends.torch.detached_close_selftest import cached_verdict

    cached_verdict()


class RunningJob:
    """A training script in a process of its own.

    Args:
        folder: Its working directory; its config is in ``prof_config`` there.
        script: Its text.
        through: The start of its command line, for another program or its own interpreter. By
            default it is forked from an interpreter that has loaded what it needs.
        env: Environment variables to add.

    Attributes:
        unloads: As :func:`warm_interpreter.start` takes it.
    """

    unloads = False

    def __init__(
        self, folder: Path, script: str, through: Sequence[str] = PYTHON, **env: str
    ) -> None:
        self.root = folder / "prof_config"
        path = folder / "job.py"
        text = textwrap.dedent(script)
        if not path.exists() or path.read_text() != text:  # another rank may be reading it
            path.write_text(text)
        clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        for_its_start = any(name.startswith(AT_START) for name in env)
        imports_torch = re.search(r"^ *(import|from) .*\btorch\b", script, re.MULTILINE)
        needs = warm_interpreter.WITH_TORCH if imports_torch else warm_interpreter.WITHOUT_TORCH
        if through is PYTHON and not for_its_start:
            if imports_torch:
                _ask_the_self_test()
            self.process: Process = warm_interpreter.start(
                path, {**clean, **env}, PYTHON[-1], needs=needs, unloads=self.unloads
            )
        else:
            self.process = start([*through, str(path)], cwd=folder, env={**clean, **env})

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.end()

    @property
    def config(self) -> Path:
        """The config file."""
        return self.root / "profiler_config.json"

    def status(self, rank: int = 0) -> Status | None:
        """Return the status of this very process, if there is one."""
        with contextlib.suppress(CaptureError):
            status = load_status(self.root / "status" / f"rank_{rank}.json")
            return status if status.pid == self.process.pid else None
        return None

    def when(self, what: str, wanted: Callable[[Status], bool], rank: int = 0) -> Status:
        """Wait until the status meets a condition."""

        def found() -> Status | None:
            status = self.status(rank)
            if status is None and self.process.poll() is not None:
                raise AssertionError(f"the job ended: {self.process.communicate()}")
            return status if status and wanted(status) else None

        return wait_for(what, found)

    def edit(self, **settings: Any) -> None:
        """Save an edit of the config, in place."""
        config = json.loads(self.config.read_text())
        self.config.write_text(json.dumps({**config, **settings}, indent=4))

    def capture(self, number: int = 1) -> tuple[Manifest, dict[str, Any]]:
        """Wait for the manifest of a request; return it with the trace, {} if there is none."""
        path = wait_for(f"manifest {number}", lambda: self._manifest_path(number))
        manifest = load_manifest(path)
        return manifest, read_trace(path, manifest)

    def _manifest_path(self, number: int) -> Path | None:
        found = (path for path in below(self.root, "*.info.json") if self._is_saved(path, number))
        return next(found, None)

    def _is_saved(self, path: Path, number: int) -> bool:
        with contextlib.suppress(CaptureError):
            manifest = load_manifest(path)
            found = (manifest.request.number, manifest.pid, manifest.cost.save_ms is None)
            return found == (number, self.process.pid, False)
        return False

    def log(self, rank: int = 0) -> str:
        """Return the log of this very process."""
        paths = (self.root / "log").glob(f"*_{self.process.pid}_rank_{rank}.log")
        return "".join(path.read_text() for path in paths)

    def end(self) -> str:
        """Wait for the end; return the output."""
        output, errors = self.process.communicate()
        assert self.process.returncode == 0, f"code {self.process.returncode}: {errors}"
        return output


def read_trace(manifest_path: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the trace next to a manifest."""
    if manifest.trace is None:
        return {}
    with gzip.open(manifest_path.parent.parent / manifest.trace) as file:
        trace: dict[str, Any] = json.load(file)
    return trace


def steps_in(trace: dict[str, Any]) -> list[int]:
    """Return the step numbers that a trace shows, in order of time."""
    events = [
        event
        for event in trace["traceEvents"]
        if event["name"].startswith("ProfilerStep#") and event.get("ph") == "X"
    ]
    return [int(event["name"][13:]) for event in sorted(events, key=lambda event: event["ts"])]


def operators(trace: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the operator events of that name."""
    return [e for e in trace["traceEvents"] if e["name"] == name and e.get("cat") == "cpu_op"]
