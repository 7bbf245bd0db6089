"""Sequences of elementwise kernels on a stream that could be fused into one kernel each.

Fusing saves at most all but the longest kernel: a fused kernel must still move that kernel's data.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import in_flight
from dynprof.analysis.reading.events import KERNELS
from dynprof.analysis.reading.spans import distinct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

LONGEST_GAP_NS = 100_000
"""Longest gap within a sequence. After a longer one the host was busy with other work."""
MAX_SEQUENCES = 50
"""Number of sequences that are shown, the largest possible saving first."""
_LAID_OUT = re.compile(
    r".*?elementwise_kernel\w*<(?:\d+, )*(?:at::native::gpu_kernel_impl(?:_nocast)?<)?"
)
_ELEMENTWISE = ("elementwise", "pointwise", "triton_poi")


@dataclass(frozen=True, eq=False)
class KernelSequence:
    """A sequence of kernels that ran once or repeatedly in the same order.

    Attributes:
        names: Their names, in order.
        kernels: Indices among the trace's spans; a row for each run of the sequence.
        begin: When each run began, in ns.
        busy_ns: How long the kernels of each run took.
        longest_ns: The longest kernel of each run.
        gaps_ns: How long the stream was idle between the kernels of each run.
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
        """The kernel time that fusing could save at most, in ns.

        It is 0 if all compute the same, such as one for each of many tensors: a fused kernel would
        have as much to do.
        """
        if len({computed(name) for name in self.names}) == 1:
            return 0
        return int((self.busy_ns - self.longest_ns).sum())


def is_elementwise(name: str) -> bool:
    """Return whether a kernel is elementwise, as far as its name tells."""
    lower = name.lower()
    return any(mark in lower for mark in _ELEMENTWISE)


def computed(name: str) -> str:
    """Return what an elementwise kernel of torch computes, independent of its layout.

    ``vectorized_elementwise_kernel<4, AddFunctor<float>, ...>`` and
    ``unrolled_elementwise_kernel<AddFunctor<float>, ...>`` do the same. Other names are unchanged.
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
    """Return all sequences, the largest possible saving first.

    Args:
        trace: The trace.
        started: Device activities and their launches.
    """
    spans = trace.spans
    columns = (spans[name][started.work] for name in ("start", "stream", "device"))
    work = started.work[np.lexsort(tuple(columns))]
    start, end = spans["start"][work], spans["start"][work] + spans["length"][work]
    fusible = (trace.category(KERNELS) & trace.named(is_elementwise))[work]
    follows = fusible[1:] & fusible[:-1] & (start[1:] - end[:-1] <= LONGEST_GAP_NS)
    for name in ("stream", "device"):
        follows &= spans[name][work][1:] == spans[name][work][:-1]
    before = np.zeros(len(spans["start"]), bool)
    before[started.work[in_flight(trace, started)]] = True  # belongs to no step
    follows &= before[work[1:]] == before[work[:-1]]
    found = defaultdict[tuple[int, ...], list["Numbers"]](list)
    for names, rows in _grouped(spans["name"][work], follows):
        found[names].append(work[rows])
    made = [_sequence(trace, names, np.concatenate(rows)) for names, rows in found.items()]
    return sorted(made, key=lambda one: (-one.saved_ns, one.names))


def _grouped(
    name: Numbers, follows: NDArray[np.bool_]
) -> Iterator[tuple[tuple[int, ...], Numbers]]:
    """Yield the names of sequences and the indices of their kernels.

    A run of kernels that repeats some names is split into one sequence for each repetition, and one
    for the rest at its end.
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
    """Return the period of the names in a run; its size if it has none.

    A run of a single name is not split, since one kernel is no sequence.
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
