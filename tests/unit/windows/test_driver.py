"""The driver of a window, and its ways to end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from dynprof.config import ProfilerConfig
from dynprof.requests.plan import Plan
from dynprof.requests.request import Request
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.graph_captures import GRAPH_CAPTURES, graph_capture
from dynprof.runtime.layout import Layout
from dynprof.runtime.rank import Rank
from dynprof.testing import FakeBackend, FakeClock, FakeRecording
from dynprof.windows.driver import UNENDED, WindowDriver
from dynprof.windows.process_context import ProcessContext
from dynprof.windows.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.runtime.safe_write import PrivateFolder


@pytest.fixture
def backend() -> FakeBackend:
    """Return the backend of the driver."""
    return FakeBackend()


@pytest.fixture
def driver(backend: FakeBackend, tmp_path: Path) -> WindowDriver:
    """Return a driver whose window is not open yet."""
    process = ProcessContext(
        Layout(tmp_path, 0, "host", 42), Rank(0, 1, "test"), (backend,), clock=FakeClock()
    )
    plan = Plan(ProfilerConfig(), "fake", ("CPU",), None, ())
    request = Request(1, plan, 0.0, "", ())
    return WindowDriver(process, ErrorBoundary(StderrNotes()), request, Window(0, 9, 5), 5)


def no_folder() -> PrivateFolder:
    """Fail: a recording writes nothing."""
    raise AssertionError


def elsewhere(action: Callable[[], None]) -> None:
    """Run a function on another thread."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


@pytest.mark.parametrize("call", ["prepare", "start", "begin_step"])
def test_an_opening_that_fails_leaves_nothing_open(
    backend: FakeBackend, driver: WindowDriver, call: str
) -> None:
    """A failed opening raises its exception, and no recording runs."""
    backend.fail_at = {call}
    with pytest.raises(RuntimeError, match=call):
        driver.open(no_folder)
    assert backend.running == 0
    assert not UNENDED


def test_a_window_that_is_closed_is_discarded_until_it_is_released(
    backend: FakeBackend, driver: WindowDriver
) -> None:
    """A discard ends a closed recording that was not released, and no other."""
    driver.open(no_folder)
    (recording,) = backend.recordings
    assert driver.close() is recording
    driver.discard()
    driver.discard()
    assert recording.calls[-2:] == ["close", "discard"]


def test_a_window_that_is_closed_in_its_warm_up_is_discarded(
    backend: FakeBackend, driver: WindowDriver
) -> None:
    """Without a step to keep, a close drops the recording, once."""
    driver.window = Window(2, 9, 7)
    driver.open(no_folder)
    assert driver.close() is None
    driver.discard()
    assert backend.recordings[0].calls == ["prepare", "discard"]


def test_a_discarded_window_ends_where_it_may(backend: FakeBackend, driver: WindowDriver) -> None:
    """A recording that is bound to a thread ends on it, when nothing blocks it."""
    driver.open(no_folder)
    (recording,) = backend.recordings
    elsewhere(driver.discard)
    assert recording.running
    backend.in_the_way = "a CUDA graph is being captured"
    UNENDED.end_possible()
    assert recording.running
    backend.in_the_way = None
    elsewhere(UNENDED.end_possible)
    assert recording.running
    UNENDED.end_possible()
    assert recording.calls[-1] == "discard"
    assert not UNENDED


def test_a_discarded_window_of_a_thread_that_has_ended_is_abandoned(
    backend: FakeBackend, driver: WindowDriver
) -> None:
    """Another thread abandons a recording whose own thread has ended."""
    driver.thread = threading.Thread()  # it does not run
    driver.open(no_folder)
    driver.discard()
    (recording,) = backend.recordings
    assert recording.calls[-1] == "abandon"
    assert not UNENDED


def test_no_capture_begins_as_a_recording_ends(
    driver: WindowDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture that begins right after the check waits until the recording has been discarded."""
    captured_at_discard, wants, begun = list[str | None](), threading.Event(), threading.Event()
    discarded = threading.Event()

    def capture() -> None:
        wants.set()
        with graph_capture():
            begun.set()
            assert discarded.wait(60)

    thread = threading.Thread(target=capture)

    def blocked_by(_: FakeRecording) -> None:
        if not wants.is_set():
            thread.start()
            assert wants.wait(60)
            begun.wait(0.1)

    def discard(_: FakeRecording) -> None:
        captured_at_discard.append(GRAPH_CAPTURES.under_way())
        discarded.set()

    monkeypatch.setattr(FakeRecording, "blocked_by", blocked_by)
    monkeypatch.setattr(FakeRecording, "discard", discard)
    driver.open(no_folder)
    driver.discard()
    thread.join()
    assert captured_at_discard == [None]
    assert not UNENDED


def test_a_recording_waits_while_another_thread_opens_a_profiler(
    backend: FakeBackend, driver: WindowDriver
) -> None:
    """A discard waits neither for a capture nor for another profiler: a later check ends it."""
    driver.open(no_folder)
    backend.recordings[0].bound_to_thread = False
    with GRAPH_CAPTURES.block_captures():
        elsewhere(driver.discard)
        assert backend.running == 1
    UNENDED.end_possible()
    assert backend.running == 0


def test_a_recording_is_discarded_once(
    backend: FakeBackend, driver: WindowDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler that discards the window during its discard finds nothing to end."""
    discard = FakeRecording.discard

    def interrupted(recording: FakeRecording) -> None:
        discard(recording)
        driver.discard()
        UNENDED.end_possible()

    monkeypatch.setattr(FakeRecording, "discard", interrupted)
    driver.open(no_folder)
    driver.discard()
    assert backend.recordings[0].calls.count("discard") == 1
    assert not UNENDED
