"""``dynprof history``: show the pace of all ranks since the job began, and when it changed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.config_directory import Directory, directory_of, ranks_of, statuses
from dynprof.cli.outcome import NOT_WATCHED, fail, say, say_skipped
from dynprof.cli.terminal_tables import Column, console, table
from dynprof.errors import CaptureError
from dynprof.journal.history import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    RECENT_BUCKETS,
    STILL_S,
    HistoryRecord,
    load_history,
    recent_pace,
)
from dynprof.journal.memory_growth import MemoryReading
from dynprof.journal.pace_changes import PaceChange, RecentPace, duration, moment
from dynprof.runtime.layout import HISTORY_SUFFIX, STATUS_DIR
from dynprof.runtime.plural import counted, listed_ranks
from dynprof.runtime.safe_open import open_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dynprof.journal.status import Status

KINDS = ("steps", "window", "break")
"""The kinds of readings in the output of ``--json``."""
BARS = "".join(map(chr, range(0x2581, 0x2589)))
"""The blocks of Unicode, from one eighth to a full one."""
NO_STEP = "\N{MIDDLE DOT}"
"""Drawn where no step has ended."""
MIN_SPREAD, MAX_SPREAD = 1.5, 4.0
"""Ratio of the highest bar to the lowest: at least that, so that noise stays low; at most that many
times the median, so that an evaluation does not hide a change."""
NOW_RATIO = 1.5
"""Ratio of the recent pace to that since a change from which on the status names it."""
SHOWN_S = 60.0
"""The status shows no sparkline of less time: it has noise only."""
MAX_LINES = 4
"""Lines about the pace in the status, for ranks that step apart."""
MAX_RANKS, MAX_EVENTS = 64, 20
"""Ranks and events that are shown; ``--json`` prints all."""


def history(
    directory: Directory,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", metavar="", help="Print one JSON object with all readings of all ranks."
        ),
    ] = False,
) -> None:
    """Show the pace of all ranks since the job began, and when it changed.

    Each rank writes its step counter into a file, also while no window is requested: every second
    for an hour, every minute for a day, and every ten minutes for the life of the job. The file is
    up to half a minute old. It has the memory of the rank, too, and whether that grows.

    Exit code 0: printed; 2: there is no such directory; 3: there is no history.

    Example: dynprof history prof_config
    """
    directory = directory_of(directory)
    say_skipped(directory / STATUS_DIR)
    found = _records(directory)
    if not found:
        place = directory / STATUS_DIR
        text = f"there is no step history in {place}; a rank begins one with its first step"
        fail(text, NOT_WATCHED)
    if as_json:
        ranks = [_as_json(record) for record in found]
        typer.echo(json.dumps({"directory": str(directory), "ranks": ranks}))
        return
    shown = console()
    spans = _spans(found)
    columns = [Column("rank", 0, left=True), Column("ms/step", 1), Column("MB", 2)]
    columns += [Column(head, 3 + place, left=True) for place, (head, _) in enumerate(spans)]
    rows = [_cells(record, [span_s for _, span_s in spans]) for record in found[:MAX_RANKS]]
    shown.print(table(columns, rows, shown.width))
    if more := len(found[MAX_RANKS:]):
        say(f"{counted(more, 'more rank')}; --json prints all")
    events = _events(found)
    for text in events[-MAX_EVENTS:]:
        say(text)
    if more := len(events[:-MAX_EVENTS]):
        say(f"{counted(more, 'earlier event')}; --json prints all")
    none = "no change of the step time found; "
    none += "a change to 1.5 times is reported after a minute, to 1.15 times after five"
    texts = [none] * (not any(record.changes for record in found))
    for text in (*texts, *_still_texts(statuses(directory)), *_memory_texts(found[:MAX_RANKS])):
        say(text)


def _records(directory: Path) -> list[HistoryRecord]:
    """Return the history of each rank, in order of role and rank."""
    found = []
    place = directory / STATUS_DIR
    with contextlib.suppress(OSError), open_folder(place) as folder:
        for path in sorted(place.glob(f"*rank_*{HISTORY_SUFFIX}")):
            try:
                found.append(load_history(path, folder))
            except FileNotFoundError:  # it was removed
                continue
            except CaptureError as error:
                say(error, err=True)
    return sorted(found, key=lambda record: (record.role, record.rank))


def _as_json(record: HistoryRecord) -> dict[str, object]:
    return {
        "rank": record.rank,
        "role": record.role,
        "host": record.host,
        "pid": record.pid,
        "written_at": record.written_at,
        "hour_ms": record.hour_ms,
        "changes": [
            {
                "at": one.at_s,
                "step": one.step,
                "before_ms": one.before_ms,
                "after_ms": one.after_ms,
            }
            for one in record.changes
        ],
        "restarts": [{"at": at_s, "step": step} for at_s, step in record.restarts],
        "growths": [dataclasses.asdict(one) for one in record.growths],
        "memory": [list(one) for one in record.memory()],
        "readings": [[one.at_ms / 1e3, one.step, KINDS[one.kind]] for one in record.readings()],
    }


def _spans(found: Sequence[HistoryRecord]) -> list[tuple[str, float]]:
    """Return the heads of the columns with sparklines, each with its seconds."""
    age_s = max(record.written_at - record.life.at_ms / 1e3 for record in found)
    spans = [("last hour", float(HOUR_S)), ("last day", float(DAY_S)), ("all", float("inf"))]
    lengths = (0.0, float(HOUR_S), float(DAY_S))
    return [span for span, length_s in zip(spans, lengths, strict=True) if age_s > length_s]


def _cells(record: HistoryRecord, spans_s: Iterable[float]) -> list[str]:
    readings = record.readings()
    cells = [f"{record.role} {record.rank}".lstrip()]
    last_ms = readings[-1].at_ms if readings else 0
    now = recent_pace([r for r in readings if r.at_ms >= last_ms - MINUTE_S * 1000], 1)
    cells.append("".join(f"{ms:.1f}" for ms in now.means_ms if ms))
    cells.append("".join(f"{one.resident_mb:,}" for one in record.memory()[-1:]))
    for span_s in spans_s:
        pace = recent_pace([r for r in readings if r.at_ms >= last_ms - span_s * 1000])
        cells.append(sparkline(pace))
    return cells


def _events(found: Sequence[HistoryRecord]) -> list[str]:
    """Return the changes of the pace and the restarts, oldest first; equal ones share a line."""
    lines: list[tuple[float, str]] = []
    changes = [(one, record) for record in found for one in record.changes]
    for first, records in _shared(changes):
        times = max(first.before_ms, first.after_ms) / min(first.before_ms, first.after_ms)
        how = f"{times:.2g} times {'slower' if first.is_slower else 'faster'}"
        paces = f"{duration(first.before_ms)} a step before, {duration(first.after_ms)} since"
        text = f"{_ranks(records)}: {paces}, {how}"
        lines.append((first.at_s, f"step {first.step:,}, {text}"))
    for record in found:
        for at_s, step in record.restarts:
            lines.append((at_s, f"step {step:,}, {_ranks([record])}: a new session continues"))
    return [f"{moment(at_s, float('inf'))}  {text}" for at_s, text in sorted(lines)]


def _shared(
    changes: Sequence[tuple[PaceChange, HistoryRecord]],
) -> list[tuple[PaceChange, list[HistoryRecord]]]:
    """Return each change once, as its first rank has seen it, with the ranks that share it."""
    shared: list[tuple[PaceChange, list[HistoryRecord]]] = []
    for change, record in changes:
        for first, records in shared:
            is_other = records[-1] is not record
            if is_other and records[0].role == record.role and first.is_same(change):
                records.append(record)
                break
        else:
            shared.append((change, [record]))
    return shared


def _ranks(records: Sequence[HistoryRecord]) -> str:
    role, ranks = records[0].role, [record.rank for record in records]
    return f"{role} {listed_ranks(ranks)}".lstrip()


def sparkline(pace: RecentPace) -> str:
    """Return bars for a pace, the higher the slower, and its range; empty if it is unknown."""
    means_ms = [ms if ms and ms > 0 else None for ms in pace.means_ms[:RECENT_BUCKETS]]
    known = [ms for ms in means_ms if ms]
    if not known:
        return ""
    low, high = min(known), max(known)
    top = max(min(high, MAX_SPREAD * statistics.median(known)), MIN_SPREAD * low)
    bars = ""
    for ms in means_ms:
        part = (min(ms, top) - low) / (top - low) if ms else 0.0
        bars += BARS[round(part * (len(BARS) - 1))] if ms else NO_STEP
    least, most = duration(low), duration(high)
    return f"{bars} {least}" if least == most else f"{bars} {least} to {most}"


def _still_texts(found: Iterable[Status]) -> Iterator[str]:
    """Yield which rank ends no step, for how long."""
    now_s = time.time()
    for one in found:
        seconds = one.stuck_s(now_s)
        if one.health(now_s) in ("alive", "stuck") and seconds >= STILL_S:
            what = "no step has ended" if one.writes(now_s) else "it has not been heard of"
            yield f"{one.named}: {what} for {seconds:,.0f} s (step {one.step:,})"


def _memory_texts(found: Iterable[HistoryRecord]) -> Iterator[str]:
    """Yield what memory of which rank grows, and what its devices have."""
    for record in found:
        texts = [growth.in_words(record.written_at) for growth in record.growths]
        last = (record.memory() or [MemoryReading()])[-1]
        texts += [_on_device([last.allocated_mb], [last.reserved_mb])] * bool(last.reserved_mb)
        yield from (f"{_ranks([record])}: {text}" for text in texts)


def _on_device(allocated_mb: list[int], reserved_mb: list[int]) -> str:
    return f"tensors have {_range(allocated_mb)} of {_range(reserved_mb)} MB reserved on the device"


def _range(values: list[int]) -> str:
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def memory_lines(ranks: Sequence[Status]) -> list[str]:
    """Return the lines of the status about the memory: of all ranks, and of those that grow."""
    paces = [one.recent_pace for one in ranks]
    shown = [
        one
        for one, pace in zip(ranks, paces, strict=True)
        if one.memory.resident_mb and pace.to_s - pace.from_s >= SHOWN_S
    ]
    lines = []
    if shown:
        text = f"{ranks_of(shown)}: {_range([one.memory.resident_mb for one in shown])} MB resident"
        if devices := [one.memory for one in shown if one.memory.reserved_mb]:
            allocated = [one.allocated_mb for one in devices]
            text += f"; {_on_device(allocated, [one.reserved_mb for one in devices])}"
        lines.append(text)
    grown = [
        f"{ranks_of([one])}: {text}"
        for one in ranks
        for text in (
            *(growth.in_words(one.heartbeat) for growth in one.memory.growths),
            *([f"memory is low: {one.memory.low}"] if one.memory.low else []),
        )
    ]
    lines += grown[:MAX_LINES]
    if more := len(grown[MAX_LINES:]):
        lines.append(f"{counted(more, 'more line')} about memory; see dynprof status --json")
    return lines


def pace_lines(ranks: Sequence[Status]) -> list[str]:
    """Return the lines of the status about the pace; ranks with the same last change share one."""
    shared: list[list[Status]] = []
    for one in ranks:
        pace = one.recent_pace
        if one.pace_change is None and pace.to_s - pace.from_s < SHOWN_S:
            continue
        alike = (those for those in shared if _have_same_pace(those[0], one))
        if those := next(alike, None):
            those.append(one)
        else:
            shared.append([one])
    lines = []
    for those in shared[:MAX_LINES]:
        first, change = those[0], those[0].pace_change
        span_s = first.recent_pace.to_s - first.recent_pace.from_s
        is_hour = span_s > HOUR_S - 2 * MINUTE_S
        span = "hour" if is_hour else counted(round(span_s / MINUTE_S), "minute")
        text = f"{ranks_of(those)}: pace of the last {span} {sparkline(first.recent_pace)}"
        lines.append(text + (f"; {_in_words(change, first)}" if change else ""))
    if more := len([one for those in shared[MAX_LINES:] for one in those]):
        lines.append(f"{counted(more, 'more rank')} with a pace of its own; see dynprof history")
    return lines


def _in_words(change: PaceChange, status: Status) -> str:
    """Return a change in words, and the recent pace if it is another one again."""
    text, now_ms = change.in_words(status.heartbeat), status.step_ms
    if not now_ms or max(now_ms, change.after_ms) < NOW_RATIO * min(now_ms, change.after_ms):
        return text
    return f"{text}; {duration(now_ms)} in the last seconds"


def _have_same_pace(one: Status, other: Status) -> bool:
    changes = one.pace_change, other.pace_change
    if one.role != other.role or None in changes:
        return one.role == other.role and changes == (None, None)
    return bool(changes[0] and changes[1] and changes[0].is_same(changes[1]))
