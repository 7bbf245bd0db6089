"""A profiler of the script requests the session, and waits for a window only once."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from dynprof.backends.torch import kineto
from dynprof.backends.torch.kineto import KinetoSession


def test_a_window_that_did_not_give_way_is_not_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch prepares a profiler, then enables it: both request the session, one waits."""
    monkeypatch.setattr(kineto, "GIVE_WAY_S", 0.05)
    session, asked = KinetoSession(), list[str]()
    session._open, session.close_for_other = True, lambda: asked.append("asked")
    session._closed.clear()
    session.end_open_window()
    assert session.lost
    asked.clear()
    monkeypatch.setattr(session._closed, "wait", lambda _: pytest.fail("it waited"))
    session.end_open_window()
    assert asked == ["asked"]


def test_a_window_waits_for_the_end_of_a_recording_that_lost_the_session() -> None:
    """Libkineto must not end what the other profiler has just prepared."""
    session, order = KinetoSession(), list[str]()
    collecting, may_end = threading.Event(), threading.Event()

    class DetachedState:
        def collect(self) -> None:
            order.append("the lost one is being ended")
            collecting.set()
            assert may_end.wait(30)
            order.append("it has ended")

        def drop(self) -> None: ...

    class Profile:
        def _prepare_trace(self) -> None:
            order.append("prepared")

    def window() -> None:
        session.prepare(cast("Any", Profile()), "window")
        session.stop(lambda: order.append("stopped"))

    session.free_later(cast("Any", DetachedState()), cast("Any", Profile()))
    assert collecting.wait(30)
    beside = threading.Thread(target=window)
    beside.start()
    while not session.has_window:
        assert beside.is_alive()
    may_end.set()
    beside.join(30)
    first = ["prepared", "the lost one is being ended", "it has ended"]
    assert order == [*first, "prepared", "stopped"]


def test_a_lost_recording_waits_for_the_end_of_a_window() -> None:
    """The recording does not touch libkineto until then, and is ended at once afterwards."""
    session, ended = KinetoSession(), threading.Event()

    class DetachedState:
        def collect(self) -> None:
            assert session.collecting
            assert not session.has_window

        def drop(self) -> None:
            ended.set()

    class Profile:
        def _prepare_trace(self) -> None: ...

    session.prepare(cast("Any", Profile()), "window")
    session.free_later(cast("Any", DetachedState()), cast("Any", Profile()))
    assert not session.collecting
    session.stop(lambda: None)
    assert ended.wait(30)
    session.wait(30)
    assert not session.collecting
