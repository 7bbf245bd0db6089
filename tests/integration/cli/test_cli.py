"""The command line, as an operator uses it."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import Cost
from dynprof.cli.demo.command import lost_time
from dynprof.config import template_text
from dynprof.journal.journal import Journal
from dynprof.journal.status import Status
from dynprof.requests.capabilities import Capabilities
from dynprof.runtime.layout import Layout
from tests.processes import DYNPROF, run

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def dynprof(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return run([*DYNPROF, *arguments])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a valid config."""
    path = tmp_path / "profiler_config.json"
    path.write_text(template_text(("CPU",)))
    return path


def test_a_valid_config(config: Path) -> None:
    """The template is valid; the directory is accepted in place of the file."""
    for argument in (config, config.parent):
        done = dynprof("validate", str(argument))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [
            f"{config}: valid; requests 1 step from the next step, ranks all",
            f"no process watches {config.parent}; no job has called dp.init() on it yet",
        ]


def test_a_status_that_cannot_be_read_is_named(config: Path) -> None:
    """The command does not say that no job has begun."""
    file = config.parent / "status" / "rank_0.json"
    file.parent.mkdir()
    file.write_text("[]")
    done = dynprof("status", str(config.parent))
    unknown = f"it is not known which processes watch {config.parent}"
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == f"{unknown}: status file {file} cannot be read"


def test_a_config_is_no_trace(config: Path) -> None:
    """A list is the content of some traces."""
    config.write_text("[]")
    done = dynprof("report", str(config.parent))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{config.parent} holds no trace" in done.stderr


def test_an_invalid_config(config: Path) -> None:
    """Each problem has a line with file, place and message; the exit code is 1."""
    config.write_text('{\n  "activties": ["CPU"],\n  "active": 0\n}')
    done = dynprof("validate", str(config))
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f'{config}: line 2, column 3, /activties: there is no setting "activties"; '
        'did you mean "activities"?',
        f"{config}: line 3, column 3, /active: 0 is not allowed; "
        "write a whole number of at least 1.",
        f"{config}: 2 problems; a running job would ignore this file",
    ]


def test_a_config_that_the_job_would_refuse(config: Path) -> None:
    """With a live job the command reports the job's refusal, with its step and machine."""
    status = Status(
        "idle", step=500, profilers=(Capabilities("torch", ("CPU",)),), heartbeat=4e9, host="node7"
    )
    journal = Journal(Layout(config.parent, 0, "node7", 1), lambda: status, lambda: None)
    journal.start()
    journal.stop()
    config.write_text('{"activities": ["CPU", "CUDA"],\n "start_step": 400}')
    done = dynprof("validate", str(config))
    assert done.returncode == 1
    assert "line 2, column 2, /start_step: step 400 has begun already" in done.stdout
    assert "(rank 0 on node7)" in done.stdout
    config.write_text('{"ranks": "7"}')
    done = dynprof("validate", str(config))
    said = "no running rank matches its ranks (running: rank 0)"
    assert (done.returncode, said in done.stdout) == (0, True)
    config.write_text('{"activities": ["CPU", "CUDA"]}')
    done = dynprof("validate", str(config))
    assert (done.returncode, "matches its ranks" in done.stdout) == (0, False)
    assert "CUDA is left out: backend torch on this machine has CPU only." in done.stdout


def test_validate_without_a_file_exits_with_2(tmp_path: Path) -> None:
    """The exit code for a missing file is 2."""
    done = dynprof("validate", str(tmp_path / "nothing.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no such file" in done.stderr


def test_the_demo_shows_what_was_recorded(tmp_path: Path) -> None:
    """The demo runs a job, edits its config from outside and shows what was recorded."""
    pytest.importorskip("torch", reason="torch is not installed")
    done = dynprof("demo", "--backend", "torch", "--dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    words = ["The job trains", "was edited and saved", "were recorded", "five longest operators"]
    words.append("training time lost until the trace was on disk: ")
    assert all(word in done.stdout for word in words)
    assert "x  aten::" in done.stdout
    (manifest,) = tmp_path.glob("prof_config/step_*/info/rank_0.info.json")
    assert json.loads(manifest.read_text())["complete"]


def test_demo_names_an_unusable_directory(tmp_path: Path) -> None:
    """A file in place of its directory is named, without a traceback."""
    (tmp_path / "file").touch()
    done = dynprof("demo", "--backend", "python", "--dir", str(tmp_path / "file"))
    assert done.returncode == 1
    assert f"The demo failed: {tmp_path}/file: not a directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("extra_ms", "said"),
    [(-3.1, "too little to tell"), (1.9, "too little to tell"), (150.2, "150.20 ms")],
)
def test_the_demo_prints_no_cost_below_the_variation(extra_ms: float, said: str) -> None:
    """If the variation of steps hides the cost, the demo says so, not 0.00 ms."""
    cost = Cost(open_ms=2, close_ms=0.5, extra_ms=extra_ms)
    assert lost_time(cost).startswith(said)


def test_version() -> None:
    """The command prints the version."""
    from dynprof import __version__

    assert dynprof("--version").stdout == f"dynprof {__version__}\n"


def test_validate_prints_both_meanings_of_a_remaining_cancel(config: Path) -> None:
    """The meaning depends on the previous save, which is unknown: validate prints both."""
    config.write_text('{"cancel": true, "active": 2}')
    done = dynprof("validate", str(config))
    assert done.stdout.splitlines()[:2] == [
        f"{config}: valid; cancels the open or waiting window",
        f'{config}: if the save before it had "cancel": true as well, and another setting has '
        "changed since, it cancels nothing but requests 2 steps from the next step, ranks all",
    ]


INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == interrupted:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever starts the tests may ignore it
_, interrupted, *sys.argv[1:] = sys.argv
sys.meta_path.insert(0, Finder())
from dynprof.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["dynprof.cli", "pydantic"])
def test_an_interrupt_while_the_command_is_loaded(module: str) -> None:
    """Ctrl-C ends the command without output and without a traceback."""
    done = run([sys.executable, "-c", INTERRUPTED, module, "arm", "prof_config"])
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
