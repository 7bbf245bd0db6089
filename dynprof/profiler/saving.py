"""Save a script's traces, on the script's thread or on the exporter's."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.captures.analysis_start import analyse_now, arguments_for, begin_analysis
from dynprof.captures.exporter import Export, Exporter
from dynprof.errors import CaptureError, describe
from dynprof.extras import missing
from dynprof.profiler.output_paths import output_path
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.layout import INFO_DIR, Layout
from dynprof.runtime.process_hooks import call_in_child
from dynprof.runtime.safe_open import make_dir
from dynprof.runtime.standard_streams import say

if TYPE_CHECKING:
    from dynprof.profiler.closed_window import ClosedWindow


HANDLERS_WAIT_S = 600.0
"""Longest wait at the end of the process for traces of handlers, in seconds."""
AUTOSAVE_WAIT_S = 30.0
"""The same for traces that the script never requested."""


def _new_exporter() -> Exporter:
    return Exporter(ErrorBoundary(StderrNotes()).attempt)


_exporter = _new_exporter()


def exporter() -> Exporter:
    """Return the exporter of the script's traces; the first call starts its thread."""
    with contextlib.suppress(RuntimeError):  # it runs, or cannot start: wait_at_end() saves
        _exporter.start()
    return _exporter


def wait_at_end() -> None:
    """Wait at the end of the process until everything is saved; report what is given up."""
    global _exporter
    limit_s = HANDLERS_WAIT_S if _exporter.busy else AUTOSAVE_WAIT_S
    why = f"it took more than {limit_s:g} s, and the process ended"
    try:
        if _exporter.wait(limit_s):
            return
    except (KeyboardInterrupt, SystemExit):  # the user wants the process to end
        why = "the process was interrupted"
    given_up, _exporter = _exporter, _new_exporter()
    for export in given_up.abandon(why):
        say(_lost(export))


def follow_up(export: Export, *, analyse: bool) -> None:
    """Report a lost trace, or start the analysis of a saved one; do not wait for it."""
    if export.manifest.trace is None:
        say(_lost(export))
    elif (arguments := arguments_for(export.manifest, analyse=analyse)) is not None:
        if text := missing("analysis", "the analysis"):
            say(f"{export.trace_path} is saved, but could not be analysed: {text}")
        else:
            begin_analysis(export.trace_path, *arguments)


def _lost(export: Export) -> str:
    return f"the trace {export.trace_path} is lost: {export.manifest.reason}"


def save_now(recorded: ClosedWindow, export: Export, *, analyse: bool) -> None:
    """Save a window on the calling thread; if ``analyse``, write its tables and wait for them.

    Raises:
        CaptureError: The window could not be saved, or not be analysed.
    """
    is_interrupted = True
    try:
        _new_exporter().save(export)
        is_interrupted = False
    finally:
        if is_interrupted:
            say(_lost(export))
    if export.manifest.trace is None:
        recorded.note_lost()
        raise CaptureError(_lost(export))
    recorded.saved_as(export.trace_path)
    arguments = arguments_for(export.manifest, analyse=analyse)
    if arguments is not None:
        analyse_now(export.trace_path, arguments)


def default_folder() -> Path:
    """Return the default folder for traces, which is the vendor's.

    Symbolic links in the path of the environment variable are followed, as by the vendor.
    """
    work_path = os.environ.get("ASCEND_WORK_PATH")
    return Path(work_path, "profiling_data").resolve() if work_path else Path()


def usable_folder(folder: Path, instead: Path) -> tuple[Path, str]:
    """Return a folder, or the fallback with a warning if the folder is not writable.

    Args:
        folder: The script's folder, or :func:`default_folder`.
        instead: The fallback if ``ASCEND_WORK_PATH`` names ``folder``; else ``folder``.
    """
    if folder == instead or not (why := _why_unusable(folder)):
        return folder, ""
    place = instead.absolute()
    return place, (
        f"ASCEND_WORK_PATH cannot be used ({why}); the trace goes to the working directory, {place}"
    )


def _why_unusable(folder: Path) -> str:
    """Create a folder without links; return why it is not writable, empty if it is."""
    try:
        make_dir(folder)
    except OSError as error:
        return describe(error)
    return _why_not_written(folder)


def _why_not_written(folder: Path) -> str:
    can_write = os.access(folder, os.W_OK | os.X_OK)
    return "" if can_write else f"{folder} cannot be written by this user"


def worker_here() -> str:
    """Return the prefix of the names of this process's traces."""
    return f"{socket.gethostname()}_{os.getpid()}"


def trace_name(worker: str, suffix: str) -> str:
    """Return a name for a trace, with the current time."""
    return f"{worker}.{time.time_ns()}.{suffix}"


def export_of(
    recorded: ClosedWindow,
    folder: Path,
    worker: str,
    *,
    use_gzip: bool = False,
    least_free_mb: float | None = None,
) -> Export:
    """Return a window's export; this hands the window over.

    Args:
        recorded: The closed window.
        folder: The folder for the trace; it is created.
        worker: The first part of the trace's name.
        use_gzip: Compress the trace.
        least_free_mb: MB (10^6 bytes) that must stay free on the disk; None for no limit.

    Raises:
        BackendError: The window was handed over or exported before.
        CaptureError: The folder is not usable.
    """
    place = prepare_folder(folder)
    return Export(
        recording=recorded.hand_over(),
        manifest=recorded.manifest,
        folder=place,
        trace_name=trace_name(worker, recorded.suffix),
        layout=Layout.here(place, recorded.manifest.rank),
        least_free_mb=least_free_mb,
        on_end=lambda _path, _manifest: None,
        compress=use_gzip,
        members=recorded.members,
    )


def prepare_folder(folder: Path) -> Path:
    """Create the folders of a trace and its manifest, before the recording is handed over.

    Raises:
        CaptureError: The path has a symbolic link, cannot be created, or is not writable.
    """
    try:
        place = output_path(folder)
        info = place / INFO_DIR
        Layout.here(place, 0).make_dir(info)
    except OSError as error:
        raise CaptureError(f"the trace cannot be saved: {describe(error)}") from error
    for made in (place, info):
        if why := _why_not_written(made):
            raise CaptureError(f"the trace cannot be saved: {why}")
    return place


def _reset_in_child() -> None:
    global _exporter
    _exporter = _new_exporter()


call_in_child(_reset_in_child)
