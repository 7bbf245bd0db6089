"""Handlers that save a trace when it is ready."""

from __future__ import annotations

import contextlib
import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.profiler.output_paths import remove_stale_files
from dynprof.profiler.saving import (
    default_folder,
    export_of,
    exporter,
    follow_up,
    save_now,
    usable_folder,
    wait_at_end,
    worker_here,
)
from dynprof.runtime.process_hooks import call_at_end
from dynprof.runtime.standard_streams import warn_script

if TYPE_CHECKING:
    from dynprof.profiler.closed_window import ClosedWindow, Exports

VENDOR_SUFFIX = "ascend_pt"
MAX_WORKER_CHARS = 225
"""Most characters of a worker's name, as with the vendor; a file name adds time and suffix."""


class TraceHandler:
    """Saves the trace of a profile when called; see :func:`tensorboard_trace_handler`.

    Attributes:
        folder: Where the traces go.
        async_mode: Whether another thread saves them.
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
        """Save the trace; on failure warn, or raise if the profile is strict.

        Raises:
            BackendError: The trace was exported or saved before.
            CaptureError: It could not be saved; not raised if another thread saves it.
            ProfileError: Nothing was recorded yet, or the profiler is still running.
        """
        profiler._strictness.attempt("tensorboard_trace_handler()", lambda: self._save(profiler))

    def _save(self, profiler: Exports) -> None:
        with profiler._use_trace("tensorboard_trace_handler()") as recorded:
            self._take(recorded)

    def _take(self, recorded: ClosedWindow) -> None:
        base, why = usable_folder(self.folder, self._instead)
        if why:
            warn_script(why)
        remove_stale_files(base)
        folder, analyse = self._folder_of(recorded, base), self._analyse
        export = export_of(recorded, folder, self._worker, use_gzip=self._use_gzip)
        if not self.async_mode:
            save_now(recorded, export, analyse=analyse)
            return
        export.on_end = lambda *_: follow_up(export, analyse=analyse)
        exporter().submit(export)
        call_at_end(wait_at_end)

    def _folder_of(self, recorded: ClosedWindow, base: Path) -> Path:
        """Return the folder of a trace; an NPU's recording is a vendor folder with its own name."""
        if not self._vendor_folders or recorded.suffix == VENDOR_SUFFIX:
            return base
        now = datetime.datetime.now(datetime.UTC).astimezone()
        stamp = f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03}"
        # As in torch_npu since 2.5: ranks with one worker_name can save in the same millisecond.
        worker = self._worker if self._worker == worker_here() else f"{self._worker}_{os.getpid()}"
        return base / f"{worker}_{stamp}_{VENDOR_SUFFIX}"


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str] | None = None,
    worker_name: str | None = None,
    analyse_flag: bool = True,
    async_mode: bool = False,
    *,
    use_gzip: bool = False,
    vendor_folders: bool = False,
) -> TraceHandler:
    """Return a handler that saves each trace of a profile in a folder that TensorBoard reads.

    Next to the traces, ``info/`` has their manifests. ``profiler_metadata.json`` has the values of
    ``add_metadata`` and ``add_metadata_json``. A wrong argument is replaced by its default, with a
    warning, as in torch_npu.

    Args:
        dir_name: The folder; default: ``profiling_data`` in ``$ASCEND_WORK_PATH``, or the working
            directory if that is not set or not writable.
        worker_name: The first part of the files' names; default: ``<host>_<pid>``.
        analyse_flag: Write tables into ``analysis/`` next to the trace, in a separate process. The
            script waits for it unless ``async_mode`` is on. On an NPU, the vendor's tools do this.
        async_mode: Let another thread save while training continues; the profile then has no
            results. If torch supports it, closing takes the loop only microseconds.
        use_gzip: Compress the trace, and add ``.gz`` to its name.
        vendor_folders: Give each trace a folder named as by the vendor,
            ``{worker}_{time}_ascend_pt``. It has ``profiler_info.json``, ``profiler_metadata.json``
            and, after the analysis, ``ASCEND_PROFILER_OUTPUT/``. A ``worker_name`` is followed by
            the process id there.
    """
    folder = _folder_named(dir_name)
    return TraceHandler(
        folder,
        _worker_named(worker_name),
        instead=Path() if folder == default_folder() else folder,
        analyse=_flag("analyse_flag", analyse_flag, default=True),
        async_mode=_flag("async_mode", async_mode, default=False),
        use_gzip=_flag("use_gzip", use_gzip, default=False),
        vendor_folders=_flag("vendor_folders", vendor_folders, default=False),
    )


def _folder_named(name: object) -> Path:
    usual = default_folder()
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
    _warn_of("worker_name", name, "part of a file name", usual)
    return usual


def _flag(name: str, value: object, *, default: bool) -> bool:
    if isinstance(value, bool):
        return value
    _warn_of(name, value, "bool", str(default))
    return default


def _warn_of(name: str, value: object, wanted: str, taken: str) -> None:
    text = f"tensorboard_trace_handler(): {name}={value!r:.80} is not a {wanted}"
    warn_script(f"{text}; {taken} is used")
