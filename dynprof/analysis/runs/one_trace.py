"""Finds traces, and writes the results of one."""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.analysis.measures.difference import against_baseline
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.memory import write_memory_timeline
from dynprof.analysis.rank_comparison.parquet import write_events, write_rank_tables
from dynprof.analysis.reading.chunks import TraceFile
from dynprof.analysis.report import REPORT, write_report
from dynprof.analysis.sql_views import TRACE_VIEWS, write_view
from dynprof.analysis.vendor_files.analysis_database import NAME as ANALYSIS_DATABASE
from dynprof.analysis.vendor_files.analysis_database import write_analysis_database
from dynprof.analysis.vendor_files.communication import bandwidth_tables
from dynprof.analysis.vendor_files.database import write_database
from dynprof.analysis.vendor_files.json_files import (
    FOLDER,
    check_space,
    make_output_folder,
    write_json_files,
)
from dynprof.analysis.vendor_files.stacks import write_stacks
from dynprof.analysis.vendor_files.tables import (
    host_tables,
    is_written,
    memory_tables,
    operator_tables,
    own_tables,
    path_tables,
    sequence_tables,
    write_tables,
)
from dynprof.errors import CaptureError
from dynprof.runtime.job_files import age_key, files_below, folders_below
from dynprof.runtime.layout import (
    BASELINES_NAME,
    CONFIG_NAME,
    INFO_DIR,
    SCHEMA_NAME,
    STATUS_DIR,
    VENDORS_ANALYSIS_DIR,
    VENDORS_FOLDER,
    VENDORS_VIEW,
    is_vendors_view,
    rank_in_name,
    trace_stem,
)
from dynprof.runtime.safe_write import file_for_library

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

OUTPUT = VENDORS_ANALYSIS_DIR
"""The vendor's name for the folder of its tables."""
EXPORT_TYPES = ("text", "db")
OPERATORS, VIEWS, MEMORY, RANK = "operators", "views", "memory", "rank"
FILES, PATH = "files", "critical path"
PARTS = (RANK, PATH, OPERATORS, VIEWS, MEMORY, FILES)
"""Parts of the work on a trace, in order. Views are the report, results from the same measures,
and the database. Events belong to memory. Files are the vendor's json."""
_ENDINGS = ("trace.json", "trace.json.gz")
_CONFIGS = CONFIG_NAME, BASELINES_NAME, SCHEMA_NAME  # A config may hold what a trace holds: [].
_OTHER_ENDINGS = (".json", ".json.gz")


def view_part(view: str) -> str:
    """Return the part of the work that writes a table of SQL's, one of :data:`TRACE_VIEWS`."""
    return f"view {view}"


def traces_in(path: Path) -> list[Path]:
    """Return the traces in a folder, at any depth, or ``path`` itself if it is a file.

    Raises:
        CaptureError: There is none.
    """
    if isinstance(path, Path) and path.is_symlink():
        path = path.resolve()  # the user named it; links inside a folder are not followed
    if path.is_file():
        return [path]
    found = sorted(filter(_is_trace, files_below(path)))
    found = [p for p in found if p.parent.name != INFO_DIR]  # that has operators' arguments
    found = found or sorted(file for file in files_below(path) if is_vendors_view(file))
    found = found or sorted(filter(_holds_events, files_below(path)))
    if not found and not path.exists():
        raise CaptureError(f"{path}: there is no such file or folder")
    if not found:
        raise CaptureError(f"{path} holds no trace: {_why_none(path)}")
    return found


def _is_trace(path: Path) -> bool:
    """Return whether a file is a trace by its name, or has a rank in its name and events inside."""
    if path.name.endswith(_ENDINGS):
        return True
    return rank_in_name(path.name) is not None and _holds_events(path)


def _holds_events(path: Path) -> bool:
    """Return whether a file of any other name is a trace, and no result of an analysis."""
    is_result = path.parent.name in (INFO_DIR, STATUS_DIR, VENDORS_ANALYSIS_DIR, FOLDER)
    if is_result or path.name in _CONFIGS:
        return False
    if not path.name.endswith(_OTHER_ENDINGS) or not isinstance(path, Path):
        return False
    try:
        TraceFile(path)
    except (CaptureError, OSError):
        return False
    return True


def _why_none(path: Path) -> str:
    named = (folder for folder in folders_below(path) if folder.name.endswith(VENDORS_FOLDER))
    # A folder with INFO_DIR is dynprof's own with the vendor's name, and has lost its trace.
    if not all((folder / INFO_DIR).exists() for folder in named):
        return (
            f"torch_npu's own analyse() makes {VENDORS_VIEW} of a folder that ends with "
            f"{VENDORS_FOLDER}; run it first"
        )
    return (
        "no file there ends with trace.json[.gz], and no other .json[.gz] has traceEvents; give "
        "the path of a file with another name"
    )


def newest_in(path: Path) -> Path:
    """Return the newest trace in a folder.

    Raises:
        CaptureError: There is none.
    """
    return max(traces_in(path), key=age_key)


def export_types(measured: MeasuredTrace) -> tuple[str, ...]:
    """Return the formats of tables that the config of a trace requests; by default text."""
    config = measured.manifest.request.config if measured.manifest else {}
    inner = config.get("experimental_config")
    asked = inner.get("export_type", "text") if isinstance(inner, dict) else "text"
    named = asked if isinstance(asked, list) else [asked]
    return tuple(str(kind) for kind in named)


def write_analysis(
    measured: MeasuredTrace,
    types: Collection[str] | None,
    parts: Iterable[str] = PARTS,
    into: Path | None = None,
) -> Iterator[Path]:
    """Write the results of a trace; yield the files.

    Args:
        measured: The trace.
        types: The formats of tables; by default those that its config requests.
        parts: The parts of the work to do; two processes may share a large trace.
        into: See :func:`folder_of`.
    """
    folder = folder_of(measured.path, into)
    wanted = export_types(measured) if types is None else types
    for part in parts:
        if part in PARTS and part != RANK:
            copied = measured.trace.size if part == FILES and "text" in wanted else 0
            check_space(measured, folder, copied)
            check_space(measured, Path(tempfile.gettempdir()))  # databases are built there
            make_output_folder(folder)
            make_output_folder(_results(measured, folder) / OUTPUT)
        yield from _WRITERS[part](measured, folder, wanted)


def _write_rank(measured: MeasuredTrace, folder: Path, _: Collection[str]) -> Iterator[Path]:
    """Write the tables by which ranks are compared."""
    yield from write_rank_tables(measured, folder)


def _write_view(
    view: str, measured: MeasuredTrace, folder: Path, _: Collection[str]
) -> Iterator[Path]:
    """Write the table of a view."""
    yield from write_view(view, measured, folder)


def _write_path(measured: MeasuredTrace, folder: Path, wanted: Collection[str]) -> Iterator[Path]:
    """Write the critical path. Compute it in any case: another process's report waits for it."""
    tables = path_tables(measured)
    if "text" in wanted:
        yield from write_tables(tables, folder)


def _write_operators(
    measured: MeasuredTrace, folder: Path, wanted: Collection[str]
) -> Iterator[Path]:
    """Write the vendor's tables of operators and calls."""
    if "text" in wanted:
        tables = {**operator_tables(measured), **host_tables(measured)}
        yield from write_tables(tables, _results(measured, folder) / OUTPUT)


def _write_memory(measured: MeasuredTrace, folder: Path, wanted: Collection[str]) -> Iterator[Path]:
    """Write the tables of memory, and every event."""
    if "text" in wanted:
        yield from write_tables(memory_tables(measured), _results(measured, folder) / OUTPUT)
    yield from write_events(measured, folder)
    yield from write_memory_timeline(measured.trace, folder, measured.path.name)


def _write_files(measured: MeasuredTrace, folder: Path, wanted: Collection[str]) -> Iterator[Path]:
    """Write the vendor's json files."""
    results = _results(measured, folder)
    if "text" in wanted:
        yield from write_json_files(measured, results / OUTPUT)
    if measured.manifest:
        yield measured.manifest.save_profiler_info(results)


def _write_views(measured: MeasuredTrace, folder: Path, wanted: Collection[str]) -> Iterator[Path]:
    """Write the report, results from the same measures, and the database."""
    if "text" in wanted:
        yield from write_tables(own_tables(measured), folder)
        yield from write_tables(bandwidth_tables(measured), folder)
        yield from write_tables(sequence_tables(measured), folder)
    yield from write_stacks(measured, folder)
    yield write_report(measured, folder / REPORT, usual=against_baseline(measured))
    if "db" in wanted:
        output = _results(measured, folder) / OUTPUT
        database = output / f"ascend_pytorch_profiler{measured.rank_suffix}.db"
        with file_for_library(database) as made:
            write_database(measured, made)
        yield database
        yield from _write_analysis_database(measured, output / ANALYSIS_DATABASE)


def _write_analysis_database(measured: MeasuredTrace, path: Path) -> Iterator[Path]:
    """Write the vendor's ``analysis.db``, if the trace's level has it."""
    if is_written(measured, path.name):
        with file_for_library(path) as made:
            write_analysis_database(measured, made)
        yield path


_WRITERS: dict[str, Callable[[MeasuredTrace, Path, Collection[str]], Iterator[Path]]] = {
    RANK: _write_rank,
    PATH: _write_path,
    OPERATORS: _write_operators,
    VIEWS: _write_views,
    MEMORY: _write_memory,
    FILES: _write_files,
    **{view_part(view): partial(_write_view, view) for view in TRACE_VIEWS},
}


def draw_memory(path: Path) -> Iterator[Path]:
    """Draw only the memory of a trace; yield the files.

    Raises:
        CaptureError: The trace cannot be read.
        OSError: A file cannot be written.
    """
    folder = folder_of(path)
    make_output_folder(folder)
    yield from write_memory_timeline(MeasuredTrace(path).trace, folder, path.name)


def folder_of(path: Path, into: Path | None = None) -> Path:
    """Return the folder for the results of a trace; for the vendor's files see :func:`_results`.

    Args:
        path: The trace.
        into: A folder to use instead of the trace's, if this user cannot write there.
    """
    stem = trace_stem(path)
    if path.suffix == ".gz" and path.with_suffix("").exists():  # the same trace, or another one
        stem += ".gz"
    name = stem if stem.strip(".") else "trace"
    if into is None:
        return path.parent / FOLDER / name
    above = hashlib.sha256(os.fsencode(path.parent)).hexdigest()
    return into / FOLDER / above / name


def _results(measured: MeasuredTrace, folder: Path) -> Path:
    """Return the folder for the vendor's files of a trace: its own folder if named as the vendor's.

    Args:
        measured: The trace.
        folder: The folder for its other results, which is used otherwise.
    """
    place = measured.path.parent
    is_vendors = place.name.endswith(VENDORS_FOLDER) and folder.is_relative_to(place)
    return place if is_vendors else folder
