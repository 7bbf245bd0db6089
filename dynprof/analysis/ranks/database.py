"""The ranks of a window in one ``analysis.db``: a table of the vendor's analysis of clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.analysis.output.analysis_database import NAME, STEP_TIMES, step_times
from dynprof.analysis.output.database import fill_database
from dynprof.analysis.output.device_rows import TEXT
from dynprof.analysis.output.whole_files import make_output_folder
from dynprof.runtime.output import file_for_library

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dynprof.analysis.output.device_rows import Columns
    from dynprof.analysis.ranks.comparison import Ranks

CLUSTER_TABLES: dict[str, Columns] = {
    "ClusterStepTraceTime": (("step", TEXT), ("type", TEXT), ("index", TEXT), *STEP_TIMES),
}

_STEPS = """
SELECT rank, step, computing_ns, communication_ns, overlapped_ns, free_ns, stage_ns,
    preparing_ns, nullif(receiving_ns, -1)
FROM steps ORDER BY rank, step, device
"""


def write_ranks_database(ranks: Ranks, folder: Path) -> Iterator[Path]:
    """Write the steps of all ranks; yield the path.

    Args:
        ranks: The ranks.
        folder: The folder for the database.

    Raises:
        OSError: The file cannot be written.
    """
    make_output_folder(folder)
    path = folder / NAME
    with file_for_library(path) as made:
        fill_database(made, {"ClusterStepTraceTime": _steps(ranks)}, CLUSTER_TABLES)
    yield path


def _steps(ranks: Ranks) -> Iterator[tuple[Any, ...]]:
    for rank, step, computing, communication, overlapped, *rest in ranks.query(_STEPS):
        free, stage, preparing, receiving = rest
        times = step_times(
            computing=computing, communication=communication, overlapped=overlapped, free=free,
            stage=stage, preparing=preparing, receiving=receiving,
        )  # fmt: skip
        yield (None if step < 0 else str(step), "rank", str(rank), *times)
