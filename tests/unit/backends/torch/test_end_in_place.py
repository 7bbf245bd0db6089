"""Before torch ends a recording itself, all other threads have left the memory that it frees."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from dynprof.backends.torch import collectors, torch_recording
from dynprof.backends.torch import torch_recording as module
from dynprof.backends.torch.detached_close import DetachedClose, DetachedState, _Returned
from dynprof.backends.torch.kineto import KINETO
from dynprof.backends.torch.open_annotations import UNFINISHED
from dynprof.backends.torch.torch_recording import TorchRecording

UNTRACED, LEFT, ENDED = "no thread calls it any more", "each has left it", "torch frees it"
OFF = "no operator finds it any more"


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the events in order."""
    happened: list[str] = []
    for place in module, torch_recording:
        monkeypatch.setattr(place, "stop_tracing_calls", lambda: happened.append(UNTRACED))
    for name in ("dynprof.backends.torch.detached_close", "dynprof.backends.torch.torch_recording"):
        monkeypatch.setattr(f"{name}.wait_for_threads_inside", lambda: happened.append(LEFT))
    monkeypatch.setattr("torch.autograd._profiler_enabled", lambda: True)
    return happened


def lost(functions: Any, order: list[str], *, with_stack: bool = True) -> TorchRecording:
    """Return a recording on this thread that has lost libkineto's session."""
    profiler = SimpleNamespace(
        with_stack=with_stack,
        profiler=Mock(),
        stop_trace=lambda: order.append(ENDED),
    )
    session = SimpleNamespace(lost=True, close=lambda _: None)
    collectors = cast("Any", None)
    recording = TorchRecording(profiler, cast("Any", session), None, functions, "", collectors)
    recording._state = "running"
    return recording


def test_a_discarded_window_waits_for_other_threads_inline(order: list[str]) -> None:
    """Torch frees the memory for other threads' calls at once."""
    lost(None, order).discard()
    assert order == [UNTRACED, LEFT, ENDED]


def test_a_recording_without_calls_does_not_wait(order: list[str]) -> None:
    """Only the thread's own operators write there."""
    lost(None, order, with_stack=False).discard()
    assert order == [ENDED]


class Functions:
    """The functions of libtorch that matter here."""

    def __init__(self, order: list[str]) -> None:
        self._order = order

    def detach(self) -> DetachedState:
        """Return the detached state."""
        return DetachedState(cast("Any", self), cast("Any", object()))

    def collect(self, _: object) -> None:
        """Free the state."""
        self._order.append(ENDED)


def test_a_discarded_window_waits_for_other_threads_detached(order: list[str]) -> None:
    """The collecting thread waits until the others have left."""
    lost(Functions(order), order).discard()
    KINETO.wait(30)
    assert order == [UNTRACED, LEFT, ENDED]


@pytest.mark.parametrize("closing", ["detached", "inline"])
def test_events_are_collected_after_all_threads_have_left(
    order: list[str], monkeypatch: pytest.MonkeyPatch, closing: str
) -> None:
    """A recording of all threads is removed from them, and they have left it, before collection."""
    functions: Any = DetachedClose.__new__(DetachedClose)
    functions._state_of_all = lambda: 1
    functions._remove_callback = lambda _: order.append(OFF)
    functions._pop, functions._push = lambda _: _Returned(1), lambda _: None
    functions._disable = lambda: order.append(ENDED)
    monkeypatch.setattr("dynprof.backends.torch.detached_close.wait_for_operators", lambda _: None)
    monkeypatch.setattr(module, "usable_functions", lambda: functions)
    if closing == "detached":
        functions.detach_all().collect()
    else:
        profiler = SimpleNamespace(stop_trace=lambda: order.append(ENDED))
        module.end_in_place(profiler, all_threads=True, traces_calls=False)
    assert order == [OFF, OFF, LEFT, ENDED]


def test_a_window_whose_thread_has_ended_waits_for_other_threads(order: list[str]) -> None:
    """Calls are traced on all threads, and the others are still alive."""
    recording = lost(Functions(order), order)
    recording._held = Functions(order).detach()
    recording.abandon()
    KINETO.wait(30)
    assert order == [UNTRACED, LEFT, ENDED]


def test_a_window_discarded_unread_limits_the_next_to_one_thread(
    order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the trace would tell, so the next windows record only their own thread."""
    monkeypatch.setattr(UNFINISHED, "assume_all_threads", lambda: order.append("supposed"))
    recording = lost(None, order)
    recording._unread = True  # all threads were recorded, and the events are unread
    recording.discard()
    assert order == [UNTRACED, LEFT, ENDED, "supposed"]


def test_a_file_of_operators_ends_once_each_thread_has_left_it(
    order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end waits, because torch closes the file at once, even under a writing thread."""
    monkeypatch.setattr(collectors, "wait_for_threads_inside", lambda: order.append(LEFT))
    arguments = collectors.OperatorArguments.__new__(collectors.OperatorArguments)
    arguments._ending, arguments._unwrap = threading.RLock(), lambda: None
    arguments._observer = Mock(is_registered=True)
    arguments._observer.unregister_callback = lambda: order.append(ENDED)
    arguments.end()
    assert order == [LEFT, ENDED]
