"""Marks with a stream are set on the recorded device, or a log line says that the host has them.

The fake device notes its calls. Another test draws the marks of real devices.
"""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dynprof.mstx as mstx
from dynprof.backends.collectors import marks
from dynprof.backends.collectors.marks import IN_CAPTURE, NO_DEVICE, Domains, StreamMarks
from dynprof.runtime.graph_captures import graph_capture

if TYPE_CHECKING:
    from collections.abc import Callable


class Stream:
    """The attributes of streams in torch and torch_npu."""

    stream_id = 3


STREAM = Stream()


class Noted:
    """A device with one stream."""

    def __init__(self) -> None:
        self.marks: list[str] = []
        self.captures = False
        self.error: Exception | None = None

    def stream(self, given: object) -> object | None:
        """Return the stream for its name or its handle."""
        return STREAM if given in (STREAM, 7777) else None

    def is_capturing(self, stream: object) -> bool:
        """Return what the test has set."""
        assert stream == STREAM
        return self.captures

    def mark(self, message: str, stream: object) -> None:
        """Note the mark."""
        assert stream == STREAM
        if self.error:
            raise self.error
        self.marks.append(message)


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "_warned", set())


def window(
    device: Noted | None, action: Callable[[], object], domains: Domains | None = None
) -> list[str]:
    """Mark while a window records; return the log lines."""
    marks = StreamMarks(device, Domains() if domains is None else domains)
    marks.start()
    try:
        action()
    finally:
        marks.stop()
    return list(marks.save(Path()))


def set_all_kinds(stream: object) -> None:
    """Set a moment and a range of each kind; another thread ends one of them."""
    mstx.mark("here", stream)
    number = mstx.range_start("crossing", stream)
    mstx.range_push("nested", stream)
    with mstx.annotate("block", stream):
        pass
    mstx.mstx_range("decorated", stream)(lambda: None)()
    mstx.range_pop()
    thread = threading.Thread(target=mstx.range_end, args=[number])
    thread.start()
    thread.join()


@pytest.mark.parametrize("stream", [STREAM, 7777], ids=["stream", "handle"])
def test_moments_and_both_ends_of_ranges_are_set_on_the_stream(stream: object) -> None:
    """A stream gets a moment once, and a range at both ends."""
    device = Noted()
    assert window(device, lambda: set_all_kinds(stream)) == []
    assert device.marks == [
        "here", "crossing (begin)", "nested (begin)", "block (begin)", "block (end)",
        "decorated (begin)", "decorated (end)", "nested (end)", "crossing (end)",
    ]  # fmt: skip
    mstx.mark("after the window", STREAM)
    assert len(device.marks) == 9


@pytest.mark.parametrize("stream", [None, 0])
def test_without_a_stream_only_the_host_is_marked(stream: object) -> None:
    """A mark without a stream is on the host alone, without a warning."""
    device = Noted()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert window(device, lambda: set_all_kinds(stream)) == []
        assert window(None, lambda: set_all_kinds(stream)) == []
    assert device.marks == []


def test_without_a_device_one_warning_is_given() -> None:
    """One warning says that marks with a stream are on the host alone."""
    found: list[list[str]] = []
    with pytest.warns(UserWarning, match="no window has recorded a CUDA device") as said:
        found.extend(window(None, lambda: set_all_kinds(STREAM)) for _ in range(2))
    assert found == [[NO_DEVICE], []]
    assert [str(one.message) for one in said] == [f"dynprof.mstx: {NO_DEVICE}"]
    assert "test_stream_marks.py" in said[0].filename


def test_an_open_range_on_the_host_gives_a_warning() -> None:
    """The start of a range warns: its end may come after the window."""
    with pytest.warns(UserWarning, match="no window has recorded a CUDA device"):
        assert window(None, lambda: mstx.range_start("open", STREAM)) == [NO_DEVICE]


def test_a_stream_of_another_device_gives_one_warning() -> None:
    """Streams may also not be comparable, orderable or hashable; the host has the marks."""

    class Odd(Stream):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise ValueError

    device = Noted()
    device.stream = lambda given: None  # type: ignore[method-assign] # noqa: ARG005
    words = "the stream is a Odd; give a torch.cuda.Stream or its handle"
    with pytest.warns(UserWarning, match=words) as said:
        texts = window(device, lambda: set_all_kinds(Odd()))
    assert len(said) == len(texts) == 1


def test_a_captured_graph_gets_no_marks() -> None:
    """No mark is set on a stream during a capture."""
    device = Noted()

    def capture() -> None:
        with graph_capture():
            set_all_kinds(STREAM)
        device.captures = True
        mstx.mark("captured by an extension", STREAM)
        device.captures = False
        mstx.mark("after it", STREAM)

    with pytest.warns(UserWarning, match="while a graph is being captured"):
        assert window(device, capture) == [IN_CAPTURE]
    assert device.marks == ["after it"]


def test_a_device_that_fails_is_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """The script gets one warning, and later marks do not ask the device again."""
    device = Noted()
    device.error = RuntimeError("CUDA error: an illegal memory access was encountered")

    def recover() -> None:
        mstx.mark("fails", STREAM)
        device.error = None
        mstx.mark("would not", STREAM)

    window(device, recover)
    assert "marking a stream failed: RuntimeError: CUDA error" in capfd.readouterr().err
    assert device.marks == []


def test_excluded_domains_are_not_marked_on_the_device() -> None:
    """The filter works as on the host."""
    device = Noted()

    def two() -> None:
        mstx.mark("a", STREAM, "one")
        mstx.mark("b", STREAM, "two")

    window(device, two, Domains(exclude=["one"]))
    assert device.marks == ["b"]


def test_warnings_that_are_errors_do_not_reach_the_script(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A window must not change the script's behaviour."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        window(None, lambda: mstx.mark("here", STREAM))
    text: Any = capfd.readouterr().err
    assert NO_DEVICE in text
