"""The text that an attached process runs."""

from __future__ import annotations

import _thread
import threading

import pytest

from dynprof.attach import injected, inside


@pytest.mark.parametrize(("action", "may_fork"), [("attach", False), ("detach", True)])
def test_forks_wait_for_what_is_loaded_not_for_what_is_saved(
    monkeypatch: pytest.MonkeyPatch, action: str, may_fork: bool
) -> None:
    """The end of a session may take minutes, in which a loader's workers begin as ever."""
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

    monkeypatch.setattr(inside, "act", act)
    injected.answered({"action": action}, set(), no_forks)
    assert found == [may_fork]
