"""Wrappers that other code puts over torch's functions during a window, and leaves there."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dynprof.marks.nvtx import NvtxMarks
from dynprof.marks.record_functions import RecordFunctions
from dynprof.marks.sinks import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Heard(Sink):
    """Keeps the marks that it receives."""

    def __init__(self) -> None:
        self.marks: list[str] = []

    def mark(self, message: str, domain: str, stream: object = None) -> None:  # noqa: ARG002
        """Keep a moment."""
        self.marks.append(message)


def over(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of a method without functools.wraps."""
    return lambda *given: method(*given)


def test_the_next_window_records_nvtx_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper of dynprof stays below another one; only the newest wrapper reports."""
    module = SimpleNamespace(_nvtx=SimpleNamespace(markA=lambda _: None))
    monkeypatch.setitem(sys.modules, "torch.cuda.nvtx", module)
    source, heard = NvtxMarks(), [Heard(), Heard()]
    for sink in heard:
        source.add(sink)
        module._nvtx.markA("a")
        module._nvtx = SimpleNamespace(markA=over(module._nvtx.markA))
        source.remove(sink)
    assert [sink.marks for sink in heard] == [["a"], ["a"]]


def test_the_next_window_records_record_function_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds for record_function."""

    class Annotation:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    class Listener:
        def __init__(self) -> None:
            self.heard: list[str] = []

        def on_enter(self, _: object) -> None:
            self.heard.append("entered")

        def on_exit(self, _: object) -> None:
            self.heard.append("leaves")

        def stays(self, _: object) -> None:
            self.heard.append("stays")

    kind: Any = Annotation
    module: Any = SimpleNamespace(record_function=kind)
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", module)
    functions, listeners = RecordFunctions(), [Listener(), Listener()]
    for listener in listeners:
        functions.add(listener)
        with Annotation():
            pass
        kind.__enter__, kind.__exit__ = over(kind.__enter__), over(kind.__exit__)
        functions.remove(listener)
    assert [one.heard for one in listeners] == [["entered", "leaves"]] * 2
