"""A trace is packed with dynprof's events and metadata."""

from __future__ import annotations

import gzip
import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.captures.trace_packing import CHUNK, pack
from dynprof.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynprof.backends.collectors import Event


def packed(raw: bytes, events: Sequence[Event] = (), **first_members: Any) -> bytes:
    """Return a packed trace."""
    sink = io.BytesIO()
    pack(
        io.BytesIO(raw),
        sink,
        name="trace",
        first_members=first_members,
        on_chunk=lambda: None,
        events=events,
    )
    return sink.getvalue()


@pytest.mark.parametrize("isal", [True, False], ids=["isal", "gzip"])
def test_a_packed_trace_has_our_members_first(monkeypatch: pytest.MonkeyPatch, isal: bool) -> None:
    """The result is equal with isal and without it; Python's gzip reads both."""
    if not isal:
        monkeypatch.setitem(sys.modules, "isal", None)
    raw = b'{"traceEvents": [' + b"1," * CHUNK + b"2]}"
    read = json.loads(gzip.decompress(packed(raw, who={"rank": 3}, text='a "quote"')))
    assert list(read) == ["who", "text", "traceEvents"]
    assert read["text"] == 'a "quote"'
    assert len(read["traceEvents"]) == CHUNK + 1


def test_a_line_break_in_a_name_does_not_break_the_trace() -> None:
    """VizTracer writes function names unescaped."""
    read = json.loads(gzip.decompress(packed(b'{"traceEvents":[{"name":"one\n\ttwo"}]}', a=1)))
    assert read["traceEvents"] == [{"name": "one  two"}]


@pytest.mark.parametrize("head", [b"", b'"long": "' + b"x" * 2 * CHUNK + b'", '])
@pytest.mark.parametrize(("rest", "count"), [(b'{"ph": "X"}]}', 1), (b"\n]}", 0)])
def test_events_are_added_at_their_times(head: bytes, rest: bytes, count: int) -> None:
    """Added events come first, in us since the trace's base time, whatever is in the trace."""
    raw = b"{" + head + b'"baseTimeNanoseconds": 5000000, "traceEvents": [\n' + rest
    added = {"ph": "X", "name": "mine", "ts": 5_001_500, "dur": 250}
    read = json.loads(gzip.decompress(packed(raw, [added], a=1)))
    assert read["traceEvents"][0] == {"ph": "X", "name": "mine", "ts": 1.5, "dur": 0.25}
    assert len(read["traceEvents"]) == 1 + count


def test_a_base_time_of_ours_counts_too() -> None:
    """VizTracer's traces get their base time from dynprof's members."""
    raw = b'{"traceEvents": [{"ph": "X"}]}'
    added = {"ph": "i", "name": "mine", "ts": 9_000}
    read = json.loads(gzip.decompress(packed(raw, [added], baseTimeNanoseconds=1_000)))
    assert read["traceEvents"][0]["ts"] == 8.0


def test_a_trace_without_a_list_gets_no_events() -> None:
    """The problem is reported, and the trace stays whole."""
    with pytest.raises(BackendError, match="no list of events"):
        packed(b'{"events": 1}', [{"ph": "i", "ts": 1}], a=1)


def test_packing_is_reproducible() -> None:
    """The compressed file has no time of day."""
    assert packed(b'{"traceEvents": []}', b=2) == packed(b'{"traceEvents": []}', b=2)


@pytest.mark.parametrize("raw", [b"", b"[1]", b"torn"])
def test_output_that_is_not_an_object_is_not_packed(raw: bytes) -> None:
    """An empty output of a profiler is reported."""
    with pytest.raises(BackendError, match="did not write a JSON object"):
        packed(raw)
