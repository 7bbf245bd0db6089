"""Merges the traces of ranks of a window: on one clock, with arrows between collectives."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

import msgspec

from dynprof.analysis.measures.critical_path import PARTS
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.breakdown import ms
from dynprof.analysis.measures.timeline.operators import STEP
from dynprof.analysis.measures.timeline.read_trace import about_times
from dynprof.analysis.reading.chunks import TraceFile
from dynprof.analysis.reading.columns import LATEST_NS, DoubtfulTimes, is_in_nanoseconds
from dynprof.analysis.reading.events import ON_DEVICE, STEP_LABELS, decode_leniently
from dynprof.analysis.runs.recorded_window import window_below, window_folder, window_words
from dynprof.analysis.runs.window_report import compared
from dynprof.analysis.vendor_files.json_files import FOLDER, output_file
from dynprof.errors import CaptureError
from dynprof.runtime.plural import counted, listed_ranks
from dynprof.runtime.safe_write import atomic_file
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from dynprof.analysis.rank_comparison.comparison import Ranks

DAY_NS = 86_400 * 10**9
"""Nanoseconds of a day: clocks differ by less, and no window is as long."""
STEPS_PID = 1
"""Id of the process that shows the steps of all ranks, one below the other."""
_STEP = b'"' + STEP.encode()
Fields = dict[str, msgspec.Raw]
"""An event with its values as raw JSON."""
_decoder = msgspec.json.Decoder(list[Fields])
to_json = msgspec.json.encode
_GZIP_LEVEL = 1
"""The fastest compression: merged traces are large."""
_ID_FIELDS = ("id", "bind_id")
MERGED = "merged.json.gz"
"""Name of the file. It does not match the names of traces: it must not be analysed as one."""
SLOWEST, MEDIAN = "slowest", "median"
_SPAN = re.compile(r"(\d+)(?:-(\d+))?")


def clock_words(ranks: Ranks, chosen: list[int]) -> list[str]:
    """Return how far the clocks of some ranks were apart, and for which ranks it is unknown."""
    clocks, hosts = ranks.clocks(), ranks.hosts()
    first = {rank: clocks.get(rank, (rank, 0))[0] for rank in chosen}
    groups = [[r for r in chosen if first[r] == one] for one in sorted(set(first.values()))]
    met = [group for group in groups if len(group) > 1]
    alone = [group[0] for group in groups if len(group) == 1]
    aligned = [group for group in met if len({hosts[rank] for rank in group}) > 1]
    said = [_one_host(group) for group in met if group not in aligned]
    if aligned:
        ahead = [clocks[rank][1] for group in aligned for rank in group]
        said.append(_aligned(max(ahead) - min(ahead), ranks.uncertainty_ns()))
    if len(met) > 1:
        said.append(
            "it is unknown how far the clocks of these are apart, as they share no collective: "
            + "; ".join(map(listed_ranks, met))
        )
    return said + ([_alone(alone, met)] if alone else [])


def _one_host(group: list[int]) -> str:
    return f"{listed_ranks(group)} are of one host, whose clock is used unchanged"


def _aligned(apart_ns: int, uncertainty_ns: int) -> str:
    give_or_take = f", give or take {ms(uncertainty_ns)}" if uncertainty_ns else ""
    if not apart_ns:
        return f"the clocks agree{give_or_take}, by the ends of collectives"
    return (
        f"clocks aligned by the ends of collectives; they were up to {ms(apart_ns)} apart"
        f"{give_or_take}"
    )


def _alone(alone: list[int], met: Collection[list[int]]) -> str:
    used = "its clock is used unchanged"
    if len(alone) > 1:
        used = "their clocks are used unchanged"
    whom = "the others" if met else "each other"
    return f"{listed_ranks(alone)} shared no collective with {whom} that could be matched: {used}"


@dataclass(frozen=True)
class Merged:
    """A merged trace that was written.

    Attributes:
        path: Its path.
        words: Sentences about it.
        problems: The reason why a rank could not be read, by its trace.
    """

    path: Path
    words: list[str]
    problems: dict[Path, str] = field(default_factory=dict)


def merge(
    path: Path,
    wanted: str = "",
    output: Path | str | None = None,
    *,
    with_path: bool = False,
    on_rank: Callable[[object], None] = lambda _: None,
) -> Merged:
    """Write one trace of the ranks of the newest window below a path.

    Args:
        path: A folder.
        wanted: The ranks, such as ``slowest,median,0-3``; empty for all.
        output: The file or folder to write to; by default ``analysis`` next to the traces.
        with_path: Whether the critical path of each rank is drawn above it.
        on_rank: Called with each rank that is written.

    Raises:
        CaptureError: There are fewer than two ranks, a wanted rank is missing, or one cannot be
            read.
        OSError: The file cannot be written.
    """
    traces = window_below(path)
    folder = window_folder(path, traces)
    with compared(traces, folder, elsewhere=output is not None) as (ranks, ready, problems):
        if len(ranks) < 2:
            single = f"{path} holds a single rank; open it with dynprof view"
            if problems or len(ready) > len(ranks):
                single = f"{path} holds fewer than two ranks with a complete step"
            raise CaptureError("\n".join((single, *problems.values(), *window_words(ready))))
        chosen = chosen_ranks(ranks, wanted)
        target = output_file(output, folder / FOLDER, MERGED)
        clocks, shared = ranks.clocks(), ranks.arrivals_among(chosen)
        spans = ranks.spans()
        pids = itertools.count(STEPS_PID + 1)
        parts = (
            MergedRank(
                ready[ranks.file_index(rank)], rank, place=place, of=len(chosen),
                span_ns=spans[rank], ahead_ns=clocks.get(rank, (rank, 0))[1], shared=shared(rank),
                new_pid=lambda: next(pids),
                path_pieces=_path_pieces(ready[ranks.file_index(rank)]) if with_path else (),
            )
            for place, rank in enumerate(chosen)
        )  # fmt: skip
        # Clocks that nothing aligns may be behind.
        origin_ns = spans[chosen[0]][0] - clocks.get(chosen[0], (0, 0))[1] - DAY_NS
        words = _written(target, parts, chosen, origin_ns, on_rank)
        words += [*clock_words(ranks, chosen), *ranks.different_steps(), *window_words(ready)]
        return Merged(target, words, problems)


def _path_pieces(trace: Path) -> Iterator[PathPiece]:
    """Yield the pieces of the critical path of a trace; none if it has no path."""
    measured = MeasuredTrace(trace)
    if (path := measured.critical_path) is None:
        return
    names, found = measured.trace.tables["name"], path.segments
    columns = (found.begin, found.end - found.begin, found.name, found.part)
    for begin, length, name, part in zip(*(one.tolist() for one in columns), strict=True):
        what = PARTS[part]
        yield PathPiece(begin, length, what if name < 0 else names[name], what)


def chosen_ranks(ranks: Ranks, wanted: str) -> list[int]:
    """Return the ranks that a text such as ``slowest,median,0-3`` names, ascending.

    Raises:
        CaptureError: The text is invalid, or names a rank that does not exist.
    """
    there, found = set(ranks.numbers()), set[int]()
    for word in (word.strip() for word in wanted.split(",") if word.strip()):
        if word in (SLOWEST, MEDIAN):
            found.add(ranks.slowest() if word == SLOWEST else ranks.median())
        elif span := _SPAN.fullmatch(word):
            first, last = int(span[1]), int(span[2] or span[1])
            named = {rank for rank in there if first <= rank <= last}
            if not named:
                raise CaptureError(f"there is no rank {word}; there are {listed_ranks(there)}")
            found |= named
        else:
            raise CaptureError(f"{word!r} names no rank: write slowest, median, 3 or 0-7")
    return sorted(found or there)


def _written(
    target: Path,
    parts: Iterable[MergedRank],
    chosen: list[int],
    origin_ns: int,
    on_rank: Callable[[object], None],
) -> list[str]:
    """Write the ranks one after the other; return sentences about them."""
    arrows, words = 0, []
    with atomic_file(target) as file, gzip_writer(file) as sink:
        sink.write(_head(origin_ns, chosen))
        for part, rank in zip(parts, chosen, strict=True):
            for piece in part.events(origin_ns):
                sink.write(b",\n" + piece)
            if part.truncated:
                words.append(f"rank {rank}: {part.truncated}; the events before that were merged")
            words += [f"rank {rank}: {said}" for said in about_times(part.doubtful)]
            arrows += part.arrows
            on_rank(rank)
        sink.write(b"\n]}\n")
    met = f", with arrows at {counted(arrows, 'collective')} that they share" if arrows else ""
    return [f"merged: {listed_ranks(chosen)}{met}", *words]


def _head(origin: int, chosen: list[int]) -> bytes:
    """Return the start of the file, up to the first events."""
    members = {"dynprof": {"version": __version__, "ranks": chosen}, "displayTimeUnit": "ms",
               "baseTimeNanoseconds": origin}  # fmt: skip
    return json.dumps(members)[:-1].encode() + b', "traceEvents": [\n' + steps_process()


class SharedCollective(Protocol):
    """A collective that a rank shares with others."""

    @property
    def name(self) -> str:
        """Its name on this rank."""

    @property
    def begin_ns(self) -> int:
        """The time since the epoch at which the rank arrived, on its own clock."""

    @property
    def number(self) -> int:
        """Its number, which is the same on all ranks."""

    @property
    def before(self) -> int:
        """The number of ranks that arrived before this one."""

    @property
    def of(self) -> int:
        """The number of ranks that share it."""


class PathPiece(NamedTuple):
    """A piece of a critical path; times in ns since the base time of its trace."""

    begin_ns: int
    length_ns: int
    name: str
    part: str


class MergedRank:
    """One rank of a merged trace.

    Args:
        path: Its trace.
        rank: Its number.
        place: Its index among the merged ranks.
        of: The number of merged ranks.
        span_ns: When its steps began and ended, since the epoch on its own clock. Times more than
            a day from that cannot be.
        ahead_ns: The time by which its clock is ahead of the common one.
        shared: The collectives that it shares with others.
        new_pid: Returns a process id that is unique in the merged trace.
        path_pieces: The pieces of its critical path, which get a process of their own.

    Attributes:
        arrows: The number of arrows that begin at this rank, each at one collective.
        truncated: Where and how the trace ends too early; empty if it is complete.
        doubtful: The events that are left out, as their times cannot be.

    Raises:
        CaptureError: The file is not a trace.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        *,
        place: int,
        of: int,
        span_ns: tuple[int, int],
        ahead_ns: int,
        shared: Iterable[SharedCollective],
        new_pid: Callable[[], int],
        path_pieces: Iterable[PathPiece] = (),
    ) -> None:
        self.arrows, self.truncated, self.doubtful = 0, "", DoubtfulTimes()
        self._path, self._rank, self._place = path, rank, place
        self._file = TraceFile(path)
        base = self._file.members.get("baseTimeNanoseconds")
        self._exact = not isinstance(base, int)
        self._base = base if isinstance(base, int) else 0
        self._earliest = span_ns[0] - self._base - DAY_NS
        self._latest = span_ns[1] - self._base + DAY_NS
        self._ahead, self._slots = ahead_ns, of + 1
        self._shared: dict[int, list[SharedCollective]] = {}
        for one in shared:
            self._shared.setdefault(one.begin_ns - self._base, []).append(one)
        self._new_pid, self._path_pieces = new_pid, path_pieces
        self._pids: dict[bytes, msgspec.Raw] = {}
        self._ids: dict[bytes, int] = {}
        self._steps: set[bytes] = set()
        self._metadata: list[Fields] = []

    def events(self, origin_ns: int) -> Iterator[bytes]:
        """Yield the events, as pieces of JSON with commas between them.

        Args:
            origin_ns: The origin of times, since the epoch.

        Raises:
            CaptureError: The trace is damaged, or has events before the origin.
        """
        shift = self._base - self._ahead - origin_ns
        for events in self._chunks():
            found: list[Fields] = []
            for event in events:
                self._add(event, shift, found)
            events.clear()  # else two chunks are in memory at once
            if text := to_json(found)[1:-1]:
                found.clear()
                yield text
        self.truncated = self._file.truncated
        if drawn := [*self._critical_path(shift)]:
            yield to_json(drawn)[1:-1]
        if said := [*self._thread_metadata(), *self._process_metadata()]:
            yield to_json(said)[1:-1]

    def _chunks(self) -> Iterator[list[Fields]]:
        """Yield the events by chunk."""
        for chunk in self._file.chunks(sound=True):
            if (events := decoded(chunk)) is None:
                raise CaptureError(f"{self._path} is damaged: its events are not valid JSON")
            yield events

    def _add(self, event: Fields, shift: int, found: list[Fields]) -> None:
        """Change an event, and add it, with its arrow and step, to ``found``."""
        kind = text_of(event, "ph")
        if kind == b'"M"':
            self._metadata.append(event)
            return
        start = self._start(event) if "ts" in event or kind == b'"X"' else 0
        if start is None:
            return
        event["pid"] = self._pid(text_of(event, "pid"))
        for name in _ID_FIELDS:
            if name in event:
                event[name] = self._unique_id(text_of(event, name))
        found.append(event)
        if "ts" in event:
            event["ts"] = exact_us(start + shift, self._path)
            if kind == b'"X"':
                found += self._drawn(event, start)

    def _pid(self, old: bytes) -> msgspec.Raw:
        pid = self._pids.get(old)
        if pid is None:
            pid = self._pids[old] = msgspec.Raw(b"%d" % self._new_pid())
        return pid

    def _drawn(self, event: Fields, start: int) -> Iterator[Fields]:
        """Yield the arrow at a shared collective, and the copy of a step for the steps' process."""
        name = text_of(event, "name")
        for meeting in self._shared.get(start, ()):
            if msgspec.json.decode(name) == meeting.name:
                yield self._arrow(event, meeting)
        if name.startswith(_STEP) and name not in self._steps and category(event) in STEP_LABELS:
            self._steps.add(name)
            place = {"pid": STEPS_PID, "tid": self._place + 1}
            yield {**event, **{key: msgspec.Raw(to_json(to)) for key, to in place.items()}}

    def _start(self, event: Fields) -> int | None:
        """Return a start in ns, rounded as in the columns; None if the event's times cannot be.

        Those are counted, as the reader of columns counts them. A duration in nanoseconds is
        converted.
        """
        lasts = text_of(event, "ph") == b'"X"'
        text = text_of(event, "ts").strip(b'"')
        try:
            in_nanoseconds = is_in_nanoseconds(float(text))
            if in_nanoseconds or self._exact:
                found = int(Decimal(text.decode()) * (1 if in_nanoseconds else 1000))
            else:
                found = round(float(text) * 1000)
            length = float(text_of(event, "dur").strip(b'"')) if lasts else 0.0
            length = round(length * (1 if in_nanoseconds else 1000))
        except (ValueError, ArithmeticError):  # not a number, infinite
            self.doubtful.unreadable += 1
            return None
        if max(abs(found), abs(length)) >= LATEST_NS:
            self.doubtful.unreadable += 1
        elif length < 0:
            self.doubtful.negative += 1
        elif category(event) in ON_DEVICE and found == 0 and (not length or self._earliest > 0):
            self.doubtful.not_measured += 1
        elif not self._earliest <= found <= found + length <= self._latest:
            self.doubtful.far += 1
        else:
            if in_nanoseconds and lasts:
                event["dur"] = msgspec.Raw(b"%d.%03d" % divmod(length, 1000))
            return found
        return None

    def _unique_id(self, old: bytes) -> msgspec.Raw:
        """Return an id that no other rank and none of our own arrows has."""
        try:
            number = int(old.strip(b'"'), 0)
        except ValueError:
            number = (1 << 40) + self._ids.setdefault(old, len(self._ids))
        return msgspec.Raw(b"%d" % (number * self._slots + self._place))

    def _arrow(self, event: Fields, meeting: SharedCollective) -> Fields:
        """Return this rank's part of the arrow from the first rank to the last one."""
        self.arrows += not meeting.before
        last = meeting.before == meeting.of - 1
        kind = "s" if not meeting.before else "f" if last else "t"
        number = meeting.number * self._slots + self._slots - 1
        given = {"ph": kind, "cat": "collective", "name": "collective", "id": number, "bp": "e"}
        return {
            **{name: msgspec.Raw(to_json(value)) for name, value in given.items()},
            **{name: event[name] for name in ("pid", "tid", "ts") if name in event},
        }

    def _critical_path(self, shift: int) -> Iterator[dict[str, Any]]:
        """Yield the pieces of the critical path, and the name and place of their process."""
        where = {"pid": 0, "tid": 0}
        for one in self._path_pieces:
            if not where["pid"]:
                where["pid"] = self._new_pid()
                name = {"name": f"rank {self._rank}: critical path"}
                yield {"ph": "M", "name": "process_name", **where, "args": name}
                sort = {"sort_index": self._place * 1000 - 1}
                yield {"ph": "M", "name": "process_sort_index", **where, "args": sort}
            begin, length = exact_us(one.begin_ns + shift, self._path), one.length_ns / 1000
            yield {"ph": "X", "cat": "critical_path", "name": one.name, **where, "ts": begin,
                   "dur": length, "args": {"part": one.part}}  # fmt: skip

    def _thread_metadata(self) -> Iterator[Fields]:
        """Yield the metadata of threads whose processes have events."""
        for event in self._metadata:
            pid = self._pids.get(text_of(event, "pid"))
            if pid is not None and not text_of(event, "name").startswith(b'"process_'):
                event.pop("ts", None)
                yield {**event, "pid": pid}

    def _process_metadata(self) -> Iterator[dict[str, Any]]:
        """Yield process names with the rank in front, and their order: by rank, then by trace."""
        names, order = self._names()
        used = sorted(self._pids, key=lambda pid: (order.get(pid, float("inf")), pid))
        for place, old in enumerate(used):
            said = " ".join(names.get(old, [old.decode(errors="replace").strip('"')]))
            name = f"rank {self._rank}: {said}".rstrip(": ")
            where = {"pid": self._pids[old], "tid": 0}
            yield {"ph": "M", "name": "process_name", **where, "args": {"name": name}}
            sort = {"sort_index": self._place * 1000 + place}
            yield {"ph": "M", "name": "process_sort_index", **where, "args": sort}
        if self._steps:
            where = {"pid": STEPS_PID, "tid": self._place + 1}
            name = f"rank {self._rank}"
            yield {"ph": "M", "name": "thread_name", **where, "args": {"name": name}}
            sort = {"sort_index": self._place}
            yield {"ph": "M", "name": "thread_sort_index", **where, "args": sort}

    def _names(self) -> tuple[dict[bytes, list[str]], dict[bytes, int]]:
        """Return the name and the labels of each process, and its sort index."""
        names, order = dict[bytes, list[str]](), dict[bytes, int]()
        for event in self._metadata:
            given = as_object(event.get("args"))
            pid, what = text_of(event, "pid"), text_of(event, "name")
            if what == b'"process_name"':
                names.setdefault(pid, []).insert(0, str(given.get("name", "")))
            elif what == b'"process_labels"':
                names.setdefault(pid, []).append(str(given.get("labels", "")))
            elif what == b'"process_sort_index"' and isinstance(given.get("sort_index"), int):
                order[pid] = given["sort_index"]
        return names, order


def steps_process() -> bytes:
    """Return the events that name the process of the steps of all ranks."""
    about = {"process_name": {"name": "steps of all ranks"},
             "process_sort_index": {"sort_index": -1}}  # fmt: skip
    told = [{"ph": "M", "name": name, "pid": STEPS_PID, "tid": 0, "args": args}
            for name, args in about.items()]  # fmt: skip
    return to_json(told)[1:-1]


def gzip_writer(file: BinaryIO) -> Any:
    """Return a gzip writer for a file: isal's, or Python's own if isal is missing."""
    try:
        from isal import igzip
    except ImportError:
        return gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0)
    make: Callable[..., gzip.GzipFile] = igzip.IGzipFile
    return make("", "wb", _GZIP_LEVEL, file, mtime=0)


def decoded(chunk: bytes) -> list[Fields] | None:
    """Return the events of a chunk; None if it ends inside an event or is not valid JSON."""
    text = b"[%b]" % chunk
    try:
        try:
            return _decoder.decode(text)
        except msgspec.ValidationError:
            found = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        try:
            found = decode_leniently(text, error)
        except msgspec.DecodeError:
            return None
    events = (event for event in found if isinstance(event, dict))
    return [{name: msgspec.Raw(to_json(value)) for name, value in e.items()} for e in events]


def text_of(event: Fields, name: str) -> bytes:
    """Return the raw JSON of a value of an event."""
    found = event.get(name)
    return b'""' if found is None else bytes(found)


def category(event: Fields) -> str:
    """Return the category of an event, in lower case."""
    return text_of(event, "cat").strip(b'"').decode(errors="replace").lower()


def as_object(raw: msgspec.Raw | None) -> dict[str, Any]:
    """Return the members of a JSON object; empty for anything else."""
    found = msgspec.json.decode(raw) if raw else {}
    return found if isinstance(found, dict) else {}


def exact_us(ns: int, path: Path) -> msgspec.Raw:
    """Return a time in microseconds, exactly.

    Raises:
        CaptureError: It is before the common origin.
    """
    if ns < 0:
        raise CaptureError(f"{path} is from another day than the other ranks; leave it out")
    return msgspec.Raw(b"%d.%03d" % divmod(ns, 1000))
