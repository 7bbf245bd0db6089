"""Operators and Python frames by call path, over all their runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.operators import device_time
from dynprof.analysis.measures.timeline.overhead import overhead, profiler_of
from dynprof.analysis.reading.events import CALLS, FRAMES, LABELS, OPERATORS
from dynprof.analysis.reading.spans import ROOT, distinct, own_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.operators import Calls, Operators
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.trace import Trace

MAX_LEVELS = 400
"""Depth limit of the tree. Deeper calls, in recursion, count for their ancestor on this level."""
MAX_FRAMES = 100
"""Number of innermost frames that are named: in deep recursion each call has its own stack."""
SEPARATOR = ";\r\n"
"""The vendor's separator between two frames."""


@dataclass(frozen=True)
class CallTree:
    """Every path of frames and operators once, parents first.

    Attributes:
        name: Index in the trace's names of the last element of each path.
        parent: Index here of the parent path of each; -1 for none.
        own_ns: Time without that of children.
    """

    name: list[int]
    parent: list[int]
    own_ns: list[int]


@dataclass(frozen=True)
class CallPaths:
    """The path of each operator and frame of threads that ran an operator.

    A thread that runs no operator mostly waits. The work of a profiler itself is one path, under
    the profiler's name.

    Attributes:
        span: Indices into the trace's spans.
        within: Index here of the parent of each; -1 for none.
        path: The path of each.
        name: Index in the trace's names of the last element of each path.
        parent: The parent of each path; -1 for none.
    """

    span: NDArray[np.int64]
    within: NDArray[np.int64]
    path: NDArray[np.int64]
    name: list[int]
    parent: list[int]


def call_paths(trace: Trace, calls: Calls) -> CallPaths:
    """Return the paths of operators and frames."""
    chosen, parent = _working(trace, calls)
    known = dict[int, int]()
    path, levels = list[int](), list[int]()
    names, owners = _names(trace, chosen)
    count = len(trace.tables["name"])
    for own, outer in zip(names, parent.tolist(), strict=True):
        above = ROOT if outer == ROOT else path[outer]
        if above != ROOT and levels[above] == MAX_LEVELS:
            path.append(above)
            continue
        place = known.setdefault(above * count + own, len(levels))
        if place == len(levels):
            level = 1 if above == ROOT else levels[above] + 1
            levels.append(MAX_LEVELS if own in owners else level)
        path.append(place)
    return CallPaths(
        span=chosen,
        within=parent,
        path=np.array(path, np.int64),
        name=[key % count for key in known],
        parent=[key // count for key in known],
    )


def call_tree(
    trace: Trace, paths: CallPaths, steps: Sequence[MarkedStep], on_device: Launches | None = None
) -> CallTree:
    """Return the paths of all threads together, with the time within the steps.

    Frames outside the steps, or beyond their ends, come from switching the profiler on and off.

    Args:
        trace: The trace.
        paths: The paths of its operators and frames.
        steps: The steps.
        on_device: Device activities, to count the device time launched instead of host time.
    """
    chosen, parent = paths.span, paths.within
    begin = min((step[1] for step in steps), default=0)
    end = max((step[1] + step[2] for step in steps), default=0)
    if on_device:
        time_ns, _ = device_time(trace, on_device, chosen, parent)
    else:
        start, length = trace.spans["start"][chosen], trace.spans["length"][chosen]
        lasts = np.minimum(start + length, end) - np.maximum(start, begin)
        time_ns = np.maximum(own_time(np.maximum(lasts, 0), parent), 0)
    total = np.bincount(paths.path, weights=time_ns, minlength=len(paths.name))
    return CallTree(paths.name, paths.parent, total.astype(np.int64).tolist())


def _names(trace: Trace, chosen: NDArray[np.int64]) -> tuple[list[int], set[int]]:
    """Return the names of spans, with those of a profiler's frames replaced; and the new names."""
    names, frames = trace.spans["name"][chosen], overhead(trace)[chosen]
    owners = dict[int, int]()
    for name in distinct(names[frames]).tolist():
        owners[name] = trace.place_of_name(profiler_of(trace.tables["name"][name]))
    return [owners.get(name, name) for name in names.tolist()], set(owners.values())


def _working(trace: Trace, calls: Calls) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the spans of threads that ran operators, and the parent of each."""
    thread = trace.spans["thread"]
    working = distinct(thread[trace.category(OPERATORS, CALLS)])
    kept = np.isin(thread[calls.span], working)
    if not len(working) or kept.all():
        return calls.span, calls.parent
    places = np.cumsum(kept) - 1
    parent = calls.parent[kept]
    return calls.span[kept], np.where(parent == ROOT, ROOT, places[parent])


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
