"""Communication between ranks in the vendor's terms: by step, and by link.

A kernel's time contains the wait for the other ranks and the transfer. A trace of one rank does not
separate them. It shows a link only for a single sender and receiver.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.communication import (
    OTHER,
    RECEIVE,
    SEND,
    UNKNOWN_DIRECTION,
    copies,
    reported_group,
    size_of,
    traffic,
)
from dynprof.analysis.measures.timeline.steps import HOST, HOST_NAME, collectives, launch_times
from dynprof.analysis.vendor_files.database import NOT_KNOWN, ends_of
from dynprof.analysis.vendor_files.tables import UNKNOWN_TIME, us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.vendor_files.tables import Row, Tables

P2P, COLLECTIVE, UNKNOWN_KIND = "p2p", "collective", "unknown"
TIME_INFO, START, ELAPSED = "Communication Time Info", "Start Timestamp(us)", "Elapse Time(ms)"
TRANSPORT, SIZE, TIME = "Transport Type", "Transit Size(MB)", "Transit Time(ms)"
BANDWIDTH, OPERATION = "Bandwidth(GB/s)", "Op Name"
TOTAL = "Total Op Info"
_MB = 1e6
"""Bytes of a MB in the vendor's files."""
_BATCH = "batchsendrecv"
_VERBS = {SEND: "send", RECEIVE: "receive"}
Data = dict[str, Any]
COPY_BANDWIDTH = (
    "Device_id", "Direction", "From", "To", "Count", "Time(us)", "Size(MB)", "Bandwidth(GB/s)",
    "Count of 1 MB and more", "Bandwidth of 1 MB and more(GB/s)",
)  # fmt: skip
COLLECTIVE_BANDWIDTH = (
    "Device_id", "Collective", "Process Group", "Ranks", "Data Type", "Size(MB)", "Count",
    "Total Time(us)", "Min Time(us)", "Algorithm Bandwidth(GB/s)", "Bus Bandwidth(GB/s)",
    "Max Bus Bandwidth(GB/s)",
)  # fmt: skip


class CommunicationOp:
    """One collective, send or receive of a rank.

    Args:
        measured: The trace.
        place: Its index among the spans.
        number: Its number among those of its name, from 1.
        step: The step that launched it, as files name it.
    """

    def __init__(self, measured: MeasuredTrace, place: int, number: int, step: str) -> None:
        trace = measured.trace
        self._measured, self._place = measured, place
        self.step = step
        self.name = f"{trace.name(place)}__{number}"
        self.group = reported_group(trace, place)
        self.begin_ns = measured.base_ns + int(trace.spans["start"][place])
        self.length_ns = int(trace.spans["length"][place])
        self._direction = int(measured.directions[place])

    @property
    def kind(self) -> str:
        """Point to point or collective, or unknown."""
        if self._direction == UNKNOWN_DIRECTION:
            return UNKNOWN_KIND
        return P2P if self._direction != OTHER or _BATCH in self.name.lower() else COLLECTIVE

    @property
    def key(self) -> str:
        """Its name in files."""
        return f"{self.name}@{self.group}"

    def link(self) -> Data | None:
        """Return its link, size and time; None if the trace lacks them."""
        ends = ends_of(self._measured, self._place)
        trace = self._measured.trace
        size = size_of(trace.tables["details"][trace.spans["details"][self._place]])
        if None in ends or size is None:
            return None
        return {
            "verb": _VERBS[self._direction], "link": f"{ends[0]}-{ends[1]}",
            "size": size, "time_ns": self.length_ns, "name": self.name,
        }  # fmt: skip


def communication_ops(measured: MeasuredTrace) -> Iterator[CommunicationOp]:
    """Yield the communication operations of a rank by start time."""
    seen, launched = Counter[str](), launch_times(measured.trace, measured.launches)
    for place in collectives(measured.trace).tolist():
        name = measured.trace.name(place)
        seen[name] += 1
        inside = measured.in_steps[place]
        step = _step_at(measured.marked, int(launched[place])) if inside else ""
        yield CommunicationOp(measured, place, seen[name], f"step{step}")


def communication(measured: MeasuredTrace) -> Data:
    """Return the content of ``communication.json``: the start and duration of each operation."""
    found: Data = {}
    for one in communication_ops(measured):
        kinds = found.setdefault(one.step, {P2P: {}, COLLECTIVE: {}})
        times = {START: one.begin_ns / 1000, ELAPSED: one.length_ns / 1e6}
        kinds.setdefault(one.kind, {})[one.key] = {TIME_INFO: times}
    for kinds in found.values():
        for kind in kinds.values():
            if kind:
                total = sum(each[TIME_INFO][ELAPSED] for each in kind.values())
                kind[TOTAL] = {TIME_INFO: {ELAPSED: total}}
    return found


def communication_matrix(measured: MeasuredTrace) -> Data:
    """Return the content of ``communication_matrix.json``: by link, the fastest, the slowest, all.

    Sizes are in millions of bytes. Times are those of kernels, which include waiting.
    """
    by_link: dict[tuple[str, str, str], dict[str, list[Data]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for one in communication_ops(measured):
        if one.kind == P2P and (found := one.link()):
            by_link[one.step, found["verb"], one.group][found["link"]].append(_entry(found))
    matrix: Data = {}
    for (step, verb, group), links in by_link.items():
        p2p = matrix.setdefault(step, {P2P: {}, COLLECTIVE: {}})[P2P]
        for link, entries in links.items():
            for rank, entry in _ranked(entries).items():
                p2p.setdefault(f"{verb}-{rank}@{group}", {})[link] = entry
    return matrix


def _entry(found: Data) -> Data:
    size, time = found["size"] / _MB, found["time_ns"] / 1e6
    return {**_moved(size, time), OPERATION: found["name"]}


def _moved(size: float, time: float) -> Data:
    speed = round(size / time, 4) if time else 0  # MB/ms equals GB/s
    return {TRANSPORT: NOT_KNOWN, SIZE: size, TIME: time, BANDWIDTH: speed}


def _ranked(entries: list[Data]) -> dict[str, Data]:
    """Return the entries of one link that the vendor keeps, and their sum."""
    ranked = sorted(entries, key=lambda entry: -entry[BANDWIDTH])
    found = {"top1": ranked[0], "middle": ranked[len(ranked) // 2], "bottom1": ranked[-1]}
    found |= {f"bottom{n}": ranked[-n] for n in (2, 3) if len(ranked) >= n}
    sums = (sum(entry[name] for entry in entries) for name in (SIZE, TIME))
    return {**found, "total": _moved(*sums)}


def _step_at(steps: list[MarkedStep], time: int) -> str:
    for number, begin, length in steps:
        if begin <= time < begin + length:
            return "" if number is None else str(number)
    return ""


def bandwidth_tables(measured: MeasuredTrace) -> Tables:
    """Return the tables of copies and of collectives."""
    return {
        "copy_bandwidth.csv": (COPY_BANDWIDTH, _copies(measured)),
        "collective_bandwidth.csv": (COLLECTIVE_BANDWIDTH, _collectives(measured)),
    }


def rate(gigabytes: float | None) -> str:
    """Return a bandwidth as text."""
    return UNKNOWN_TIME if gigabytes is None else f"{gigabytes:.4g}"


def megabytes(size: int) -> str:
    """Return bytes in MB (10**6), as text; less than 0 means unknown."""
    return UNKNOWN_TIME if size < 0 else f"{size / 1e6:.6g}"


def _copies(measured: MeasuredTrace) -> Iterator[Row]:
    for row in copies(measured.trace):
        yield (
            row.device,
            row.direction,
            row.source or UNKNOWN_TIME,
            row.target or UNKNOWN_TIME,
            row.count,
            us(row.time),
            megabytes(row.size if row.sized else -1),
            rate(row.bandwidth),
            row.large,
            rate(row.large_bandwidth),
        )


def _collectives(measured: MeasuredTrace) -> Iterator[Row]:
    for row in traffic(measured.trace, measured.messages):
        mean = round(row.total / row.count)
        yield (
            HOST_NAME if row.device == HOST else row.device,
            row.message.kind or UNKNOWN_TIME,
            row.group,
            row.message.members if row.message.members > 0 else UNKNOWN_TIME,
            row.message.dtype or UNKNOWN_TIME,
            megabytes(row.message.size),
            row.count,
            us(row.total),
            us(row.shortest),
            rate(row.algorithm(mean)),
            rate(row.bus(mean)),
            rate(row.bus(row.shortest)),
        )
