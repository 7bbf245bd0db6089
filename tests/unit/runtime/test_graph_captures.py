"""Graph captures and profilers exclude each other, on all threads."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.errors import BackendError
from dynprof.runtime import graph_captures
from dynprof.runtime.graph_captures import GRAPH_CAPTURES, GraphCaptures, graph_capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Graph:
    """A fake with the methods of torch's graphs; an unknown mode makes it fail."""

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> str:  # noqa: ARG002
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise ValueError(capture_error_mode)
        return capture_error_mode

    def capture_end(self) -> None:
        """End."""


@pytest.fixture
def graphs() -> tuple[GraphCaptures, type[Graph]]:
    """A class of graphs, and the object that tracks its captures."""
    captures, made = GraphCaptures(), type("Made", (Graph,), dict(vars(Graph)))
    captures.follow(made, "a graph")
    return captures, made


def elsewhere(action: Callable[[], object]) -> threading.Thread:
    """Run a function on another thread."""
    thread = threading.Thread(target=action, name="another", daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_capture_is_known_on_all_threads(
    graphs: tuple[GraphCaptures, type[Graph]], mode: str
) -> None:
    """All threads see a capture of any mode, from its start to its end."""
    captures, made = graphs
    graph = made()
    assert graph.capture_begin(capture_error_mode=mode) == mode
    told: list[object] = []
    elsewhere(lambda: told.extend((captures.under_way(), captures.on_this_thread()))).join()
    assert told == ["a graph is being captured on thread MainThread", None]
    assert captures.on_this_thread() == told[0]
    graph.capture_end()
    assert captures.under_way() is None


def test_several_captures_at_once(graphs: tuple[GraphCaptures, type[Graph]]) -> None:
    """A capture is in progress until the last has ended."""
    captures, made = graphs
    one, other = made(), made()
    one.capture_begin()
    other.capture_begin()
    one.capture_end()
    assert captures.under_way()
    other.capture_end()
    assert captures.under_way() is None


def test_a_capture_that_does_not_begin(graphs: tuple[GraphCaptures, type[Graph]]) -> None:
    """A failed begin does not count, and the script gets its own exception."""
    captures, made = graphs
    with pytest.raises(ValueError, match="none"):
        made().capture_begin(capture_error_mode="none")
    assert captures.under_way() is None


def test_a_graph_that_is_gone(graphs: tuple[GraphCaptures, type[Graph]]) -> None:
    """A deleted graph is no longer captured, and nothing keeps it."""
    captures, made = graphs
    made().capture_begin()
    gc.collect()
    assert captures.under_way() is None


def test_a_class_is_followed_once(graphs: tuple[GraphCaptures, type[Graph]]) -> None:
    """Repeated requests have no effect; subclasses of the script count as well."""
    captures, made = graphs
    before = made.capture_begin
    captures.follow(made, "a graph")
    assert made.capture_begin is before
    child = type("Child", (made,), {})()
    child.capture_begin()
    assert captures.under_way()
    child.capture_end()


def test_a_capture_waits_for_a_profiler_that_is_opened_or_closed(
    graphs: tuple[GraphCaptures, type[Graph]],
) -> None:
    """A capture does not begin while a profiler opens or closes."""
    captures, made = graphs
    order, graph = [], made()

    def capture() -> None:
        graph.capture_begin()
        order.append("captured")

    with captures.block_captures():
        thread = elsewhere(capture)
        thread.join(0.05)
        order.append("closed")
    thread.join()
    assert order == ["closed", "captured"]


def test_a_profiler_waits_for_the_capture_of_another_thread(
    graphs: tuple[GraphCaptures, type[Graph]],
) -> None:
    """A profiler does not open or close during another thread's capture."""
    captures, made = graphs
    order, begun, graph = [], threading.Event(), made()

    def capture() -> None:
        graph.capture_begin()
        begun.set()
        order.append("captured")
        graph.capture_end()

    thread = elsewhere(capture)
    assert begun.wait(60)
    with captures.block_captures():
        order.append("closed")
    thread.join()
    assert order == ["captured", "closed"]


def test_the_wait_for_a_capture_has_a_timeout(
    graphs: tuple[GraphCaptures, type[Graph]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends with an error at the timeout, or at once for the thread's own capture."""
    captures, made = graphs
    graph = made()
    elsewhere(graph.capture_begin).join()
    monkeypatch.setattr(graph_captures, "WAIT_S", 0.01)
    with pytest.raises(BackendError, match="captured on thread another"), captures.block_captures():
        pass
    graph.capture_end()
    monkeypatch.setattr(graph_captures, "WAIT_S", 600.0)
    graph.capture_begin()
    with (
        pytest.raises(BackendError, match="captured on thread MainThread"),
        captures.block_captures(),
    ):
        pass


def test_deferred_work_runs_after_the_capture(graphs: tuple[GraphCaptures, type[Graph]]) -> None:
    """Deferred work is done once, by its own thread, after its capture."""
    captures, made = graphs
    done: list[str] = []
    assert captures.defer(lambda: done.append("at once")) is None
    outer, inner, others = made(), made(), made()
    outer.capture_begin()
    inner.capture_begin()
    elsewhere(others.capture_begin).join()
    assert captures.defer(lambda: done.append("later"))
    inner.capture_end()
    elsewhere(others.capture_end).join()
    assert done == []
    outer.capture_end()
    outer.capture_end()
    assert done == ["later"]


@pytest.fixture
def _none_left() -> Iterator[None]:
    yield
    GRAPH_CAPTURES.reset()


@pytest.mark.usefixtures("_none_left")
def test_a_declared_capture() -> None:
    """A declared region is a capture until it ends, also by an exception."""

    def fail() -> None:
        with graph_capture():
            assert GRAPH_CAPTURES.on_this_thread()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert GRAPH_CAPTURES.under_way() is None


def test_a_declared_capture_that_is_entered_again() -> None:
    """On the same thread or on another one, it lasts until the last exit."""
    region, left = graph_capture(), threading.Event()

    def enter_and_leave() -> None:
        with region:
            pass
        left.set()

    with region:
        with region:
            pass
        assert GRAPH_CAPTURES.on_this_thread()
        elsewhere(enter_and_leave)
        assert left.wait(30)
        assert GRAPH_CAPTURES.on_this_thread()
    assert GRAPH_CAPTURES.under_way() is None


def test_the_end_of_the_process(
    graphs: tuple[GraphCaptures, type[Graph]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end waits for captures with a timeout; afterwards they do not count."""
    captures, made = graphs
    monkeypatch.setattr(graph_captures, "CAPTURES_WAIT_S", 0.01)
    graph = made()
    elsewhere(graph.capture_begin).join()
    captures.process_ends()
    assert captures.under_way() is None
    with captures.block_captures():
        graph.capture_end()
