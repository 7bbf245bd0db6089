"""Operators and Python frames by the path that leads to them, whenever they ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.nesting import ROOT, own_time
from dynprof.analysis.operators import CALLS, OPERATORS, started_on_device

if TYPE_CHECKING:
    from dynprof.analysis.operators import Calls
    from dynprof.analysis.trace import Trace


@dataclass(frozen=True)
class CallTree:
    """Every path of frames and operators once, each after what it lies in.

    Attributes:
        name: Places in the trace's names of the last of each path.
        parent: Places here of what each lies in; -1 for none.
        own_ns: Time without that of what lies in it.
    """

    name: list[int]
    parent: list[int]
    own_ns: list[int]


def call_tree(trace: Trace, calls: Calls, *, on_device: bool = False) -> CallTree:
    """Return the paths of all threads together.

    Args:
        trace: The trace.
        calls: Its operators and frames.
        on_device: Count what operators started on a device, not what they took of the host.
    """
    chosen, parent = calls.span, calls.parent
    if on_device:
        counted = trace.category(OPERATORS, CALLS)[chosen]
        time_ns = np.zeros(len(chosen), np.int64)
        ids = trace.spans["external_id"][chosen[counted]]
        time_ns[counted] = started_on_device(trace, ids)
    else:
        time_ns = own_time(trace.spans["length"][chosen], parent)
    known: dict[tuple[int, int], int] = {}
    path: list[int] = []
    for own, outer in zip(trace.spans["name"][chosen].tolist(), parent.tolist(), strict=True):
        above = ROOT if outer == ROOT else path[outer]
        path.append(known.setdefault((above, own), len(known)))
    total = np.bincount(np.array(path, np.int64), weights=time_ns, minlength=len(known))
    return CallTree(
        name=[own for _, own in known],
        parent=[above for above, _ in known],
        own_ns=total.astype(np.int64).tolist(),
    )
