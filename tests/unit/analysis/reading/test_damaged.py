"""Traces with damaged bytes: one costs at most the event that it is in."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.reading import chunks
from dynprof.analysis.reading.trace import Trace, load_trace
from dynprof.analysis.runs.merge import merge
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from pathlib import Path

MEMBERS_AFTER: dict[str, Any] = {
    "traceName": "x", "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}],
}  # fmt: skip
STYLES: list[dict[str, Any]] = [{"indent": 2}, {}, {"separators": (",", ":")}]
PUT = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\0", b"\xff", b"", b'"q"', b"\\U", b"\n"]
"""What damage puts in place of a byte."""


def event(number: int) -> dict[str, Any]:
    """Return an event with a name of its own."""
    args = {"External id": number, "Input Dims": [[number, 2], []], "Concrete Inputs": ["", "a"]}
    return {
        "ph": "X", "cat": "cpu_op", "name": f"op {number}", "pid": 1, "tid": 2, "ts": number * 10,
        "dur": 5, "args": args,
    }  # fmt: skip


def names(trace: Trace) -> list[str]:
    """Return the names of the spans, in order."""
    return [trace.name(place) for place in range(len(trace.spans["start"]))]


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_byte_costs_at_most_its_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Wherever it is in an event, and whatever is in its place; all other events are read."""
    path = tmp_path / "a.trace.json"
    rng = random.Random(seed)  # noqa: S311 - nothing is secret here
    given = [event(number) for number in range(rng.randint(3, 40))]
    for _ in range(25):
        monkeypatch.setattr(chunks, "CHUNK", rng.choice([300, 5000, 4 << 20]))
        monkeypatch.setattr(chunks, "_TAIL", rng.choice([100, 400, 1 << 16]))
        monkeypatch.setattr(chunks, "UNDECIDED", rng.choice([0, 2000, 4 << 20]))
        style, number = rng.choice(STYLES), rng.randrange(len(given))
        texts = [json.dumps(one, **style).encode() for one in given]
        at, put = rng.randrange(1, len(texts[number]) - 1), rng.choice(PUT)
        texts[number] = texts[number][:at] + put + texts[number][at + 1 :]
        after = json.dumps(MEMBERS_AFTER, **style).encode()[1:]
        head = b'{"baseTimeNanoseconds": 5, "traceEvents": ['
        whole = head + b", ".join(texts) + b"], " + after
        path.write_bytes(whole)
        trace = load_trace(path)
        kept = [one["name"] for place, one in enumerate(given) if place != number]
        assert [name for name in names(trace) if name in kept] == kept
        assert len(names(trace)) <= len(given)
        assert (trace.truncated, trace.complete) == ("", True)
        assert {**trace.members, **MEMBERS_AFTER} == trace.members
        try:
            json.loads(whole.decode("latin-1"), strict=False)
        except json.JSONDecodeError as error:
            assert {trace.lost, trace.repaired} == {(0, 0), (1, error.pos)}


def test_the_damaged_place_is_named(tmp_path: Path) -> None:
    """The remark has number and byte; it does not say that the file ends too early."""
    text = json.dumps({"traceEvents": [event(number) for number in range(40)]})
    text = text.replace('"op 7"', '"op "7"').replace('"op 30"', "op 30")
    path = tmp_path / "a.trace.json"
    path.write_text(text)
    byte = text.index('7", "pid"')
    assert MeasuredTrace(path).truncation.sentences() == [
        f"The trace is not valid JSON at 2 places, the first at byte {byte:,}; "
        "the damaged events there are left out."
    ]


KINETO = (
    '  {\n    "ph": "X", "cat": "cpu_op", "name": "op %d", "pid": 1, "tid": 2,\n    "ts": %d.5, '
    '"dur": 5.25,\n    "args": {\n      "External id": 5, "Input Dims": [[1]], "Ev Idx": 1\n    '
    "}\n  }"
)
"""An event as Kineto writes it."""


def test_an_event_without_one_of_its_quotes_is_read_or_counted(tmp_path: Path) -> None:
    """If the remark says that events were repaired, none is missing, and each has its category."""
    texts = [KINETO % (number, 10 * number) for number in range(5)]
    path, outcomes = tmp_path / "a.trace.json", set()
    for at in (place for place, letter in enumerate(texts[2]) if letter == '"'):
        damaged = [*texts[:2], texts[2][:at] + texts[2][at + 1 :], *texts[3:]]
        path.write_text(
            '{"baseTimeNanoseconds": 5, "traceEvents": [\n' + ",\n".join(damaged) + "]}"
        )
        trace = load_trace(path)
        read = len(names(trace))
        outcomes.add((trace.repaired.places, trace.lost.places, read))
        categories = [trace.tables["category"][code] for code in trace.spans["category"]]
        assert categories == ["cpu_op"] * read
    assert outcomes == {(0, 1, 4)}


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_what_precedes_a_damaged_block_of_a_compressed_file_is_read(
    tmp_path: Path, part: float
) -> None:
    """The message names the compressed byte; the events before it are those of the file."""
    rng = random.Random(1)  # noqa: S311 - nothing is secret here
    given = [{**event(number), "ts": rng.random() * 1e6} for number in range(3000)]
    packed = bytearray(gzip.compress(json.dumps({"traceEvents": given}).encode()))
    at = int(len(packed) * part)
    packed[at : at + 40] = bytes(byte ^ 0xFF for byte in packed[at : at + 40])
    path = tmp_path / "a.trace.json.gz"
    path.write_bytes(packed)
    trace = load_trace(path)
    assert trace.truncated.startswith("the compressed file is damaged")
    found = set(names(trace))
    first = int(len(given) * part * 0.9)
    assert {one["name"] for one in given[:first]} <= found
    packed[20:60] = bytes(byte ^ 0xFF for byte in packed[20:60])
    path.write_bytes(packed)
    with pytest.raises(
        CaptureError, match=r"is damaged: the compressed file is damaged \(.*\) after"
    ):
        load_trace(path)


def test_merge_names_the_rank_that_cannot_be_read(tmp_path: Path) -> None:
    """It does not say that the folder holds a single rank."""
    for rank in (0, 1):
        step = {**event(rank), "cat": "user_annotation", "name": "ProfilerStep#0"}
        trace = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": [step]}
        text = json.dumps(trace)
        path = tmp_path / f"rank{rank}.trace.json"
        path.write_bytes(text.encode("utf-16" if rank else "utf-8"))
    with pytest.raises(CaptureError, match=r"fewer than two ranks.*\n.*rank1.* is UTF-16"):
        merge(tmp_path)
