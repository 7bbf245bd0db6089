"""Which communication is a message to one rank or from one.

NCCL's kernels for sends, receives and all-to-all have the same name. The collective's name that
Kineto writes tells them apart, else the operator or label that launched them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN as NO_SPAN
from dynprof.analysis.measures.timeline.launches import Launches, launched_by
from dynprof.analysis.reading.events import LABELS, OPERATORS
from dynprof.analysis.reading.spans import parents

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

OTHER, SEND, RECEIVE, UNKNOWN = range(4)
"""Directions of a span: no message or several at once; from this rank; to it; unknown."""
_OPERATION = re.compile(r"(?:c10d|nccl|rccl|xccl|hccl|gloo|mpi|ucc)::?_*(\w*)", re.IGNORECASE)
_SENDING, _RECEIVING = ("send", "isend"), ("recv", "receive", "irecv")
_BOTH = re.compile(r"send_?recv|send_?receive|batch_isend", re.IGNORECASE)


def directions(trace: Trace, started: Launches) -> Numbers:
    """Return the direction of each span: ``SEND``, ``RECEIVE``, ``UNKNOWN`` or ``OTHER``.

    Args:
        trace: The trace.
        started: Device activities and their launches.
    """
    spans, names = trace.spans, trace.tables["name"]
    result = np.full(len(spans["start"]), OTHER, np.int64)
    by_operation = np.array([_operation_direction(name) for name in names] or [OTHER], np.int64)
    labels = trace.category(LABELS)
    result[labels] = by_operation[spans["name"][labels]]
    kernels = np.flatnonzero(trace.communication)
    if len(kernels):
        by_name = np.array([_kernel_direction(name) for name in names], np.int64)
        result[kernels] = by_name[spans["name"][kernels]]
        _by_collective(trace, kernels, result)
        _by_launch(trace, started, by_operation, result)
    return result


def _operation_direction(name: str) -> int:
    """Return the direction that the name of an operator or label tells."""
    found = _OPERATION.match(name)
    return _verb_direction(found[1].lower()) if found else OTHER


def _verb_direction(word: str) -> int:
    if _BOTH.match(word):
        return OTHER
    return SEND if word.startswith(_SENDING) else RECEIVE if word.startswith(_RECEIVING) else OTHER


def _kernel_direction(name: str) -> int:
    """Return the direction that a kernel's name tells."""
    lower = name.lower()
    if lower.startswith("hcom_batchsendrecv"):
        return OTHER
    if _BOTH.search(lower):
        return UNKNOWN
    sends, receives = "send" in lower, "recv" in lower or "receive" in lower
    return SEND if sends else RECEIVE if receives else OTHER


def _by_collective(trace: Trace, kernels: Numbers, result: Numbers) -> None:
    """Set the direction by the collective's name, if there is one."""
    codes = [
        _verb_direction(details.collective.lower()) if details.collective else UNKNOWN
        for details in trace.tables["details"]
    ]
    direction = np.array(codes, np.int64)[trace.spans["details"][kernels]]
    result[kernels] = np.where(direction == UNKNOWN, result[kernels], direction)


def _by_launch(trace: Trace, started: Launches, by_operation: Numbers, result: Numbers) -> None:
    """Set a still unknown direction by the innermost operator or label that launched the kernel."""
    spans = trace.spans
    left = result[started.work] == UNKNOWN
    if not left.any():
        return
    asking = trace.category(OPERATORS, LABELS)
    asking &= trace.named(lambda name: _OPERATION.match(name) is not None)
    chosen = np.flatnonzero(asking)
    parent = parents(*(spans[name][chosen] for name in ("start", "length", "thread")))
    by = launched_by(trace, Launches(started.work[left], started.call[left]), chosen, parent)
    known = by != NO_SPAN
    result[started.work[left][known]] = by_operation[spans["name"][chosen[by[known]]]]
