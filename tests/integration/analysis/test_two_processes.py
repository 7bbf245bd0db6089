"""Two processes that share a large trace give the result of one; neither waits for a dead one."""

from __future__ import annotations

import errno
import subprocess
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from dynprof.analysis.runs import many_traces
from dynprof.analysis.runs.many_traces import analyse_each
from tests.integration.analysis.traces import recorded
from tests.integration.running import wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a trace that is treated as a large one."""
    monkeypatch.setattr(many_traces, "LARGE", 0)
    path = tmp_path / "a.pt.trace.json"
    recorded(path)
    return path


@pytest.mark.parametrize("types", [("text", "db"), ("db",)])
def test_two_processes_give_the_result_of_one(trace: Path, types: tuple[str, ...]) -> None:
    """The files have the same contents, also for the critical path, which one process computes."""
    found = []
    for processes in (1, 2):
        outcome = analyse_each([trace], types, processes=processes)
        assert not outcome.problems
        texts = (path for path in outcome.made if path.suffix in (".csv", ".json", ".html"))
        found.append(
            (
                sorted(path.name for path in outcome.made),
                {path.name: path.read_text() for path in texts},
                outcome.left_out,
            )
        )
    assert found[0] == found[1]
    text = {"critical_path.csv", "trace_view.json"} if "text" in types else set[str]()
    assert {"report.html", *text} <= set(found[0][1])


def test_a_killed_second_process_is_named(trace: Path) -> None:
    """If the system kills a process, as without memory, the error names trace and reason."""
    me = psutil.Process()
    before = me.children()

    def kill() -> None:
        wait_for("it to start", lambda: [c for c in me.children() if c not in before] or None)
        for child in me.children():
            if child not in before:
                child.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = analyse_each([trace], ["text"], processes=2)
    killer.join()
    assert outcome.problems == {trace: "the process that analysed it ended: with code -9"}


def test_a_second_process_that_cannot_start_is_named(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system allows no more processes, the error says so, and the first does not wait."""

    def none_left(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(subprocess, "Popen", none_left)
    outcome = analyse_each([trace], ["text"], processes=2)
    assert "no more processes" in outcome.problems[trace]
