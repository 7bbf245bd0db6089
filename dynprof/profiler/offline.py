"""The offline entry of analysis."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.profiler.caution import caution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynprof.profiler.names import ExportType


def analyse(
    profiler_path: str | os.PathLike[str],
    max_process_number: int | None = None,
    export_type: ExportType | str | Sequence[ExportType | str] | None = None,
) -> list[Path]:
    """Make what can be made from captures that were saved: folded stacks, memory timelines.

    Args:
        profiler_path: A trace, or a folder with captures in it, at any depth.
        max_process_number: How many processes at most; left out, one for each processor.
        export_type: The form of the tables: this version of dynprof makes none yet.

    Returns:
        The files that were written, in ``analysis`` beside each trace.

    Raises:
        CaptureError: There is no capture.
    """
    from dynprof.analysis.captures import analyse_all

    most = os.cpu_count() or 1
    if max_process_number is not None and not _is_count(max_process_number):
        caution(f"max_process_number={max_process_number!r} is no positive number; {most} is taken")
        max_process_number = None
    elif max_process_number is not None and max_process_number > most:
        caution(f"max_process_number={max_process_number} is more than {most} processors; {most}")
    if export_type is not None:
        caution(f"export_type={export_type!r} has no effect: no tables are made yet")
    return analyse_all(Path(profiler_path))


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0
