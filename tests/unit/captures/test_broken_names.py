"""Names that torch does not escape: the saved trace is valid JSON with the original names."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dynprof.captures import trace_packing
from dynprof.captures.broken_names import escape, has_odd_name
from dynprof.captures.trace_packing import Packed, pack
from tests.kineto_text import ON_LINES, TOGETHER, written
from tests.real_traces import on_each

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PARTS = ['"', '",', '"}', "{", "},", "    ", '"name": "', '"pid": 7, "tid": 7,', '"ts": 1', "},{"]
MAX_LABEL = 80
"""Characters of a label. With it an event is shorter than the small pieces, as real ones are."""
LABELS = st.lists(
    st.sampled_from(PARTS) | st.text(st.characters(codec="utf-8", exclude_characters="\\\n")),
).map(lambda parts: "".join(parts)[:MAX_LABEL])
"""Without backslashes, which Kineto replaces by slashes, and line breaks, which it removes."""


def packed(raw: bytes) -> tuple[Packed, Any]:
    """Return the packer's notes on a trace, and the trace as Python reads it."""
    sink = io.BytesIO()
    noticed = pack(
        io.BytesIO(raw), sink, name="t", first_members={"who": 1}, on_chunk=lambda: None,
        compress=False,
    )  # fmt: skip
    return noticed, json.loads(sink.getvalue())


def unescaped(labels: Sequence[str]) -> int:
    """Return how many labels JSON must escape."""
    return sum(json.dumps(label, ensure_ascii=False)[1:-1] != label for label in labels)


@pytest.mark.parametrize("chunk", [1 << 20, 700], ids=["one piece", "many pieces"])
@given(labels=st.lists(LABELS))
@example(labels=['merge {"layer": "model.0"}', '{"device": "cpu"}(12): run'])
@example(labels=['a", "cat": "b'])
@example(labels=['a"}, {"name": "b', 'a", "bp": "e', '"bp": "e"'])
@example(labels=['x",    "pid": 1', '"', '""', '",', '"name": "y", "pid": 7, "tid": 7,'])
def test_a_label_is_in_the_trace_as_the_script_gave_it(chunk: int, labels: list[str]) -> None:
    """A label may have any text, also one that looks like members of one or several events."""
    assert_kept(labels, ON_LINES, chunk)


@given(labels=st.lists(LABELS.filter(lambda label: not looks_like_members(label))))
@example(labels=['merge {"layer": "model.0"}', 'x", "pid": 1', '{"device": "cpu"}(12): run'])
def test_a_label_is_kept_if_torch_writes_several_members_on_a_line(labels: list[str]) -> None:
    """This is the older format. A label that itself looks like members of an event is cut."""
    assert_kept(labels, TOGETHER, 1 << 20)


def looks_like_members(label: str) -> bool:
    """Return whether a line is valid JSON with a label that should have been escaped."""
    with contextlib.suppress(ValueError):
        json.loads(f'{{"name": "{label}"}}', strict=True)
        return unescaped([label]) > 0
    return False


def assert_kept(labels: list[str], event: str, chunk: int) -> None:
    """Pack a trace with these labels, and compare."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_packing, "CHUNK", chunk)
        noticed, trace = packed(written(labels, event))
    events = [one for one in trace["traceEvents"] if one["ph"] == "X"]
    assert [one["name"] for one in events] == labels
    assert [one["ts"] for one in events] == list(range(len(labels)))
    assert all(one["args"]["External id"] == 1 for one in events)
    counted = len(trace["traceEvents"])
    assert noticed == Packed(counted, unescaped(labels), labels.count("unknown"))


@on_each
def test_names_that_are_escaped_stay_as_they_are(path: Path) -> None:
    """Traces of all versions of torch stay unchanged."""
    text = gzip.decompress(path.read_bytes())
    assert not has_odd_name(text)
    escaped, count = escape(text)
    assert count == 0
    assert json.loads(escaped) == json.loads(text)


def test_a_name_that_cannot_be_repaired_is_reported() -> None:
    """The position counts bytes of the packed trace, with dynprof's members first."""
    raw = written(["one", "two"]).replace(b'"Ev Idx": 0', b'"Ev Idx": ,', 1)
    sink = io.BytesIO()
    noticed = pack(
        io.BytesIO(raw), sink, name="t", first_members={"who": 1}, on_chunk=lambda: None,
        compress=False,
    )  # fmt: skip
    assert noticed.broken_at == sink.getvalue().index(b'"Ev Idx": ,') + len('"Ev Idx": ')
    with pytest.raises(json.JSONDecodeError) as error:
        json.loads(sink.getvalue())
    assert error.value.pos == noticed.broken_at
    assert next(noticed.faults()).startswith(
        f"its uncompressed trace is invalid JSON from byte {error.value.pos}"
    )


def test_names_that_torch_replaced_are_counted() -> None:
    """Torch writes ``unknown`` for all names with a byte that is not printable ASCII."""
    noticed, _ = packed(written(["unknown", "known", "unknown"]))
    assert noticed == Packed(events=4, nameless=2)
    assert next(noticed.remarks()).startswith('2 names in the trace read "unknown"; ')
