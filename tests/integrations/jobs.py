"""Training jobs in the frameworks' own loops, and the steps in their captures."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynprof.captures.manifest import Manifest, load_manifest
from tests.integration.running import read_trace
from tests.processes import run

if TYPE_CHECKING:
    from pathlib import Path

BEGINNING = """
import json, sys, time, torch
from pathlib import Path

import dynprof as dp
import dynprof.integrations

torch.manual_seed(0)
torch.set_num_threads(1)

def wait(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, dp.status()
        time.sleep(0.01)

def ready():
    "Return whether the next step opens the window that is asked for."
    from dynprof.backends.torch.detached_close_selftest import SELF_TEST  # windows wait

    return dp.status().state == "waiting" and SELF_TEST.answer is not None

def ask(path="prof_config", **settings):
    "Save the config as an operator does, between two windows."
    wait(lambda: dp.status().state == "idle")
    config = Path(path, "profiler_config.json")
    asked = {"activities": ["CPU"], "active": 2, "warmup": 1, **settings}
    edited = config.with_suffix(".tmp")
    edited.write_text(json.dumps(asked))
    edited.replace(config)
    wait(ready)
"""


@dataclass(frozen=True)
class Window:
    """A capture of such a job.

    Attributes:
        manifest: dynprof's manifest of it.
        trace: Its events.
    """

    manifest: Manifest
    trace: dict[str, Any]

    @property
    def steps(self) -> tuple[int | None, int | None]:
        """The first and the last step, as the manifest has them."""
        return self.manifest.steps.first, self.manifest.steps.last

    def inside(self, kind: str) -> dict[int, Counter[str]]:
        """Return the ranges that begin in each step of the trace.

        Args:
            kind: The prefix of their names.
        """
        spans = [event for event in self.trace["traceEvents"] if event.get("ph") == "X"]
        steps = {
            int(event["name"].removeprefix("ProfilerStep#")): event
            for event in spans
            if event["name"].startswith("ProfilerStep#")
        }
        return {
            number: Counter(
                event["name"]
                for event in spans
                if event["name"].startswith(kind)
                and step["ts"] <= event["ts"] < step["ts"] + step["dur"]
                and event.get("cat") != "gpu_user_annotation"
            )
            for number, step in steps.items()
        }


def windows(folder: Path, script: str, *command: str, **env: str) -> list[Window]:
    """Run a script that must succeed; return its captures in the order of their requests.

    Args:
        folder: Its working directory.
        script: Its code after the part that all scripts share.
        command: The program that runs it instead of Python.
        env: Variables to add.
    """
    job = folder / "job.py"
    job.write_text(BEGINNING + textwrap.dedent(script))
    words = [*(command or (sys.executable,)), str(job)]
    done = run(words, cwd=folder, env={**os.environ, **env}, patience=2)
    assert done.returncode == 0, done.stderr
    paths = sorted(
        (folder / "prof_config").rglob("*.info.json"),
        key=lambda path: (load_manifest(path).request.number, path.name),
    )
    found = [(path, load_manifest(path)) for path in paths]
    return [Window(manifest, read_trace(path, manifest)) for path, manifest in found]


def log(folder: Path) -> str:
    """Return dynprof's log in a folder."""
    return "".join(path.read_text() for path in (folder / "prof_config" / "log").iterdir())


def noted(folder: Path, name: str = "noted.json") -> Any:
    """Return the script's own notes."""
    return json.loads((folder / name).read_text())
