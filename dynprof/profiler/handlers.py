"""What becomes of a trace when it is ready."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.captures.analysis_start import analyse_now, arguments_for, begin_analysis
from dynprof.captures.exporter import INTERRUPTED, Export, Exporter
from dynprof.errors import CaptureError, describe
from dynprof.files.folders import make_dir
from dynprof.files.layout import INFO_DIR, Layout
from dynprof.process.forked_child import forget_in_child
from dynprof.process.process_end import call_at_end
from dynprof.process.standard_error import say
from dynprof.process.warnings_to_script import warn_script
from dynprof.profiler.output_paths import output_path
from dynprof.profiler.tidying import tidy
from dynprof.wall import StderrNotes, Wall

if TYPE_CHECKING:
    from dynprof.captures.manifest import Manifest
    from dynprof.profiler.closed_window import ClosedWindow
    from dynprof.profiler.exports import Exports

VENDOR_SUFFIX = "ascend_pt"
MAX_WORKER_CHARS = 225
"""Of a worker's name, as with the vendor: time and ending follow it in a file's name."""
EXIT_WAIT_S = 600.0
"""For so long the end of the process waits for traces that are being saved."""


class TraceHandler:
    """What :func:`tensorboard_trace_handler` returns: call it with a profile whose trace is ready.

    Attributes:
        folder: Where the traces go.
        async_mode: Whether they are saved on another thread.
    """

    def __init__(
        self,
        folder: Path,
        worker: str,
        *,
        instead: Path,
        analyse: bool,
        async_mode: bool,
        use_gzip: bool,
        vendor_folders: bool,
    ) -> None:
        self.folder, self.async_mode = folder, async_mode
        self._instead = instead
        self._worker, self._analyse, self._use_gzip = worker, analyse, use_gzip
        self._vendor_folders = vendor_folders

    def __call__(self, profiler: Exports) -> None:
        """Save the trace; where that fails, warn, unless the profile is strict.

        Raises:
            BackendError: It was exported or saved before.
            CaptureError: It could not be saved; not raised where another thread saves it.
            ProfileError: Nothing was recorded yet, or the profiler is still running.
        """
        profiler._strictness.attempt("tensorboard_trace_handler()", lambda: self._save(profiler))

    def _save(self, profiler: Exports) -> None:
        with profiler._asking("tensorboard_trace_handler()") as recorded:
            self._take(recorded)

    def _take(self, recorded: ClosedWindow) -> None:
        base, why = usable_folder(self.folder, self._instead)
        if why:
            warn_script(why)
        tidy(base)
        folder = self._folder_of(recorded, base)
        if not self.async_mode:
            gzip, analyse = self._use_gzip, self._analyse
            save_now(recorded, folder, self._worker, use_gzip=gzip, analyse=analyse)
            return
        export = _export(recorded, folder, self._worker, self._use_gzip)
        export.on_end = functools.partial(self._ended_beside, export)
        _background().submit(export)

    def _folder_of(self, recorded: ClosedWindow, base: Path) -> Path:
        """Return where a trace goes; an NPU's is a folder of the vendor's own, which has a name."""
        if not self._vendor_folders or recorded.suffix == VENDOR_SUFFIX:
            return base
        now = datetime.datetime.now(datetime.UTC).astimezone()
        stamp = f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03}"
        # As torch_npu from 2.5 on: ranks with one worker_name may save in the same millisecond.
        worker = self._worker if self._worker == worker_here() else f"{self._worker}_{os.getpid()}"
        return base / f"{worker}_{stamp}_{VENDOR_SUFFIX}"

    def _ended_beside(self, export: Export, path: Path, manifest: Manifest) -> None:
        if manifest.trace is None:
            say(_why_lost(export, manifest))
            return
        arguments = arguments_for(manifest, analyse=self._analyse)
        if arguments is not None:
            trace = path.parent.parent / manifest.trace
            begin_analysis(trace, *arguments)


def save_now(
    recorded: ClosedWindow,
    folder: Path,
    worker: str,
    exporter: Exporter | None = None,
    *,
    use_gzip: bool = False,
    analyse: bool = False,
    least_free_mb: float | None = None,
) -> Path:
    """Save a trace with its manifest in a folder; return where it lies.

    Args:
        recorded: What was recorded.
        folder: Where to; it is made.
        worker: The first part of the trace's name.
        exporter: Saves it, and may be told to give it up; left out, one of its own.
        use_gzip: Compress it.
        analyse: Make tables from it, and wait for them.
        least_free_mb: How many MB (10^6 bytes) must stay free on the disk; None for no limit.

    Raises:
        CaptureError: It could not be saved, or not be analysed.
    """
    ended: list[Manifest] = []
    export = _export(recorded, folder, worker, use_gzip)
    export.least_free_mb = least_free_mb
    export.on_end = lambda _, manifest: ended.append(manifest)
    try:
        (exporter or Exporter(Wall(StderrNotes()).attempt)).save_now(export)
    finally:
        if not ended:
            say(_why_lost(export, export.manifest.finished(save_ms=0, failure=INTERRUPTED)))
    if ended[0].trace is None:
        recorded.note_lost()
        raise CaptureError(_why_lost(export, ended[0]))
    trace = export.folder / ended[0].trace
    recorded.saved_as(trace)
    arguments = arguments_for(ended[0], analyse=analyse)
    if arguments is not None:
        analyse_now(trace, arguments)
    return trace


def _why_lost(export: Export, manifest: Manifest) -> str:
    return f"the trace {export.folder / export.trace_name} is lost: {manifest.reason}"


def usual_folder() -> Path:
    """Return where traces go when the script does not say: as with the vendor.

    Links in the environment's path are followed, as the vendor does.
    """
    work_path = os.environ.get("ASCEND_WORK_PATH")
    return Path(work_path, "profiling_data").resolve() if work_path else Path()


def usable_folder(folder: Path, instead: Path) -> tuple[Path, str]:
    """Return a folder, or another one where nothing can be written in it, and then what to say.

    Args:
        folder: The script's, or :func:`usual_folder`.
        instead: Where the trace goes if ``ASCEND_WORK_PATH`` names ``folder``; else ``folder``.
    """
    if folder == instead or not (why := _why_unusable(folder)):
        return folder, ""
    place = instead.absolute()
    return place, (
        f"ASCEND_WORK_PATH cannot be used ({why}); the trace goes to the working directory, {place}"
    )


def _why_unusable(folder: Path) -> str:
    """Make a folder without links; return why nothing can be written there, empty where it can."""
    try:
        make_dir(folder)
    except OSError as error:
        return describe(error)
    return _why_not_written(folder)


def _why_not_written(folder: Path) -> str:
    can_write = os.access(folder, os.W_OK | os.X_OK)
    return "" if can_write else f"{folder} cannot be written by this user"


def worker_here() -> str:
    """Return the first part of the names of this process's traces."""
    return f"{socket.gethostname()}_{os.getpid()}"


def trace_name(worker: str, suffix: str) -> str:
    """Return the name of a trace of this moment."""
    return f"{worker}.{time.time_ns()}.{suffix}"


def _export(recorded: ClosedWindow, folder: Path, worker: str, use_gzip: bool) -> Export:
    place = prepare_folder(folder)
    return Export(
        recording=recorded.hand_over(),
        manifest=recorded.manifest,
        folder=place,
        trace_name=trace_name(worker, recorded.suffix),
        layout=Layout.here(place, recorded.manifest.rank),
        least_free_mb=None,
        on_end=lambda _path, _manifest: None,
        compress=use_gzip,
        members=recorded.members,
    )


def prepare_folder(folder: Path) -> Path:
    """Make the folder of a trace and that of its manifest, before the recording is handed over.

    Raises:
        CaptureError: A symbolic link leads there, it cannot be made, or nothing can be written.
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


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str] | None = None,
    worker_name: str | None = None,
    analyse_flag: bool = True,
    async_mode: bool = False,
    *,
    use_gzip: bool = False,
    vendor_folders: bool = False,
) -> TraceHandler:
    """Return what saves each trace of a profile in a folder, as TensorBoard finds them there.

    Next to the traces, ``info/`` holds their manifests, and ``profiler_metadata.json`` what
    ``add_metadata`` and ``add_metadata_json`` were given. In place of an argument that cannot be
    used its default is taken, with a warning, as with torch_npu.

    Args:
        dir_name: The folder; left out, ``profiling_data`` in ``$ASCEND_WORK_PATH``, else the
            working directory. Where nothing can be written in the former, the latter.
        worker_name: The first part of the files' names; left out, ``<host>_<pid>``.
        analyse_flag: Make tables from the trace, into ``analysis/`` beside it, in a process of its
            own; it is waited for unless ``async_mode`` is on. On an NPU the vendor's tools do.
        async_mode: Let another thread save, and the training go on; the profile then has no
            results to ask for. Where torch allows it, closing costs the loop microseconds.
        use_gzip: Compress, and add ``.gz`` to the name.
        vendor_folders: Give each trace a folder named as the vendor's,
            ``{worker}_{time}_ascend_pt``, with ``profiler_info.json``, ``profiler_metadata.json``
            and, after analysis, ``ASCEND_PROFILER_OUTPUT/`` in it. A ``worker_name`` is followed by
            the process id there.
    """
    folder = _folder_named(dir_name)
    return TraceHandler(
        folder,
        _worker_named(worker_name),
        instead=Path() if folder == usual_folder() else folder,
        analyse=_flag("analyse_flag", analyse_flag, default=True),
        async_mode=_flag("async_mode", async_mode, default=False),
        use_gzip=_flag("use_gzip", use_gzip, default=False),
        vendor_folders=_flag("vendor_folders", vendor_folders, default=False),
    )


def _folder_named(name: object) -> Path:
    usual = usual_folder()
    if isinstance(name, (str, os.PathLike)) and os.fspath(name) != "":
        return Path(name)
    if name is not None:
        _warn_of("dir_name", name, "path", _absolute(usual))
    return usual


def _absolute(folder: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return str(folder.absolute())
    return "the working directory, which was removed,"


def _worker_named(name: object) -> str:
    usual = worker_here()
    if name is None:
        return usual
    fits = isinstance(name, str) and 0 < len(name) <= MAX_WORKER_CHARS and name.isprintable()
    if fits and name != ".." and Path(str(name)).name == name:
        return str(name)
    _warn_of("worker_name", name, "part of a file's name", usual)
    return usual


def _flag(name: str, value: object, *, default: bool) -> bool:
    if isinstance(value, bool):
        return value
    _warn_of(name, value, "bool", str(default))
    return default


def _warn_of(name: str, value: object, wanted: str, taken: str) -> None:
    text = f"tensorboard_trace_handler(): {name}={value!r:.80} is no {wanted}"
    warn_script(f"{text}; {taken} is taken")


_exporter: Exporter | None = None


def _background() -> Exporter:
    """Return the thread that saves, starting it when it is first needed."""
    global _exporter
    if _exporter is None:
        exporter = Exporter(Wall(StderrNotes()).attempt)
        exporter.start()
        _exporter = exporter
        call_at_end(_wait_at_exit)
    return _exporter


def _wait_at_exit() -> None:
    exporter = _exporter
    if exporter is None:
        return  # a forked child has none: what is being saved is its parent's
    if not exporter.wait(EXIT_WAIT_S) and (manifest := exporter.abandon("the process ended")):
        say(manifest.reason)


def _forget_in_child() -> None:
    global _exporter
    _exporter = None


forget_in_child(_forget_in_child)
