"""Operators, modules, marks, sequences and the roofline of a report, as plain data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.measures.code.marks import KINDS, MOMENT
from dynprof.analysis.measures.efficiency.flops import DEVICE
from dynprof.analysis.measures.efficiency.roofline import roofline_point
from dynprof.analysis.measures.sequence_sources import joined_names, sources
from dynprof.analysis.measures.timeline.nesting import ROOT
from dynprof.analysis.output.tables import shapes_text

if TYPE_CHECKING:
    from dynprof.analysis.measures.efficiency.flops import Work
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

MOST_OPERATORS = 2000
MOST = 500
"""Rows of marks that are shown, at most."""
MOST_MODULES = 1000
MOST_SHOWN = 25
MOST_WORKS = 300
LONGEST_SHAPES = 120


def operators_data(measured: MeasuredTrace) -> dict[str, Any]:
    """Return counts and times by operator and by kernel, in ms."""
    devices = any(kind.core != "HOST" for kind in measured.kinds)
    back = Counter[str]()
    for one in measured.passes:
        back[one.operator] += one.device
    rows: list[list[Any]] = [
        [row.name, "host", row.count, *_ms(row.own, row.total, row.device_own, back.get(row.name))]
        for row in measured.work
    ]
    rows += [
        [kind.name, kind.core.lower(), kind.count, *_ms(kind.total, kind.total, None, None)]
        for kind in measured.kinds
        if kind.core != "HOST"
    ]
    rows.sort(key=lambda row: -row[3])
    return {"rows": rows[:MOST_OPERATORS], "count": len(rows), "devices": devices}


def _ms(*times: int | None) -> list[float | None]:
    return [None if time is None else time / 1e6 for time in times]


def marks(measured: MeasuredTrace) -> dict[str, Any]:
    """Return rows of name, kind, domain, count, first moment and times, in ms.

    Moments have no times. The first moment counts from the trace's first event.
    """
    trace, found = measured.trace, measured.marks
    kinds: dict[tuple[str, str, str], int] = {}
    both = zip(found.span.tolist(), found.kind.tolist(), found.domain, strict=True)
    code = [kinds.setdefault((trace.name(p), KINDS[k], d), len(kinds)) for p, k, d in both]
    places = np.array(code, np.int64)
    lengths, starts = (trace.spans[name][found.span] for name in ("length", "start"))
    rows = []
    for (name, kind, domain), number in kinds.items():
        chosen = places == number
        first = (int(starts[chosen].min()) - int(trace.spans["start"].min())) / 1e6
        row = [name, kind, domain, int(chosen.sum()), first]
        total = int(lengths[chosen].sum()) / 1e6
        times = [None, None] if kind == KINDS[MOMENT] else [total, int(lengths[chosen].max()) / 1e6]
        rows.append([*row, *times])
    return {"rows": rows[:MOST], "count": len(rows)}


def modules_data(measured: MeasuredTrace) -> dict[str, Any]:
    """Return the cost of each module, forward and backward, in ms, MB and 10^9 operations.

    Each row has the name, the index of the parent, and the number of calls; then pairs of own and
    total cost. If there are many modules, the largest are kept, with all their parents.
    """
    found = measured.modules
    device = bool(len(measured.launches.work))
    weight = [row.forward_total + row.backward_total for row in found.rows]
    size = [(one.device if device else one.host) for one in weight]
    kept = set(sorted(range(len(size)), key=lambda place: -size[place])[:MOST_MODULES])
    for place in sorted(kept, reverse=True):  # parents come first
        while (place := found.rows[place].parent) != ROOT:
            kept.add(place)
    places = {place: number for number, place in enumerate(sorted(kept))}
    places[ROOT] = ROOT
    rows = []
    for place in sorted(kept):
        row = found.rows[place]
        both = (row.forward + row.backward, weight[place])
        rows.append(
            [
                row.name,
                places[row.parent],
                row.calls,
                *(one.host / 1e6 for one in (row.forward, row.forward_total)),
                *(one.host / 1e6 for one in (row.backward, row.backward_total)),
                *(one.device / 1e6 for one in (row.forward, row.forward_total)),
                *(one.device / 1e6 for one in (row.backward, row.backward_total)),
                *(one.allocated / 1e6 for one in both),
                *(one.flops / 1e9 for one in both),
            ]
        )
    return {
        "rows": rows,
        "count": len(found.rows),
        "of_labels": found.of_labels,
        "device": device,
        "memory": len(measured.trace.memory["time"]) > 0,
        "flops": found.with_flops,
        "outside": found.outside.device / 1e6,
        "unknown": found.device_unknown / 1e6,
    }


def sequences_section(measured: MeasuredTrace) -> dict[str, Any]:
    """Return rows of operators, line of code, count, kernels in each, and times in ms."""
    chosen = measured.sequences[:MOST_SHOWN]
    rows = [
        [
            joined_names(source.operators, 8),
            source.line,
            one.count,
            len(one.names),
            int(one.busy_ns.sum()) / 1e6,
            int(one.gaps_ns.sum()) / 1e6,
            one.saved_ns / 1e6,
        ]
        for one, source in zip(chosen, sources(measured, chosen), strict=True)
    ]
    return {"rows": rows, "count": len(measured.sequences)}


def roofline_data(measured: MeasuredTrace) -> dict[str, Any]:
    """Return rows of operators with their rates, and the roofs of the device that worked."""
    works, peak = measured.works, measured.peak
    known = [work for work in works if work.tflops or work.gb_s]
    where = [work for work in known if work.where == DEVICE] or known
    busy = int(measured.trace.spans["length"][measured.launches.work].sum())
    return {
        "device": measured.device_name,
        "on_host": not busy,
        "peak": peak and {"gb_s": peak.gb_s, "tflops": peak.tflops, "source": peak.source},
        "covered": sum(work.device_ns for work in where) / busy if busy else None,
        "rows": [_row(measured, work) for work in where[:MOST_WORKS]],
        "count": len(where),
    }


def _row(measured: MeasuredTrace, work: Work) -> list[Any]:
    place = roofline_point(work, measured.peak)
    shapes = shapes_text(work.dims).rstrip(";")
    if len(shapes) > LONGEST_SHAPES:
        shapes = f"{shapes[:LONGEST_SHAPES]}…"
    return [
        f"{work.name} {shapes}".strip(),
        work.dtype.removeprefix("c10::"),
        work.count,
        (work.time_ns or 0) / 1e6,
        work.tflops,
        work.gb_s,
        work.flops / work.moved if work.flops and work.moved else None,
        place.share and 100 * place.share,
        place.bound,
        None if work.on_tensor_cores is None else 100 * work.on_tensor_cores,
    ]
