"""When threads of plain Python have nothing to do, and wait to be given work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.code.user_code import is_users
from dynprof.analysis.measures.timeline.nesting import ROOT
from dynprof.analysis.reading.categories import CALLS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.operators import Calls
    from dynprof.analysis.reading.trace import Trace

_WAITS = re.compile(
    r"(Simple)?Queue\.get \(.*\b(queue|multiprocessing/queues)\.py:\d+\)|"
    r"_?Connection(Base)?\.(recv|recv_bytes|poll) \(.*\bmultiprocessing/connection\.py:\d+\)|"
    r"_queue\.SimpleQueue\.get|(_?socket\.)+_accept|"
    r"select\.(select|(e?poll|devpoll)\.poll|kqueue\.control)"
)
"""As VizTracer names them."""


def waits_for_work(trace: Trace, calls: Calls) -> NDArray[np.bool_]:
    """Return which calls of Python take work from a queue or await a request, or lie in such."""
    named = trace.named(lambda name: bool(_WAITS.fullmatch(name)) and not is_users(name))
    waits, inside = (trace.category(CALLS) & named)[calls.span].tolist(), list[bool]()
    for own, outer in zip(waits, calls.parent.tolist(), strict=True):
        inside.append(own or (outer != ROOT and inside[outer]))
    found = np.zeros(len(named), bool)
    found[calls.span] = inside
    return found
