"""The code that an attached process runs."""

from __future__ import annotations

import _thread
import os
import threading
from typing import TYPE_CHECKING

import pytest

from dynprof.errors import LaunchError
from dynprof.launch import attaching, in_target, injected
from dynprof.launch.attaching import Target

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("action", "may_fork"), [("attach", False), ("detach", True)])
def test_forks_wait_for_imports_but_not_for_saves(
    monkeypatch: pytest.MonkeyPatch, action: str, may_fork: bool
) -> None:
    """The end of a session may take minutes; loader workers can start during that time."""
    no_forks, found = _thread.RLock(), []

    def another_thread() -> None:
        if got := no_forks.acquire(blocking=False):
            no_forks.release()
        found.append(got)

    def act(_: object) -> dict[str, object]:
        forks = threading.Thread(target=another_thread)
        forks.start()
        forks.join()
        return {}

    monkeypatch.setattr(in_target, "act", act)
    injected.perform({"action": action}, set(), no_forks)
    assert found == [may_fork]


def test_an_answer_after_the_timeout_is_dropped(tmp_path: Path) -> None:
    """The answer's folder is gone; nothing is printed on the job's stderr."""
    injected.write_answer(str(tmp_path / "gone"), 0.0, {"begun": "x"})


def test_a_process_that_does_not_answer_times_out(tmp_path: Path) -> None:
    """A call that holds the GIL may block it forever."""
    (tmp_path / "taken").touch()
    with (
        Target(os.getpid()) as target,
        pytest.raises(LaunchError, match="was reached, but has not"),
    ):
        attaching._await_answer(os.getpid(), tmp_path, attaching._Injection(target), 0.02, "attach")
