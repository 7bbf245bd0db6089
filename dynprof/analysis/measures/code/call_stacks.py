"""The Python frames around each operator, as one text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.nesting import ROOT
from dynprof.analysis.reading.categories import FRAMES, LABELS

if TYPE_CHECKING:
    from dynprof.analysis.measures.timeline.operators import Calls, Operators
    from dynprof.analysis.reading.trace import Trace

MAX_FRAMES = 100
"""Number of innermost frames that are named: in deep recursion each call has its own stack."""
SEPARATOR = ";\r\n"
"""The vendor's separator between two frames."""


class CallStacks:
    """The frames around each operator, the innermost first.

    Labels have none: they may begin in a frame and end after it.

    Args:
        trace: The trace.
        found: Its operators.
        calls: Its operators and frames.

    Attributes:
        number: The number of each operator's stack; 0 for none.
    """

    def __init__(self, trace: Trace, found: Operators, calls: Calls) -> None:
        self.number = np.zeros(len(found.span), np.int64)
        self._stacks = [("", 0)]
        frames = trace.category(FRAMES)
        if not frames.any():
            return
        self._parent, self._names = calls.parent.tolist(), trace.tables["name"]
        self._code = trace.spans["name"][calls.span].tolist()
        self._is_frame = frames[calls.span].tolist()
        self._known, self._longer = {ROOT: 0}, dict[tuple[int, int], int]()
        named = ~trace.category(LABELS)[found.span]
        outer = calls.parent[np.searchsorted(calls.span, found.span[named])]
        self.number[named] = [self._number(place) for place in outer.tolist()]

    def __call__(self, operator: int) -> str:
        """Return the frames of an operator."""
        return self.text(int(self.number[operator]))

    def text(self, number: int) -> str:
        """Return the frames of a stack."""
        text, count = self._stacks[number]
        more = count - MAX_FRAMES
        return f"{text}{SEPARATOR}({more:,} more)" if more > 0 else text

    def _number(self, place: int) -> int:
        """Return the number of the stack of a call, given by its index."""
        chain, known = [], self._known
        while place not in known:
            chain.append(place)
            place = self._parent[place]
        number = known[place]
        for inner in reversed(chain):
            if self._is_frame[inner]:
                number = self._under(number, self._code[inner])
            known[inner] = number
        return number

    def _under(self, number: int, code: int) -> int:
        """Return the number of the stack of a frame inside another stack."""
        found = self._longer.setdefault((number, code), len(self._stacks))
        if found == len(self._stacks):
            text, count = self._stacks[number]
            self._stacks.append((_under(self._names[code], text, count), count + 1))
        return found


def _under(frame: str, text: str, count: int) -> str:
    """Return the text of a frame and the frames around it, up to the limit."""
    if count >= MAX_FRAMES:
        text = text[: text.rfind(SEPARATOR)]
    return f"{frame}{SEPARATOR}{text}" if text else frame
