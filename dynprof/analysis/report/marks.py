"""What a page says of the script's marks: ranges by name, moments one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.measures.code.marks import KINDS, MOMENT

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

MOST = 500
"""So many rows are shown."""


def marks(measured: MeasuredTrace) -> dict[str, Any]:
    """Return rows of name, kind, domain, count, first moment and times, in ms.

    Those of moments have no times. The first is counted from the trace's first event.
    """
    trace, found = measured.trace, measured.marks
    kinds: dict[tuple[str, str, str], int] = {}
    both = zip(found.span.tolist(), found.kind.tolist(), found.domain, strict=True)
    code = [kinds.setdefault((trace.name(p), KINDS[k], d), len(kinds)) for p, k, d in both]
    places = np.array(code, np.int64)
    lengths, starts = (trace.spans[name][found.span] for name in ("length", "start"))
    rows = []
    for (name, kind, domain), number in kinds.items():
        mine = places == number
        first = (int(starts[mine].min()) - int(trace.spans["start"].min())) / 1e6
        row = [name, kind, domain, int(mine.sum()), first]
        total = int(lengths[mine].sum()) / 1e6
        times = [None, None] if kind == KINDS[MOMENT] else [total, int(lengths[mine].max()) / 1e6]
        rows.append([*row, *times])
    return {"rows": rows[:MOST], "count": len(rows)}
