"""Events: which rank runs the command, how often, and what it gets."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.journal import event_command, events
from dynprof.journal.event_command import SUCCEEDED, command_of, split_command
from dynprof.journal.events import KINDS, MAX_WAITING, Event, Events, listen
from dynprof.runtime import fresh_interpreter
from dynprof.runtime.layout import Layout
from dynprof.runtime.side_process import SideProcess
from tests.processes import ROOT

if TYPE_CHECKING:
    from tests.fake_job import Job


class Notes:
    """The part of a journal that events need."""

    def __init__(self, rank: int = 0) -> None:
        self.layout = Layout(Path("/job"), rank, "host", 42)
        self.lines: list[str] = []
        self.warning = self.error = self.lines.append

    def set_status(self, **_: object) -> None:
        """Keep nothing."""


@dataclass
class Fake:
    """A process of the command, whose end the test decides."""

    asked: dict[str, Any]
    said: str | None = None

    def last_line(self) -> str | None:
        """Return what the test has set."""
        return self.said

    @property
    def texts(self) -> list[str]:
        """The texts of its events."""
        return [event["text"] for event in self.asked["events"]]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    """Start nothing; return the processes that would have started."""
    found: list[Fake] = []

    def begin(module: str, *, stdin_text: str) -> Fake:
        assert module == "dynprof.journal.event_command"
        found.append(Fake(json.loads(stdin_text)))
        return found[-1]

    monkeypatch.setattr(SideProcess, "begin", begin)
    return found


@pytest.fixture(autouse=True)
def _no_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the functions of a test at its end."""
    monkeypatch.setattr(events, "_listeners", [])


def events_of(notes: Notes) -> Events:
    """Return the events of a session with a command."""
    return Events(notes, ("/bin/notify", "team"))


def test_command_gets_the_event_and_the_jobs_environment(
    begun: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event names the job's directory, the rank and the process."""
    monkeypatch.setenv("WEBHOOK_TOKEN", "secret")
    found = events_of(Notes())
    found.report("stuck", "stuck: step 7", step=7)
    found.run_command()
    (one,) = begun
    assert one.asked["command"] == ["/bin/notify", "team"]
    assert one.asked["environment"] == dict(os.environ)
    (event,) = one.asked["events"]
    assert event.pop("at").endswith("+00:00")
    known = {name: value for name, value in event.items() if value is not None}
    assert known == {
        "event": "stuck", "text": "stuck: step 7", "directory": "/job", "role": "", "rank": 0,
        "host": "host", "pid": 42, "step": 7,
    }  # fmt: skip


def test_only_rank_0_runs_the_command_and_its_neighbour_for_it(begun: list[Fake]) -> None:
    """A thousand ranks that wait for each other notice the same event."""
    found = events_of(Notes(rank=7))
    found.report("stuck", "its own")
    found.report("stuck", "of rank 0, which is stopped", rank=0)
    found.run_command()
    assert [one.texts for one in begun] == [["of rank 0, which is stopped"]]


def test_command_runs_once_at_a_time_for_each_kind(begun: list[Fake]) -> None:
    """Events that arrive in the meantime wait; another kind does not wait for them."""
    found = events_of(Notes())
    found.report("captured", "a")
    found.run_command()
    for kind, text in (("captured", "b"), ("stuck", "c"), ("captured", "d")):
        found.report(kind, text)  # type: ignore[arg-type]
    found.run_command()
    assert [one.texts for one in begun] == [["a"], ["c"]]
    begun[0].said = SUCCEEDED
    found.run_command()
    assert [one.texts for one in begun] == [["a"], ["c"], ["b", "d"]]


def test_end_of_the_session_starts_the_command_for_what_waits(begun: list[Fake]) -> None:
    """The capture of the job's end is not lost behind a slow command."""
    found = events_of(Notes())
    found.report("captured", "a")
    found.run_command()
    found.report("captured", "b")
    found.run_command(is_last=True)
    assert [one.texts for one in begun] == [["a"], ["b"]]


def test_slow_command_drops_the_oldest_events_and_the_log_says_so_once(begun: list[Fake]) -> None:
    """The number of events that wait is bounded."""
    notes = Notes()
    found = events_of(notes)
    found.report("slow", "first")
    found.run_command()
    for number in range(MAX_WAITING + 3):
        found.report("slow", str(number))
    begun[0].said = SUCCEEDED
    found.run_command()
    assert begun[1].texts == [str(number) for number in range(3, MAX_WAITING + 3)]
    assert notes.lines == [
        f"{MAX_WAITING} events wait for the command of on_event, which is too slow; "
        "the oldest are dropped"
    ]


def test_failure_that_repeats_is_logged_once(begun: list[Fake]) -> None:
    """It is logged again after a success."""
    notes = Notes()
    found = events_of(notes)
    for said in ("notify exited with code 2", "notify exited with code 2", SUCCEEDED, "gone"):
        found.report("slow", "a")
        found.run_command()
        begun[-1].said = said
        found.run_command()
    assert notes.lines == [
        f"the command of on_event failed: {why}; to see its output, run it with an event on "
        "its standard input"
        for why in ("notify exited with code 2", "gone")
    ]


def test_functions_get_their_kinds_of_events_on_another_thread() -> None:
    """One that raises is logged, and the others get the event."""
    notes, got = Notes(rank=3), list[tuple[str, str]]()

    def fail(_: Event) -> None:
        raise LookupError("no such run")

    def keep(event: Event) -> None:
        got.append((event.event, threading.current_thread().name))

    listen(fail, "W&B", "captured")
    listen(keep, "MLflow", "captured", "analysed")
    found = events_of(notes)
    for kind in ("stuck", "captured", "analysed"):
        found.report(kind, "a")
    found.finish()
    assert got == [("captured", "dynprof-events"), ("analysed", "dynprof-events")]
    assert "passing a capture to W&B failed: LookupError: no such run" in notes.lines[0]


def test_end_of_the_session_does_not_wait_for_a_function_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log says which captures may be missing."""
    monkeypatch.setattr(events, "LISTENERS_S", 0.01)
    notes, hangs = Notes(), threading.Event()
    listen(lambda _: hangs.wait(), "MLflow", "captured")
    found = events_of(notes)
    found.report("captured", "a")
    found.finish()
    hangs.set()
    assert notes.lines == ["the last captures may be missing in MLflow: it took more than 0.01 s"]


def test_captures_and_failures_of_a_job_are_events(job: Job) -> None:
    """A capture has the paths of manifest and trace, and its steps."""
    got: list[Event] = []
    listen(got.append, "a test", "captured", "failed")
    job.edit(active=2)
    job.step(3)
    job.backend.fail_at.add("start")
    job.edit(active=2)
    job.step(3)
    job.session._journal.events.finish()
    captured, failed = got
    assert (captured.event, captured.request) == ("captured", 1)
    assert (captured.first_step, captured.last_step, captured.step) == (1, 2, 2)
    assert captured.capture
    assert captured.trace
    assert json.loads(Path(captured.capture).read_text())["trace"] == Path(captured.trace).name
    assert Path(captured.trace).is_file()
    assert captured.text.startswith("saved step_1-2_")
    assert (failed.event, failed.request, failed.directory) == ("failed", 2, str(job.root))


def test_page_has_the_fields_and_kinds_of_events() -> None:
    """A command can rely on them."""
    page = (ROOT / "docs" / "training-script.md").read_text()
    section = page.partition("## A command at events\n")[2].partition("\n## ")[0]
    first_cells = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    named = re.findall(r"`(\w+)`", " ".join(first_cells))
    fields = {field.name for field in dataclasses.fields(Event)}
    assert sorted(named) == sorted([*KINDS, *fields])


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("notify.sh key=secret", "on_event=str is not a list of words"),
        (["notify.sh", 7, "secret"], "on_event=list is not a list of words"),
        (["no-such-program", "secret"], "on_event: there is no program 'no-such-program'"),
    ],
)
def test_command_that_cannot_run_is_refused_without_its_arguments(asked: Any, why: str) -> None:
    """They may have keys, such as the address of a webhook."""
    with pytest.raises(ValueError, match=why) as caught:
        command_of(asked)
    assert "secret" not in str(caught.value)


def test_variable_has_the_syntax_of_a_shell_and_the_argument_takes_precedence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An empty list means no command."""
    monkeypatch.setenv("DYNPROF_ON_EVENT", "sh -c 'exit 3'")
    program, *arguments = command_of(None)
    assert Path(program).is_absolute()
    assert arguments == ["-c", "exit 3"]
    assert command_of([]) == ()
    with pytest.raises(ValueError, match="DYNPROF_ON_EVENT has no closing quotation"):
        split_command("DYNPROF_ON_EVENT", "sh 'secret")


def test_exit_code_of_the_command_is_named(tmp_path: Path) -> None:
    """A program that was removed is named too."""
    assert event_command._run(["/bin/sh", "-c", "exit 3"], {}, {}) == "sh exited with code 3"
    why = event_command._run([str(tmp_path / "notify")], {}, {})
    assert why == "notify cannot be run: No such file or directory"


def test_other_processes_of_dynprof_do_not_get_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments may have keys, such as the address of a webhook."""
    monkeypatch.setenv("DYNPROF_ON_EVENT", "sh https://hooks.example/KEY")
    assert "DYNPROF_ON_EVENT" not in fresh_interpreter.environment()
