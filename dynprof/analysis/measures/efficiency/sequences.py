"""Elementwise kernels that follow one another on a stream: one kernel could do for each sequence.

What fusing saves at most of a sequence is all but its longest kernel, whose data one kernel in its
place still has to move.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.reading.categories import KERNELS
from dynprof.analysis.reading.intervals import distinct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

LONGEST_GAP_NS = 100_000
"""After a longer one on its stream another sequence begins: the host was at something else."""
MAX_SEQUENCES = 50
"""So many sequences are told, those first that could save most."""
_LAID_OUT = re.compile(
    r".*?elementwise_kernel\w*<(?:\d+, )*(?:at::native::gpu_kernel_impl(?:_nocast)?<)?"
)
_ELEMENTWISE = ("elementwise", "pointwise", "triton_poi")


@dataclass(frozen=True, eq=False)
class KernelSequence:
    """Kernels that follow one another in the same order, again and again.

    Attributes:
        names: Their names, in order.
        kernels: Places among the trace's spans: a row for each time that they ran.
        begin: When each of these began, in ns.
        busy_ns: For how long their kernels ran each time.
        longest_ns: The longest of the kernels each time.
        gaps_ns: For how long their stream was idle between them each time.
    """

    names: tuple[str, ...]
    kernels: Numbers
    begin: Numbers
    busy_ns: Numbers
    longest_ns: Numbers
    gaps_ns: Numbers

    @property
    def count(self) -> int:
        """How many times they ran."""
        return len(self.kernels)

    @cached_property
    def saved_ns(self) -> int:
        """What one kernel in the place of each could save at most of the kernels' time.

        Nothing where all compute the same, as one for each of many tensors: it has as much to do.
        """
        if len({computed(name) for name in self.names}) == 1:
            return 0
        return int((self.busy_ns - self.longest_ns).sum())


def is_elementwise(name: str) -> bool:
    """Return whether a kernel computes each element by itself, as far as its name tells."""
    lower = name.lower()
    return any(mark in lower for mark in _ELEMENTWISE)


def computed(name: str) -> str:
    """Return what an elementwise kernel of torch's computes, however it is laid out.

    ``vectorized_elementwise_kernel<4, AddFunctor<float>, ...>`` and
    ``unrolled_elementwise_kernel<AddFunctor<float>, ...>`` do the same. Other names stay whole.
    """
    laid_out = _LAID_OUT.match(name)
    if laid_out is None:
        return name
    rest, depth = name[laid_out.end() :], 0
    for place, letter in enumerate(rest):
        if depth == 0 and letter in ",>":
            return rest[:place].rstrip()
        depth += (letter in "<({") - (letter in ">)}")
    return rest


def kernel_sequences(trace: Trace, started: Launches) -> list[KernelSequence]:
    """Return all sequences, those first that could save most.

    Args:
        trace: The trace.
        started: What devices did.
    """
    spans = trace.spans
    columns = (spans[name][started.work] for name in ("start", "stream", "device"))
    work = started.work[np.lexsort(tuple(columns))]
    start, end = spans["start"][work], spans["start"][work] + spans["length"][work]
    fusible = (trace.category(KERNELS) & trace.named(is_elementwise))[work]
    follows = fusible[1:] & fusible[:-1] & (start[1:] - end[:-1] <= LONGEST_GAP_NS)
    for name in ("stream", "device"):
        follows &= spans[name][work][1:] == spans[name][work][:-1]
    found = defaultdict[tuple[int, ...], list["Numbers"]](list)
    for names, rows in _grouped(spans["name"][work], follows):
        found[names].append(work[rows])
    made = [_sequence(trace, names, np.concatenate(rows)) for names, rows in found.items()]
    return sorted(made, key=lambda one: (-one.saved_ns, one.names))


def _grouped(
    name: Numbers, follows: NDArray[np.bool_]
) -> Iterator[tuple[tuple[int, ...], Numbers]]:
    """Yield names and the places that have them, of runs in which each follows the one before.

    A run that repeats some names is as many sequences of these, and one of what is left at its end.
    """
    edges = np.diff(np.concatenate([[0], follows.astype(np.int8), [0]]))
    begins = np.flatnonzero(edges == 1)
    sizes = np.flatnonzero(edges == -1) - begins + 1
    for size in distinct(sizes).tolist():
        places = begins[sizes == size][:, None] + np.arange(size)
        patterns, which = np.unique(name[places], axis=0, return_inverse=True)
        order = np.argsort(which.ravel(), kind="stable")
        parts = np.split(places[order], np.cumsum(np.bincount(which.ravel()))[:-1])
        for pattern, rows in zip(patterns, parts, strict=True):
            period = _period(pattern)
            whole = size - size % period
            yield tuple(pattern[:period].tolist()), rows[:, :whole].reshape(-1, period)
            if size - whole > 1:
                yield tuple(pattern[whole:].tolist()), rows[:, whole:]


def _period(pattern: Numbers) -> int:
    """Return after how many names a run begins again; its size where it never does.

    One name alone is no sequence: a run of it stays whole.
    """
    size = len(pattern)
    if (pattern == pattern[0]).all():
        return size
    for period in range(2, size // 2 + 1):
        if (pattern[period:] == pattern[:-period]).all():
            return period
    return size


def _sequence(trace: Trace, names: tuple[int, ...], kernels: Numbers) -> KernelSequence:
    start, length = trace.spans["start"][kernels], trace.spans["length"][kernels]
    gaps = np.maximum(start[:, 1:] - (start + length)[:, :-1], 0)
    return KernelSequence(
        names=tuple(trace.tables["name"][name] for name in names),
        kernels=kernels,
        begin=start[:, 0],
        busy_ns=length.sum(axis=1),
        longest_ns=length.max(axis=1),
        gaps_ns=gaps.sum(axis=1),
    )
