"""Merges the traces of ranks of a window: on one clock, with arrows between collectives."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.analysis.measures.critical_path import PARTS
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.breakdown import ms
from dynprof.analysis.output.merged_events import (
    STEPS_PID,
    MergedRank,
    PathPiece,
    gzip_writer,
    steps_process,
)
from dynprof.analysis.output.whole_files import FOLDER, output_file
from dynprof.analysis.runs.recorded_window import window_below, window_folder, window_words
from dynprof.analysis.runs.window_report import compared
from dynprof.errors import CaptureError
from dynprof.runtime.output import atomic_file
from dynprof.runtime.plural import counted, listed_ranks
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from dynprof.analysis.ranks.comparison import Ranks
MERGED = "merged.json.gz"
"""Name of the file. It does not match the names of traces: it must not be analysed as one."""
SLOWEST, MEDIAN = "slowest", "median"
_DAY_NS = 86_400 * 10**9
"""Nanoseconds of a day: clocks differ by less."""
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
        pids = itertools.count(STEPS_PID + 1)
        parts = (
            MergedRank(
                ready[ranks.file_index(rank)], rank, place=place, of=len(chosen),
                ahead_ns=clocks.get(rank, (rank, 0))[1], shared=shared(rank),
                new_pid=lambda: next(pids),
                path_pieces=_path_pieces(ready[ranks.file_index(rank)]) if with_path else (),
            )
            for place, rank in enumerate(chosen)
        )  # fmt: skip
        words = _written(target, parts, chosen, on_rank)
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
    target: Path, parts: Iterable[MergedRank], chosen: list[int], on_rank: Callable[[object], None]
) -> list[str]:
    """Write the ranks one after the other; return sentences about them."""
    arrows, words = 0, []
    with atomic_file(target) as file, gzip_writer(file) as sink:
        origin = None
        for part, rank in zip(parts, chosen, strict=True):
            if origin is None and (first := part.first_ns()) is not None:
                origin = first - _DAY_NS  # clocks that nothing aligns may be behind
                sink.write(_head(origin, chosen))
            if origin is None:
                words.append(f"rank {rank} has no event")
                continue
            for piece in part.events(origin):
                sink.write(b",\n" + piece)
            if part.truncated:
                words.append(f"rank {rank}: {part.truncated}; the events before that were merged")
            arrows += part.arrows
            on_rank(rank)
        if origin is None:
            raise CaptureError(f"{listed_ranks(chosen)} have no event")
        sink.write(b"\n]}\n")
    met = f", with arrows at {counted(arrows, 'collective')} that they share" if arrows else ""
    return [f"merged: {listed_ranks(chosen)}{met}", *words]


def _head(origin: int, chosen: list[int]) -> bytes:
    """Return the start of the file, up to the first events."""
    members = {"dynprof": {"version": __version__, "ranks": chosen}, "displayTimeUnit": "ms",
               "baseTimeNanoseconds": origin}  # fmt: skip
    return json.dumps(members)[:-1].encode() + b', "traceEvents": [\n' + steps_process()
