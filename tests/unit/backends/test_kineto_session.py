"""A profiler of the script's asks for the session, and waits for a window no longer than once."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from dynprof.backends import kineto
from dynprof.backends.kineto import KinetoSession


def test_a_window_that_did_not_give_way_is_not_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch prepares a profiler and then enables it: both ask; the window is asked each time."""
    monkeypatch.setattr(kineto, "GIVE_WAY_S", 0.05)
    session, asked = KinetoSession(), list[str]()
    session._open, session.give_way = True, lambda: asked.append("asked")
    session._closed.clear()
    session.make_room()
    assert session.lost
    asked.clear()
    monkeypatch.setattr(session._closed, "wait", lambda _: pytest.fail("it waited"))
    session.make_room()
    assert asked == ["asked"]
