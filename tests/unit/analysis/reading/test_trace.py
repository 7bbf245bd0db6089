"""Traces of any tool: pretty, compact, compressed, truncated or odd; and files of other kinds."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.reading import chunks
from dynprof.analysis.reading.trace import Partner, Trace, load_trace
from dynprof.errors import CaptureError
from tests.kineto_text import written
from tests.pace import patience_s

if TYPE_CHECKING:
    from pathlib import Path

EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "cat": "cpu_op", "name": f"op {n % 7}", "pid": 1, "tid": 2, "ts": n, "dur": 0.5,
     "args": {"External id": n, "Input Dims": [[n, 2], []], "odd": {"a": [{"ph": "}, {"}]}}}
    for n in range(200)
]  # fmt: skip


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the file into small chunks, so that every border occurs."""
    monkeypatch.setattr(chunks, "CHUNK", 700)
    monkeypatch.setattr(chunks, "_TAIL", 400)


def write(path: Path, text: str) -> Path:
    """Write a trace, compressed if its name says so."""
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def names(trace: Trace) -> list[str]:
    """Return the names of the spans, in order."""
    return [trace.name(place) for place in range(len(trace.spans["start"]))]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("around", [True, False])
def test_every_event_is_read_once(
    tmp_path: Path, indent: int | None, suffix: str, around: bool
) -> None:
    """Any format works: an object with members around the events, or a bare list."""
    whole: Any = {"schemaVersion": 1, "baseTimeNanoseconds": 5, "traceEvents": EVENTS, "end": "x"}
    text = json.dumps(whole if around else EVENTS, indent=indent)
    trace = load_trace(write(tmp_path / f"t{suffix}", text))
    assert names(trace) == [event["name"] for event in EVENTS]
    assert trace.spans["start"].tolist() == [n * 1000 for n in range(200)]
    assert set(trace.spans["length"].tolist()) == {500}
    assert trace.spans["external_id"].tolist() == list(range(200))
    assert trace.truncated == ""
    if around:
        assert (trace.members["end"], trace.members["schemaVersion"]) == ("x", 1)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_the_whole_part_of_a_truncated_file_is_read(tmp_path: Path, suffix: str) -> None:
    """The part up to the last whole event is read, with a message."""
    text = json.dumps({"traceEvents": EVENTS}, indent=1)
    place = text.index('"op 3"', len(text) // 2)
    path = tmp_path / f"t{suffix}"
    if suffix == ".json":
        write(path, text[:place])
    else:
        packed = gzip.compress(text.encode())
        path.write_bytes(packed[: len(packed) * 3 // 4])
    trace = load_trace(path)
    assert 0 < len(names(trace)) < 200
    assert names(trace) == [event["name"] for event in EVENTS][: len(names(trace))]
    assert "truncated" in trace.truncated or "ends inside its events" in trace.truncated


def test_absolute_microseconds_keep_their_nanoseconds(tmp_path: Path) -> None:
    """Older traces have no base time; a float would lose a quarter of a microsecond."""
    event = '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1721234567890123.457, "dur": 0.001}'
    trace = load_trace(write(tmp_path / "t.json", f'{{"traceEvents": [{event}]}}'))
    assert trace.spans["start"].tolist() == [1721234567890123457]


def test_odd_events_do_not_spoil_the_others(tmp_path: Path) -> None:
    """This covers other types than Kineto's, other phases, missing members, and any numbers."""
    odd = [
        {"ph": "X", "name": "text", "pid": "Spans", "tid": "a", "ts": "12.5", "dur": 1, "args": {}},
        {"ph": "X", "name": "odd", "ts": 1, "dur": 1, "args": {"Bytes": {"a": 1}, "stream": "x"}},
        {"ph": "X", "name": "back", "ts": 3, "dur": -7},
        {"ph": "X", "name": "huge", "ts": 4, "dur": 1, "args": {"Addr": 2**63 + 5, "device": 2}},
        {"ph": 3, "name": ["no"]},
        {"name": "nothing"},
        {"ph": "X", "name": "<script>\u0007", "ts": 5, "dur": 1, "pid": None},
    ]
    trace = load_trace(write(tmp_path / "t.json", json.dumps({"traceEvents": [*odd, *EVENTS]})))
    assert sorted(trace.spans["external_id"].tolist())[-200:] == list(range(200))
    assert len(trace.tables["dims"]) == 201
    assert {"text", "odd", "huge", "<script>\u0007"} <= set(names(trace))
    assert len(names(trace)) == 204


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x00" * 5000, "holds only zero bytes"),
        (b'{"a": 1}', "has no traceEvents"),
        (b"PK\x03\x04 something else", r"begins with 'PK.*', not as JSON or gzip does"),
        (b"\x1f\x8b not gzip", "compressed file is damaged .* after [39] bytes"),
        (b'{"a": , "traceEvents": [', "is not valid JSON at byte 6"),
        (
            b'\xef\xbb\xbf{"a": 1, "b": "c',
            r"cut off: it ends after 19 bytes.*before the first event",
        ),
        (json.dumps({"traceEvents": EVENTS}).encode("utf-16"), "is UTF-16, not UTF-8; convert it"),
        (json.dumps({"traceEvents": EVENTS}).encode("utf-16-be"), "is UTF-16-BE, not UTF-8"),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused(
    tmp_path: Path, content: bytes, words: str, packed: bool
) -> None:
    """The message says what is wrong with the file, also with a compressed one."""
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(content) if packed else content)
    if packed and content.startswith(b"\x1f"):
        words = "begins with"  # compressed twice
    with pytest.raises(CaptureError, match=words):
        load_trace(path)
    with pytest.raises(CaptureError, match="cannot be read"):
        load_trace(tmp_path / "missing.json")


def test_a_huge_empty_file_is_refused_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of 2 GB is not read to its end."""
    monkeypatch.setattr(chunks, "_LONGEST_HEAD", 1 << 20)
    path = tmp_path / "t.json"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(CaptureError, match="only zero bytes"):
        load_trace(path)


def test_an_empty_list_of_events_is_a_trace(tmp_path: Path) -> None:
    """An empty list is a trace."""
    trace = load_trace(write(tmp_path / "t.json", '{"traceEvents": []}'))
    assert names(trace) == []


def test_lists_that_look_like_events(tmp_path: Path) -> None:
    """Such lists are in an event, in a member before the events, and in one after them."""
    looks = [{"name": 1, "ph": "X"}, {"name": 2}, {"id": 1}, {"id": 2}]
    events = [{**event, "args": {**event["args"], "odd": looks}} for event in EVENTS]
    whole = {"metadata": {"traceEvents": looks}, "traceEvents": events, "files": looks}
    trace = load_trace(write(tmp_path / "t.json", json.dumps(whole)))
    assert names(trace) == [event["name"] for event in EVENTS]
    assert (trace.members["files"], trace.truncated) == (looks, "")


def test_numbers_that_do_not_fit(tmp_path: Path) -> None:
    """Events or arguments with numbers beyond 64 bits, infinite or NaN are left out."""
    odd: list[Any] = [
        {"ph": "X", "name": "large id", "ts": 1, "dur": 1, "args": {"External id": 2**64 - 1}},
        {"ph": "X", "name": "late", "ts": 1e300, "dur": 1},
        {"ph": "X", "name": "nan", "ts": "nan", "dur": 1},
        None,
        7,
    ]
    text = json.dumps({"baseTimeNanoseconds": 0, "traceEvents": [*EVENTS[:3], *odd, *EVENTS[3:]]})
    found = names(load_trace(write(tmp_path / "t.json", text)))
    assert len(found) == 201
    assert "large id" in found


def test_json_extensions_of_python_are_read(tmp_path: Path) -> None:
    """Half surrogate pairs in names become U+FFFD, pairs stay; NaN is not a number."""
    odd = [
        {"ph": 3, "name": ["of other types", "before what msgspec does not take"]},
        {"ph": "X", "name": "\ud800 high", "ts": 1, "dur": 1},
        {"ph": "X", "name": "low \udc00", "ts": 2, "dur": 1},
        {"ph": "X", "name": "pair \U0001f600", "ts": 3, "dur": 1},
        {"ph": "X", "name": "nan", "ts": float("nan"), "dur": 1},
    ]
    path = write(tmp_path / "t.json", json.dumps({"baseTimeNanoseconds": 0, "traceEvents": odd}))
    assert names(load_trace(path)) == ["\ufffd high", "low \ufffd", "pair \U0001f600"]


def test_an_odd_name_does_not_slow_down_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Msgspec needs milliseconds for an odd name; it is tried once, not for each event."""
    asked: list[object] = []
    fields = msgspec.structs.fields

    def counted(kind: type[msgspec.Struct]) -> object:
        asked.append(kind)
        return fields(kind)

    monkeypatch.setattr(msgspec.structs, "fields", counted)
    odd = {"ph": "X", "name": "\ud800", "ts": 0, "dur": 1, "args": {"External id": 7}}
    text = json.dumps({"baseTimeNanoseconds": 0, "traceEvents": [odd] * 100})
    assert names(load_trace(write(tmp_path / "t.json", text))) == ["\ufffd"] * 100
    assert len(asked) <= 1


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    """Such names may be anywhere in the file, and in arguments that are kept unparsed."""
    text = json.dumps({"host": "HOST", "traceEvents": EVENTS}).encode()
    text = text.replace(b"op 3", b"op \xff").replace(b"HOST", b"\xfe")
    text = text.replace(b'"External id": 5,', b'"External id": 5, "Process Group Name": "\xff",')
    path = tmp_path / "t.json"
    path.write_bytes(text)
    trace = load_trace(path)
    assert names(trace) == [event["name"].replace("3", "\ufffd") for event in EVENTS]
    assert ('"\ufffd"'.encode(), b"") in trace.tables["group"]
    assert trace.members["host"] == "\ufffd"


@pytest.mark.parametrize("place", ["head", "first event", "last event", "end"])
def test_deeply_nested_lists_are_refused(tmp_path: Path, place: str) -> None:
    """Python's readers and dynprof's have a depth limit: the error says so."""
    deep = "[" * 100_000 + "]" * 100_000
    parts = [json.dumps(event) for event in EVENTS]
    odd = f'{{"ph": "X", "name": "odd", "ts": 1, "dur": 1, "args": {{"Input Dims": {deep}}}}}'
    parts = {"first event": [odd, *parts], "last event": [*parts, odd]}.get(place, parts)
    members = {"head": (f'"a": {deep}, ', ""), "end": ("", f', "a": {deep}')}.get(place, ("", ""))
    text = f'{{{members[0]}"traceEvents": [{", ".join(parts)}]{members[1]}}}'
    with pytest.raises(CaptureError, match="its lists are nested too deep"):
        load_trace(write(tmp_path / "t.json", text))


@pytest.mark.parametrize("filled_with", ["a", " "])
def test_an_endless_event_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled_with: str
) -> None:
    """Compressed data can expand to any size: reading of one event stops at a limit."""
    monkeypatch.setattr(chunks, "_LONGEST_EVENT", 5000)
    quote = '"' if filled_with == "a" else ""
    text = f'{{"traceEvents": [{{"name": {quote}{filled_with * 10**5}{quote or 1}}}]}}'
    with pytest.raises(CaptureError, match="an event in it has no end"):
        load_trace(write(tmp_path / "t.json.gz", text))


def test_times_whose_sums_do_not_fit(tmp_path: Path) -> None:
    """Start and duration each fit into 64 bits, their sum does not; no span is below 0 ns."""
    odd = [
        {"ph": "X", "name": "sum", "ts": 9e15, "dur": 9e15},
        {"ph": "X", "name": "least", "ts": -(2**63) / 1000, "dur": 1},
    ]
    text = json.dumps({"baseTimeNanoseconds": 0, "traceEvents": [*EVENTS, *odd]})
    trace = load_trace(write(tmp_path / "t.json", text))
    assert names(trace) == [event["name"] for event in EVENTS]
    assert trace.doubtful.unreadable == 2


def halves(path: Path) -> list[Trace]:
    """Read a trace in two halves at once."""
    ends = multiprocessing.Pipe()
    with ThreadPoolExecutor(2) as pool:
        pending = [pool.submit(load_trace, path, Partner(n, end)) for n, end in enumerate(ends)]
        return [one.result(timeout=patience_s()) for one in pending]


@pytest.mark.parametrize("size", [300, 5000, 10**6])
def test_two_readers_share_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Each reader gets all events in the same order, whichever read the last chunk."""
    monkeypatch.setattr(chunks, "CHUNK", size)
    path = write(tmp_path / "t.json", json.dumps({"traceEvents": EVENTS, "after": 7}))
    alone = load_trace(path)
    for found in halves(path):
        assert (found.members, found.tables, found.truncated) == (
            alone.members, alone.tables, alone.truncated
        )  # fmt: skip
        for name, column in alone.spans.items():
            assert found.spans[name].tolist() == column.tolist()


def test_a_reader_that_fails_does_not_keep_the_other_waiting(tmp_path: Path) -> None:
    """Both report the error; both repair a cut inside an event."""
    with pytest.raises(CaptureError):
        halves(tmp_path / "none.json")
    looks = [{"name": 1, "ph": "X"}, {"name": 2}, {"id": 1}, {"id": 2}] * 40
    events = [{**event, "args": {**event["args"], "odd": looks}} for event in EVENTS]
    path = write(tmp_path / "t.json", json.dumps({"traceEvents": events}))
    for found in halves(path):
        assert names(found) == [event["name"] for event in EVENTS]


def test_both_readers_get_a_result_of_one() -> None:
    """Only the second reader computes it, and waits until the first has it, however large."""
    here, there = multiprocessing.Pipe()
    first, second, made = Partner(0, here), Partner(1, there), b"x" * 10**6
    assert second.share(lambda: made) == made
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.finish)
        assert not waiting.done()
        assert first.share(lambda: b"made again") == made
        waiting.result(timeout=patience_s())


def test_a_missing_partner_raises() -> None:
    """A request to it raises; a result for it does not block."""
    here, there = multiprocessing.Pipe()
    there.close()
    with pytest.raises(CaptureError, match="that shared the work on it ended"):
        Partner(0, here).share(lambda: b"")
    with pytest.raises(CaptureError, match="that shared the work on it ended"):
        Partner(1, here).swap([])
    second = Partner(1, here)
    assert second.share(lambda: b"x" * 10**6)
    second.finish()


ODD = ('{"device": "cpu"}(12): run', "C:\\Users\\x.py(3): f", 'merge {"layer": 0}')


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("places", [(0,), (199,), (3, 100, 199)], ids=["first", "last", "several"])
@pytest.mark.parametrize("name", ODD, ids=["file", "backslashes", "label"])
def test_names_that_are_not_escaped(
    tmp_path: Path, places: tuple[int, ...], suffix: str, name: str
) -> None:
    """All events are read with their names; the number and the first byte are reported."""
    given = [{**event, "name": "odd" if n in places else "op"} for n, event in enumerate(EVENTS)]
    text = json.dumps({"baseTimeNanoseconds": 5, "traceEvents": given}, indent=1)
    text = text.replace('"name": "odd"', f'"name": "{name}"')
    with pytest.raises(json.JSONDecodeError) as error:
        json.loads(text)
    trace = load_trace(write(tmp_path / f"t{suffix}", text))
    assert names(trace) == [name if n in places else "op" for n in range(200)]
    assert (trace.truncated, trace.complete) == ("", True)
    assert trace.repaired == (len(places), error.value.pos)
    assert trace.lost.places == 0


def test_unescaped_names_with_spaces_for_line_breaks(tmp_path: Path) -> None:
    """As in captures of older dynprof versions."""
    labels = ['merge {"layer": "model.0"}', "op", 'x",    "pid": 1']
    text = written(labels).decode().replace("\n", " ")
    trace = load_trace(write(tmp_path / "t.json", text))
    assert names(trace) == labels
    assert trace.repaired[0] == 2


def test_what_is_found_once_is_not_searched_again(tmp_path: Path) -> None:
    """Each caller gets a copy, which it may change."""
    calls = []
    trace = load_trace(write(tmp_path / "t.json", json.dumps(EVENTS)))

    def even(found: Trace) -> Any:
        calls.append(found)
        return found.spans["start"] % 2000 == 0

    first = trace.once(even)
    first[:] = False
    assert (trace.once(even).sum(), len(calls)) == (100, 1)


def begins_and_ends(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return nested spans of threads as begins and ends, in order of time."""
    found, open_ones = list[dict[str, Any]](), dict[int, list[float]]()
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        stack, place = open_ones.setdefault(event["tid"], []), {"pid": 1, "tid": event["tid"]}
        while stack and stack[-1] <= event["ts"]:
            found.append({**place, "ph": "E", "ts": stack.pop()})
        stack.append(event["ts"] + event["dur"])
        found.append({name: value for name, value in {**event, "ph": "B"}.items() if name != "dur"})
    found += [{"pid": 1, "tid": tid, "ph": "E", "ts": over}
              for tid, stack in open_ones.items() for over in reversed(stack)]  # fmt: skip
    return sorted(found, key=lambda e: e["ts"])


def nested(draw: random.Random, begin: int, until: int, thread: int) -> list[dict[str, Any]]:
    """Return random spans inside a time, which touch or contain each other."""
    found = list[dict[str, Any]]()
    while until - begin > 1 and draw.random() < 0.9:
        lasts = draw.randint(1, until - begin - 1)
        found.append({"ph": "X", "cat": "cpu_op", "name": f"op {draw.randrange(9)}", "pid": 1,
                      "tid": thread, "ts": begin, "dur": lasts,
                      "args": {"External id": 1}})  # fmt: skip
        found += nested(draw, begin, begin + lasts, thread)
        begin += lasts + draw.choice([0, 0, 3])
    return found


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    """Return start, length, name, thread and id of the spans."""
    columns = [trace.spans[name].tolist()
               for name in ("start", "length", "thread", "external_id")]  # fmt: skip
    where = [trace.tables["thread"][thread] for thread in columns[2]]
    return sorted(zip(names(trace), columns[0], columns[1], where, columns[3], strict=True))


@pytest.mark.parametrize("base", [{}, {"baseTimeNanoseconds": 5}])
def test_begins_and_ends_are_spans(tmp_path: Path, base: dict[str, int]) -> None:
    """They nest on each thread, across chunks, next to whole spans."""
    for seed in range(20):
        draw = random.Random(seed)  # noqa: S311
        events = [one for thread in (2, 3) for one in nested(draw, 0, 400, thread)]
        whole = nested(draw, 0, 90, 4)
        paths = [write(tmp_path / f"{name}{seed}.json", json.dumps({**base, "traceEvents": given}))
                 for name, given in (("x", events + whole),
                                     ("be", begins_and_ends(events) + whole))]  # fmt: skip
        plain, paired = map(load_trace, paths)
        assert rows(paired) == rows(plain)
        assert paired.doubtful.unpaired == 0


def test_what_begins_or_ends_alone_or_on_no_thread_is_counted(tmp_path: Path) -> None:
    """A begin event without an end event, the reverse, and asynchronous ranges are not read."""
    thread = {"pid": 1, "tid": 2, "cat": "cpu_op"}
    events = [
        {**thread, "ph": "E", "ts": 5}, {**thread, "ph": "B", "ts": 10, "name": "lost"},
        {**thread, "ph": "B", "ts": 11, "name": "kept"}, {**thread, "ph": "E", "ts": 15},
        {**thread, "ph": "b", "ts": 20, "name": "async", "id": 7},
        {**thread, "ph": "b", "ts": 30, "name": "async", "id": "8"},
        {**thread, "ph": "e", "ts": 50, "name": "async", "id": 7},
        {**thread, "ph": "e", "ts": 70, "name": "async", "id": "8"},
    ]  # fmt: skip
    path = write(tmp_path / "a.json", json.dumps({"traceEvents": events}))
    trace = load_trace(path)
    assert rows(trace) == [("kept", 11_000, 4000, (1, 2), -1)]
    assert trace.doubtful.unpaired == 2
    assert (trace.doubtful.asynchronous, trace.doubtful.asynchronous_ns) == (2, 70_000)
    said = " ".join(MeasuredTrace(path).truncation.sentences())
    assert "2 events begin a span that never ends, or end one that never began" in said
    assert "2 asynchronous ranges of 0.07 ms together" in said
