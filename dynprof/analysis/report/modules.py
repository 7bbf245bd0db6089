"""The page's tree of modules, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.timeline.nesting import ROOT

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

MOST_MODULES = 1000


def modules_data(measured: MeasuredTrace) -> dict[str, Any]:
    """Return what each module spent, forward and backward, in ms, MB and 10^9 operations.

    Each row has its name, the place of what it lies in, and how often it went forward; then pairs
    of its own and of what it spent with all in it. Of many the largest are kept, with all that
    they lie in.
    """
    found = measured.modules
    device = bool(len(measured.launches.work))
    weight = [row.forward_total + row.backward_total for row in found.rows]
    size = [(one.device if device else one.host) for one in weight]
    kept = set(sorted(range(len(size)), key=lambda place: -size[place])[:MOST_MODULES])
    for place in sorted(kept, reverse=True):  # what one lies in comes before it
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
