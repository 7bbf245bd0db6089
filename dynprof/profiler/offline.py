"""The offline analysis of captures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.errors import CaptureError, with_paths
from dynprof.profiler.strictness import Strictness
from dynprof.runtime.plural import counted
from dynprof.runtime.standard_streams import warn_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynprof.profiler.enums import ExportType


def analyse(
    profiler_path: str | os.PathLike[str],
    max_process_number: int | None = None,
    export_type: ExportType | str | Sequence[ExportType | str] | None = None,
    *,
    strict: bool = False,
) -> list[Path]:
    """Write tables, folded stacks and memory timelines for saved captures.

    Large captures are analysed in parallel, in new processes that do not import the script.

    Args:
        profiler_path: A trace, or a folder with captures at any depth.
        max_process_number: Most processes to use; default: one per CPU, fewer for small
            captures.
        export_type: The format of the tables: ``text``, ``db`` or a list of both; default: the one
            in the config of each capture.
        strict: Raise if an argument is wrong or something fails. Otherwise this is a warning, as
            with torch_npu.

    Returns:
        The written files, in ``analysis`` next to each trace.

    Raises:
        CaptureError: ``strict`` is on, and there is no capture or some cannot be read; the others
            were analysed.
        ValueError: ``strict`` is on, and an argument has a wrong value.
    """
    made: list[Path] = []
    strictness = Strictness("analyse", raises=strict)

    def do() -> None:
        processes = _count(max_process_number, strictness)
        _analyse(Path(profiler_path), processes, _types(export_type, strictness), made)

    strictness.attempt("analyse()", do)
    return made


def _analyse(
    path: Path, processes: int | None, types: tuple[str, ...] | None, made: list[Path]
) -> None:
    from dynprof.analysis.runs.many_traces import analyse_each
    from dynprof.analysis.runs.one_trace import traces_in

    outcome = analyse_each(traces_in(path), types, processes=processes)
    made += outcome.made
    for trace, truncated in outcome.truncated.items():
        warn_script(f"{trace} is not complete: {truncated}")
    if outcome.problems:
        raise CaptureError("; ".join(with_paths(outcome.problems)))


def _count(asked: object, strictness: Strictness) -> int | None:
    most = os.cpu_count() or 1
    if asked is None:
        return None
    if not isinstance(asked, int) or isinstance(asked, bool) or asked <= 0:
        text = f"max_process_number={asked!r} is not a positive whole number"
        strictness.reject(text, f"{most} is used")
        return None
    if asked > most:
        there = counted(most, "CPU")
        warn_script(f"max_process_number={asked} is too many for {there}; {most} is used")
    return min(asked, most)


def _types(asked: object, strictness: Strictness) -> tuple[str, ...] | None:
    from dynprof.analysis.runs.one_trace import EXPORT_TYPES

    if asked is None:
        return None
    named = asked if isinstance(asked, (list, tuple, set)) else [asked]
    found = [getattr(kind, "value", kind) for kind in named]
    if found and all(kind in EXPORT_TYPES for kind in found):
        return tuple(dict.fromkeys(map(str, found)))
    text = f"export_type={asked!r} is none of {', '.join(EXPORT_TYPES)}"
    strictness.reject(text, "the one in the config of each capture is used")
    return None
