"""Events of real jobs, and their command."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.cli.run import environment
from dynprof.journal import event_command
from tests.integration.commands import dynprof
from tests.integration.launch.attached import attached
from tests.integration.launch.attached import begun as begun_alone
from tests.integration.launch.unprepared import LOOP, begun, ended, is_stepping
from tests.integration.running import RunningJob, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Process

COMMAND = ["sh", "-c", 'sed "s/$/ $0/" >> events', "team"]
"""Appends each event, and its own argument, to a file."""
JOB = f"""
import os, sys, time, dynprof as dp
from dynprof.session import periodic_checks

periodic_checks.stuck_after_s = lambda *_: 2.0
dp.init("prof_config", on_event={COMMAND!r})
while not os.path.exists("enough"):
    time.sleep(3 if os.path.exists("hang") else 0.01)
    dp.step()
"""


def event(folder: Path, kind: str, request: int | None = None) -> dict[str, Any]:
    """Wait for an event of a kind, and of a request, and return it."""

    def found() -> dict[str, Any] | None:
        path = folder / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        assert all(line.endswith("} team") for line in lines)
        got = [json.loads(line.removesuffix(" team")) for line in lines]
        return next((one for one in got if (one["event"], one["request"]) == (kind, request)), None)

    return wait_for(f"the event {kind}", found)


def test_command_of_a_real_job_gets_its_events(tmp_path: Path) -> None:
    """A capture, a stuck step, and the capture at the end of the job, after which it runs too."""
    with RunningJob(tmp_path, JOB) as job:
        job.when("the first steps", lambda status: status.step > 3)
        job.edit(active=2, warmup=0, analyse=True)
        manifest, _ = job.capture()
        captured = event(tmp_path, "captured", 1)
        assert (captured["first_step"], captured["last_step"]) == (
            manifest.steps.first, manifest.steps.last,
        )  # fmt: skip
        assert captured["directory"] == str(job.root)
        assert captured["pid"] == job.process.pid
        assert captured["capture"].startswith(f"{job.root}/step_")
        analysed = event(tmp_path, "analysed", 1)
        assert analysed["capture"] == captured["capture"]
        assert "step" in analysed["verdict"]
        (tmp_path / "hang").touch()
        assert "the training thread is in" in event(tmp_path, "stuck")["text"]
        (tmp_path / "hang").unlink()
        job.edit(active=100_000, analyse=False)
        job.when("the window", lambda status: status.state == "recording")
        (tmp_path / "enough").touch()
        job.end()
        assert event(tmp_path, "captured", 2)["step"] is not None
        assert "/sh runs at events about rank 0, as on_event requests\n" in job.log()
        assert "command of on_event" not in job.log()


def test_config_cannot_name_a_command(tmp_path: Path) -> None:
    """An edit that tries is refused with a message, and the command does not run."""
    with RunningJob(tmp_path, JOB.replace(f", on_event={COMMAND!r}", "")) as job:
        job.when("the first steps", lambda status: status.step > 3)
        job.edit(on_event=["touch", str(tmp_path / "events")])
        status = job.when("the refusal", lambda status: bool(status.problems))
        assert "on_event" in status.problems[0]
        job.edit(active=2, warmup=0)  # the key is still there
        job.when("the second refusal", lambda status: len(status.edits) == 2)
        assert not (tmp_path / "events").exists()


def test_words_of_an_event_are_not_run(tmp_path: Path) -> None:
    """Text that a job or a user makes up reaches the command as data, on its standard input."""
    made_up = "$(touch planted); touch planted #"
    said = {"event": "failed", "text": made_up}
    assert event_command._run(["/bin/sh", "-c", "cat > got"], said, os.environ) == ""
    assert json.loads((tmp_path / "got").read_text()) == said
    assert not (tmp_path / "planted").exists()


@pytest.fixture(autouse=True)
def _works_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write into the test's folder."""
    monkeypatch.chdir(tmp_path)


def test_command_that_does_not_end_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit holds for each event."""
    monkeypatch.setattr(event_command, "LIMIT_S", 0.2)
    text = "sleep 600 & echo $! > child; wait"
    monkeypatch.chdir(tmp_path)
    why = event_command._run(["/bin/sh", "-c", text], {}, os.environ)
    assert why == "sh was killed after 0.2 s"
    child = int((tmp_path / "child").read_text())
    wait_for("its end", lambda: not os.path.exists(f"/proc/{child}/exe") or None)  # noqa: PTH110


def is_captured(folder: Path, process: Process) -> dict[str, Any]:
    """Request a window; return the event."""
    code, _, errors = dynprof("arm", process.pid, "--active", 1, "--wait")
    assert code == 0, errors
    return event(folder, "captured", 1)


def test_run_takes_a_command_for_events(tmp_path: Path) -> None:
    """Its ranks find it in the environment, with the path of its program."""
    line = """sh -c 'sed "s/$/ $0/" >> events' team"""
    with begun(tmp_path, LOOP, "--step-on", ":work", "--on-event", line) as process:
        is_stepping(tmp_path)
        assert is_captured(tmp_path, process)["pid"] == process.pid
        assert ended(tmp_path, process) == ""
    given = environment({}, tmp_path, None, None, ["/bin/sh", "-c", "exit 3"])
    assert given[event_command.VARIABLE] == "/bin/sh -c 'exit 3'"


def test_run_refuses_a_program_that_is_missing(tmp_path: Path) -> None:
    """Nothing is started then."""
    with begun(tmp_path, LOOP, "--on-event", "no-such-program secret") as process:
        _, errors = process.communicate()
    assert process.returncode == 1
    assert "--on-event: there is no program 'no-such-program'" in errors
    assert "secret" not in errors
    assert not (tmp_path / "prof_config").exists()


def test_attach_takes_a_command_for_events(tmp_path: Path) -> None:
    """The process that is attached runs it."""
    line = """sh -c 'sed "s/$/ $0/" >> events' team"""
    with begun_alone(tmp_path, LOOP) as process:
        attached(process, "--step-on", ":work", "--on-event", line)
        assert is_captured(tmp_path, process)["pid"] == process.pid
