"""Traces of other profilers and converters, in the terms of Kineto's.

- torch_npu's ``analyse()`` writes ``trace_view.json``. Its processes tell what an event is.
- nsys2json names kernels ``cuda``, and calls ``cuda_api``.
- ``torch.autograd.profiler`` without Kineto has two processes: CPU functions and CUDA functions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dynprof.analysis.reading.events import (
    CANN_CALL,
    LAUNCHES,
    NONE,
    ON_DEVICE,
    OPERATORS,
    REPETITION,
    Names,
)
from dynprof.analysis.reading.spans import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.reading.columns import Columns, FlowEnd, Labels, Table

    Numbers = NDArray[np.int64]
    Tables = dict[str, Table]

OPERATOR, KERNEL, COPY, MEMSET, CALL = (
    "cpu_op",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
)
_ON_CUDA = "CUDA functions"
_FUNCTIONS = {"CPU functions": OPERATOR, _ON_CUDA: KERNEL}
"""Categories by the process of the legacy profiler."""
_PYTHON, _HARDWARE = "Python", "Ascend Hardware"
_COMMUNICATION: Names = frozenset({"Communication", "HCCL"})
"""Names of the process of collectives; CANN before 8 called it HCCL."""
_RUNTIME: Names = frozenset({"CANN", "AscendCL"})
_SUMS: Names = frozenset({"Overlap Analysis"})
_OF_NPU = _COMMUNICATION | _RUNTIME | _SUMS | {_HARDWARE}
_COMMUNICATES = re.compile(r"COMMUNICATION|HCCL|hcom_|hccl", re.ASCII)
_CONTROLS = re.compile(
    r"EVENT|NOTIFY|Notify_|WAIT|RECORD|WRITE_VALUE|PLACE_HOLDER|PROFILER|MODEL_|STREAM_|LABEL_",
    re.ASCII,
)
"""Tasks by which streams wait for each other, or that start others. They compute nothing."""
_COPIES = re.compile(r"MEMCPY|DMA", re.ASCII)
_MEMSETS = re.compile(r"MEMSET", re.ASCII)


class _Row(NamedTuple):
    """What tells the category of an event."""

    category: str
    pid: int | str
    tid: int | str
    process: str
    thread: str
    task: str


def translate(spans: Columns, tables: Tables, labels: Labels, flows: Sequence[FlowEnd]) -> None:
    """Change columns in place, so that events of other profilers look like Kineto's.

    Args:
        spans: The spans, in any order.
        tables: The values that their columns index; new ones are added.
        labels: The names of processes and threads.
        flows: The ends of arrows, in the order of the file.
    """
    _set_categories(spans, tables, labels)
    _place_on_devices(spans, tables, labels)
    if _HARDWARE in labels.values():
        _join_threads(spans, tables, labels)
        _unlink_collectives(spans, tables, labels)
    if flows:
        _set_operators(spans, tables, flows)


def _set_categories(spans: Columns, tables: Tables, labels: Labels) -> None:
    """Give each event the category that Kineto would give it."""
    categories, threads = list(tables["category"]), list(tables["thread"])
    names, details = list(tables["name"]), list(tables["details"])
    ours = np.array([labels.get((pid, None)) in _OF_NPU for pid, _ in threads], bool)
    foreign = np.array([one in ("", "cuda", "cuda_api") for one in categories], bool)
    chosen = np.flatnonzero(foreign[spans["category"]] | ours[spans["thread"]])
    sizes = (len(categories), len(threads), len(details), len(names))
    parts = tuple(spans[name][chosen] for name in ("category", "thread", "details", "name"))
    keys, place = np.unique(np.ravel_multi_index(parts, sizes), return_inverse=True)
    of_communication = not _COMMUNICATION.isdisjoint(labels.values())
    found = []
    for category, thread, detail, name in zip(*np.unravel_index(keys, sizes), strict=True):
        pid, tid = threads[thread]
        task = details[detail].task_type or names[name]
        process, label = labels.get((pid, None), ""), labels.get((pid, tid), "")
        row = _Row(categories[category], pid, tid, process, label, task)
        repeated = of_communication and bool(_COMMUNICATES.search(f"{task} {names[name]}"))
        found.append(tables["category"][_category(row, repeated=repeated)])
    spans["category"][chosen] = np.array(found, np.int64)[place]


def _category(row: _Row, *, repeated: bool) -> str:
    """Return the category of an event.

    Args:
        row: What is known about it.
        repeated: Whether a process of its own has communication of this kind too.
    """
    if row.process == _HARDWARE:
        return REPETITION if repeated else _category_of_task(row)
    if row.process in _COMMUNICATION:  # other threads have the parts of each collective
        whole = not row.thread or "Communication" in row.thread
        return KERNEL if whole else REPETITION
    if row.process in _RUNTIME:
        return CANN_CALL
    if row.process in _SUMS:
        return REPETITION
    if row.category == "cuda" and str(row.tid).startswith("Stream"):
        return KERNEL
    if row.category == "cuda_api":
        return CALL
    return row.category or _FUNCTIONS.get(str(row.pid), "")


def _category_of_task(row: _Row) -> str:
    """Return the category of a task of an NPU."""
    if row.thread.startswith("Step Trace") or _CONTROLS.search(row.task):
        return REPETITION
    if _MEMSETS.search(row.task):
        return MEMSET
    return COPY if _COPIES.search(row.task) else KERNEL


def _place_on_devices(spans: Columns, tables: Tables, labels: Labels) -> None:
    """Set the device and stream of work where process and thread are not their numbers.

    The first NPU is 0, as the trace does not have its number. Communication has threads of its own,
    so its streams follow those of the hardware. The legacy profiler has a thread for each device.
    """
    threads = list(tables["thread"])
    hardware = [pid for (pid, tid), name in labels.items() if tid is None and name == _HARDWARE]
    others = [pid for (pid, tid), name in labels.items() if tid is None and name in _COMMUNICATION]
    npus = {pid: number for pids in (hardware, others) for number, pid in enumerate(pids)}
    own = [tid for pid, tid in threads if pid in hardware and isinstance(tid, int)]
    after = max((tid for tid in own if 0 <= tid < 1 << 31), default=-1) + 1
    streams = {pair: after + n for n, pair in enumerate(t for t in threads if t[0] in others)}
    devices = [
        tid if pid == _ON_CUDA and isinstance(tid, int) else npus.get(pid, NONE)
        for pid, tid in threads
    ]
    placed = {"device": devices, "stream": [streams.get(pair, NONE) for pair in threads]}
    for column, values in placed.items():
        found = np.array(values, np.int64)[spans["thread"]]
        spans[column] = np.where(found >= 0, found, spans[column])


def _join_threads(spans: Columns, tables: Tables, labels: Labels) -> None:
    """Move calls of an NPU's runtime to the threads of Python that made them.

    The trace has a process for each layer. The numbers of threads are those of the system.
    """
    pids = [pid for (pid, tid), name in labels.items() if tid is None and name == _PYTHON]
    if len(pids) != 1:
        return
    moved = [
        tables["thread"][(pids[0], tid)] if labels.get((pid, None)) in _RUNTIME else place
        for place, (pid, tid) in enumerate(list(tables["thread"]))
    ]
    spans["thread"] = np.array(moved, np.int64)[spans["thread"]]


def _unlink_collectives(spans: Columns, tables: Tables, labels: Labels) -> None:
    """Remove the correlation ids of collectives that no call has.

    Such an id links them to tasks of the hardware. It does not say that their launch is missing.
    """
    rows = [labels.get((pid, None)) in _COMMUNICATION for pid, _ in tables["thread"]]
    collective = np.array(rows, bool)[spans["thread"]]
    calls = np.isin(spans["category"], _codes(tables, LAUNCHES))
    known = np.isin(spans["correlation"], spans["correlation"][calls])
    spans["correlation"][collective & ~known] = NONE


def _codes(tables: Tables, kinds: Names) -> list[int]:
    """Return the indexes of the categories of a kind."""
    return [code for name, code in tables["category"].items() if name.lower() in kinds]


def _set_operators(spans: Columns, tables: Tables, flows: Iterable[FlowEnd]) -> None:
    """Give an operator and the work that its arrows lead to the same external id."""
    open_ones: dict[int | str, FlowEnd] = {}
    pairs = []
    for end in flows:
        if end.begins:
            open_ones[end.number] = end
        elif (begin := open_ones.get(end.number)) is not None:
            pairs.append((begin, end))
    hosts = _starting_at(spans, tables, OPERATORS, [begin for begin, _ in pairs])
    activities = _starting_at(spans, tables, ON_DEVICE, [end for _, end in pairs])
    known = (hosts >= 0) & (activities >= 0)
    ids = spans["external_id"].max(initial=0) + 1 + hosts[known]
    spans["external_id"][hosts[known]] = ids
    spans["external_id"][activities[known]] = ids


def _starting_at(spans: Columns, tables: Tables, kinds: Names, ends: Sequence[FlowEnd]) -> Numbers:
    """Return the span of some categories at each end of an arrow; -1 if there is none.

    Of several spans that start together, it is the shortest.
    """
    chosen = np.flatnonzero(np.isin(spans["category"], _codes(tables, kinds)))
    thread = np.array([tables["thread"].get(end.thread, -1) for end in ends], np.int64)
    when = np.array([end.start for end in ends], np.int64)
    result = np.full(len(ends), -1, np.int64)
    for code in distinct(thread).tolist():
        wanted = np.flatnonzero(thread == code)
        here = chosen[spans["thread"][chosen] == code]
        if not len(here):
            continue
        here = here[np.lexsort((-spans["length"][here], spans["start"][here]))]
        starts = spans["start"][here]
        last = np.searchsorted(starts, when[wanted], side="right") - 1
        result[wanted] = np.where(starts[last] == when[wanted], here[last], -1)
    return result
