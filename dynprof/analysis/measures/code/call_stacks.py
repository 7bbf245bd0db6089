"""The Python frames that each operator lies in, as one text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.nesting import ROOT
from dynprof.analysis.reading.categories import FRAMES, LABELS

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.analysis.measures.timeline.operators import Calls, Operators
    from dynprof.analysis.reading.trace import Trace

MOST_FRAMES = 100
"""So many of the innermost are named: of recursion, thousands deep, each call has a stack."""
SEPARATOR = ";\r\n"
"""Between two frames, as the vendor has it."""

_NONE = ("", 0)


def call_stacks(trace: Trace, found: Operators, calls: Calls) -> Callable[[int], str]:
    """Return what names the frames that an operator lies in, the innermost first.

    Labels have none: they begin in one frame and end after it.

    Args:
        trace: The trace.
        found: Its operators.
        calls: Its operators and frames.
    """
    if not trace.category(FRAMES).any():
        return lambda _: ""
    labels = trace.category(LABELS)[found.span].tolist()
    outer, names = calls.parent.tolist(), trace.tables["name"]
    code = trace.spans["name"][calls.span].tolist()
    is_frame = trace.category(FRAMES)[calls.span].tolist()
    places = np.searchsorted(calls.span, found.span).tolist()
    known: dict[int, tuple[str, int]] = {ROOT: _NONE}

    def stack(place: int) -> str:
        """Return the frames from a place on outwards."""
        chain = []
        while place not in known:
            chain.append(place)
            place = outer[place]
        text, count = known[place]
        for inner in reversed(chain):
            if is_frame[inner]:
                text, count = _under(names[code[inner]], text, count), count + 1
            known[inner] = text, count
        more = count - MOST_FRAMES
        return f"{text}{SEPARATOR}({more:,} more)" if more > 0 else text

    return lambda operator: "" if labels[operator] else stack(outer[places[operator]])


def _under(frame: str, text: str, count: int) -> str:
    """Return a frame, and the frames around it as far as they are named."""
    if count >= MOST_FRAMES:
        text = text[: text.rfind(SEPARATOR)]
    return f"{frame}{SEPARATOR}{text}" if text else frame
