"""The vendor's ``analysis.db`` of one trace, and of all ranks of a window.

It has the time of steps, and the communication between ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.timeline.steps import HOST
from dynprof.analysis.vendor_files.communication import (
    BANDWIDTH,
    OPERATION,
    SIZE,
    TIME,
    TRANSPORT,
    communication_matrix,
    communication_ops,
)
from dynprof.analysis.vendor_files.database import INTEGER, NUMERIC, TEXT, fill_database
from dynprof.analysis.vendor_files.json_files import make_output_folder
from dynprof.analysis.vendor_files.tables import includes
from dynprof.runtime.safe_write import file_for_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.vendor_files.database import Columns

    Query = Callable[[str], Iterable[tuple[Any, ...]]]

NAME = "analysis.db"


def _numerics(*names: str) -> Columns:
    return tuple((name, NUMERIC) for name in names)


def _texts(*names: str) -> Columns:
    return tuple((name, TEXT) for name in names)


STEP_TIMES = _numerics(
    "computing", "communication_not_overlapped", "overlapped", "communication", "free", "stage",
    "bubble", "communication_not_overlapped_and_exclude_receive", "preparing",
)  # fmt: skip
"""The vendor's times of a step, in us."""
ANALYSIS_TABLES: dict[str, Columns] = {
    "StepTraceTime": (("deviceId", INTEGER), ("step", TEXT), *STEP_TIMES),
    "CommAnalyzerTime": (
        *_texts("hccl_op_name", "group_name"),
        *_numerics("start_timestamp", "elapse_time", "transit_time", "wait_time",
                   "synchronization_time", "idle_time"),
        *_texts("step", "type"),
    ),
    "CommAnalyzerMatrix": (
        *_texts("hccl_op_name", "group_name", "src_rank", "dst_rank", "transport_type"),
        *_numerics("transit_size", "transit_time", "bandwidth"),
        *_texts("step", "type", "op_name"),
    ),
}  # fmt: skip


CLUSTER_TABLES: dict[str, Columns] = {
    "ClusterStepTraceTime": (("step", TEXT), ("type", TEXT), ("index", TEXT), *STEP_TIMES),
}
_STEPS = """
SELECT rank, step, computing_ns, communication_ns, overlapped_ns, free_ns, stage_ns,
    preparing_ns, nullif(receiving_ns, -1)
FROM steps ORDER BY rank, step, device
"""


def write_analysis_database(measured: MeasuredTrace, path: Path) -> None:
    """Write the tables that the trace's level has; values that the trace lacks are null.

    Raises:
        OSError: The file cannot be written.
    """
    tables: dict[str, Any] = {"StepTraceTime": _steps(measured)}
    if includes(measured, "Level1"):
        tables["CommAnalyzerTime"] = _times(measured)
        tables["CommAnalyzerMatrix"] = _matrix(measured)
    fill_database(path, tables, ANALYSIS_TABLES)


def step_times(
    *,
    computing: int,
    communication: int,
    overlapped: int,
    free: int,
    stage: int,
    preparing: int,
    receiving: int | None,
) -> tuple[float | None, ...]:
    """Return a step's times in the vendor's order, in us, from ours in ns."""
    alone = communication - overlapped
    without = None if receiving is None else max(alone - receiving, 0)
    rest = None if receiving is None else stage - receiving
    times = (
        computing, alone, overlapped, communication, free, rest, receiving, without, preparing,
    )  # fmt: skip
    return tuple(None if time is None else time / 1000 for time in times)


def _steps(measured: MeasuredTrace) -> Iterator[tuple[Any, ...]]:
    for step in measured.steps:
        times = step_times(
            computing=step.computing, communication=step.communication,
            overlapped=step.overlapped, free=step.free, stage=step.stage,
            preparing=step.preparing, receiving=step.receiving,
        )  # fmt: skip
        number = None if step.number is None else str(step.number)
        yield (-1 if step.device == HOST else step.device, number, *times)


def _times(measured: MeasuredTrace) -> Iterator[tuple[Any, ...]]:
    for one in communication_ops(measured):
        times = (one.begin_ns / 1000, one.length_ns / 1e6, None, None, None, None)
        yield (one.name, one.group, *times, one.step, one.kind)


def _matrix(measured: MeasuredTrace) -> Iterator[tuple[Any, ...]]:
    for step, kinds in communication_matrix(measured).items():
        for kind, operations in kinds.items():
            for key, links in operations.items():
                name, _, group = key.partition("@")
                for link, entry in links.items():
                    moved = (entry[part] for part in (TRANSPORT, SIZE, TIME, BANDWIDTH))
                    ends = link.split("-")
                    yield (name, group, *ends, *moved, step, kind, entry.get(OPERATION, ""))


def write_ranks_database(query: Query, folder: Path) -> Iterator[Path]:
    """Write the steps of all ranks of a window; yield the path.

    Args:
        query: Answers SQL over the steps of all ranks.
        folder: The folder for the database.

    Raises:
        OSError: The file cannot be written.
    """
    make_output_folder(folder)
    path = folder / NAME
    with file_for_library(path) as made:
        fill_database(made, {"ClusterStepTraceTime": _steps_of_ranks(query)}, CLUSTER_TABLES)
    yield path


def _steps_of_ranks(query: Query) -> Iterator[tuple[Any, ...]]:
    for rank, step, computing, communication, overlapped, *rest in query(_STEPS):
        free, stage, preparing, receiving = rest
        times = step_times(
            computing=computing, communication=communication, overlapped=overlapped, free=free,
            stage=stage, preparing=preparing, receiving=receiving,
        )  # fmt: skip
        yield (None if step < 0 else str(step), "rank", str(rank), *times)
