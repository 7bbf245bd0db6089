"""A closed window of a script: its results, and its trace for any number of exports."""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import secrets
import shutil
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dynprof.backends.npu_exports import exported
from dynprof.captures.analysis_start import analyse_now, arguments_for
from dynprof.captures.exporter import save_trace
from dynprof.errors import BackendError, CaptureError, DynprofError, ProfileError
from dynprof.profiler.output_paths import output_path, remove_stale_files, write_file
from dynprof.profiler.strictness import Strictness, warn_on_failure
from dynprof.runtime.layout import free_disk_mb, host_name, trace_stem
from dynprof.runtime.safe_open import make_dir, open_regular
from dynprof.runtime.safe_write import PrivateFolder, atomic_file, file_for_library
from dynprof.runtime.standard_streams import warn_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from dynprof.backends import Recording
    from dynprof.captures.manifest import Manifest

RESERVED = {"traceEvents", "schemaVersion", "baseTimeNanoseconds", "distributedInfo", "metadata"}
"""Members of a trace that a script's metadata must not replace."""
HOST_TIME = "self_cpu_time_total"
"""The metric of stacks for the host's time; the others are for a device."""
_STEM = "trace"
STACK_METRICS = (
    HOST_TIME,
    "self_cuda_time_total",
    "self_xpu_time_total",
    "self_npu_time_total",
)

Export = TypeVar("Export", bound="Callable[..., None]")


@dataclass(eq=False)
class ClosedWindow:
    """A window after it closed.

    Attributes:
        recording: The stopped recording.
        manifest: Its manifest.
        suffix: The suffix of its traces' names.
    """

    recording: Recording
    manifest: Manifest
    suffix: str
    _file: Path | None = None
    _mark: tuple[int, ...] = ()
    _is_private: bool = False
    _why_not_taken: str = ""
    _exported_to: Path | None = None

    def __post_init__(self) -> None:
        _at_the_end_of(self, self.recording.collectors.discard)

    @property
    def results(self) -> Any:
        """Torch's own object with events and averages.

        Raises:
            ProfileError: This recording has no results.
        """
        results = self.recording.results
        if results is None:
            text = "only torch.profiler has results, if it closed where it ran; this window was"
            how = f"recorded by {self.manifest.backend} and closed {self.manifest.closing}"
            raise ProfileError(f"{text} {how}")
        return results

    @property
    def has_stacks(self) -> bool:
        """Whether the trace has the Python call stacks of its operators."""
        config = self.manifest.request.config
        return bool(config.get("with_stack")) or self.manifest.backend == "python"

    @property
    def members(self) -> dict[str, Any]:
        """The script's metadata as torch adds it to the trace's JSON object."""
        metadata = self.manifest.request.config.get("metadata", {})
        as_torch = metadata.items() if isinstance(metadata, dict) else ()
        return {key: value for key, value in as_torch if key not in RESERVED}

    @property
    def is_private(self) -> bool:
        """Whether its trace is in a private folder, which is removed with this object."""
        return self._is_private

    @property
    def can_be_written(self) -> bool:
        """Whether the trace still exists and was not handed to a handler."""
        return self._is_private or not self._why_not_taken

    @property
    def is_exported(self) -> bool:
        """Whether the script has exported the whole trace to a file."""
        return self._exported_to is not None

    def hand_over(self) -> Recording:
        """Hand the recording to a handler, which saves it; it cannot be exported after that.

        Raises:
            BackendError: It was handed over or exported before.
        """
        if self._is_private:
            how = f"to {self._exported_to}" if self._exported_to else "already"
            text = "a handler can no longer save it; call the handler before the export"
            raise BackendError(f"the trace was exported {how}; {text}")
        if self._why_not_taken:
            raise BackendError(self._why_not_taken)
        self._why_not_taken = "another handler has the trace and saves it"
        return self.recording

    def saved_as(self, path: Path) -> None:
        """Note the path of the trace after a handler saved it."""
        self._file, self._mark = path, _mark_of(path)
        self._why_not_taken = f"another handler has saved the trace as {path} already"

    def note_lost(self) -> None:
        """Note that a handler could not save the trace."""
        self._why_not_taken = "the trace is lost: a handler could not save it"

    def export(self, wanted: str | os.PathLike[str]) -> None:
        """Write the trace as :meth:`write` does; torch_npu writes the trace of an NPU.

        If torch_npu cannot, the vendor's folder is copied next to the path.
        """
        source = self.file()
        if not source.is_dir():
            self.write(wanted)
            return
        with contextlib.ExitStack() as held:
            try:
                made = held.enter_context(exported(source, "export_chrome_trace"))
            except BackendError as error:
                warn_script(str(error))
                self.write(wanted)
            else:
                self._exported_to = write_file(wanted, lambda file: _copy(made, file))
                if self.manifest.request.config.get("metadata"):
                    text = "metadata is not in the trace that torch_npu exports"
                    warn_script(f"{text}; with tensorboard_trace_handler() it has a file")

    def export_stacks(self, wanted: str | os.PathLike[str], metric: str) -> None:
        """Write folded stacks; torch_npu writes those of an NPU.

        Raises:
            BackendError: torch_npu wrote none.
            CaptureError: As for :meth:`write`.
        """
        from dynprof.analysis.vendor_files.stacks import write_folded

        trace, on_device = self.file(), metric != HOST_TIME
        if trace.is_dir():
            vendors = "self_npu_time_total" if on_device else HOST_TIME
            with exported(trace, "export_stack", vendors) as made:
                path = write_file(wanted, lambda file: _copy(made, file))
        else:
            path = write_file(wanted, lambda file: write_folded(trace, file, on_device=on_device))
        if on_device and not path.stat().st_size:
            warn_script(f"{path} is empty: no operator started anything that {metric} counts")

    def write(self, wanted: str | os.PathLike[str]) -> Path:
        """Write the trace, compressed if the name ends with ``.gz``; return its path.

        An NPU's recording is a folder of the vendor. It is copied into the folder of the path.

        Raises:
            BackendError: The trace could not be written completely.
            CaptureError: The path has a symbolic link, is not a regular file, or is not writable.
        """
        folder = output_path(wanted).parent
        source = self.file()
        if source.is_dir():
            make_dir(folder)
            self._exported_to = self._copy_folder(source, folder)
            return self._exported_to
        self._exported_to = path = write_file(wanted, lambda file: _copy(source, file))
        if source.name.startswith(f"{_STEM}."):
            _copy_collectors(source.parent, path)
        manifest = self.manifest.model_copy(update={"trace": path.name})
        if arguments := arguments_for(manifest, analyse=False):
            analyse_now(path, arguments)
        return path

    def file(self) -> Path:
        """Return the path of the trace: the handler's file, or one in a private folder.

        Raises:
            BackendError: It could not be written completely, or the handler's file has changed.
        """
        if self._file is None:
            if self._why_not_taken:
                raise BackendError(self._why_not_taken)
            self._file = self._save()
            self._mark, self._is_private = _mark_of(self._file), True
        elif _mark_of(self._file) != self._mark:
            raise BackendError(f"{self._file} has changed since it was written")
        return self._file

    def _save(self) -> Path:
        """Write the trace into a private folder, which is removed with this object.

        Raises:
            BackendError: The trace could not be written completely.
            CaptureError: The disk of that folder is full.
        """
        temporary = Path(tempfile.gettempdir())
        remove_stale_files(temporary)
        name = f".{host_name()}_{os.getpid()}.{secrets.token_hex(8)}.recording"
        folder = PrivateFolder(temporary / name)
        _at_the_end_of(self, folder.remove)
        try:
            return self._save_in(folder)
        except (OSError, DynprofError) as error:
            if free_disk_mb(temporary) < 1:
                text = f"the disk of {temporary} is full, where traces are assembled"
                raise CaptureError(f"{text}; set TMPDIR to a folder on another disk") from error
            raise

    def _save_in(self, folder: PrivateFolder) -> Path:
        self._why_not_taken = "the trace is lost: an export could not save it"
        manifest = save_trace(
            self.recording,
            self.manifest,
            folder,
            f"{_STEM}.{self.suffix}",
            stem=folder.path / _STEM,
            members=self.members,
        )
        if said := (*manifest.lost, *filter(None, [manifest.reason])):
            warn_script("; ".join(text.rstrip(".") for text in said))
        return folder.path / str(manifest.trace)

    def _copy_folder(self, source: Path, parent: Path) -> Path:
        folder = parent / source.name
        copies = PrivateFolder(parent / f".{secrets.token_hex(8)}.tmp")
        try:
            shutil.copytree(source, copies.path / source.name)
            copies.move_out(source.name, folder)
        finally:
            copies.remove()
        text = f"the NPU's recording is the folder {folder}; torch_npu's analyse()"
        warn_script(f"{text} makes traces and tables from it")
        return folder


def _at_the_end_of(window: ClosedWindow, action: Callable[[], object]) -> None:
    """Run an action when a window is garbage-collected or the process ends, not in a fork."""
    pid = os.getpid()
    weakref.finalize(window, lambda: action() if os.getpid() == pid else None)


def _mark_of(path: Path) -> tuple[int, ...]:
    """Return values that identify a file, to detect that it was replaced."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return ()
    if path.is_dir():  # torch_npu writes a log into its folder while it reads it
        return facts.st_dev, facts.st_ino
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def _copy(source: Path, path: Path) -> None:
    """Copy a trace; compress or decompress it according to the names."""
    packs = path.suffix == ".gz" and source.suffix != ".gz"
    unpacks = source.suffix == ".gz" and path.suffix != ".gz"
    with (
        open_regular(source) as stored,
        gzip.open(stored) if unpacks else contextlib.nullcontext(stored) as raw,
        atomic_file(path) as file,
        gzip.GzipFile("", "wb", 1, file) if packs else contextlib.nullcontext(file) as sink,
    ):
        shutil.copyfileobj(raw, sink, 1 << 20)


def _copy_collectors(place: Path, path: Path) -> None:
    """Copy the collectors' files next to an exported trace, named after it."""
    stem = trace_stem(path).removesuffix(".pt")
    for found in place.glob(f"{_STEM}.*"):
        if not found.name.endswith("trace.json.gz") or "execution_trace" in found.name:
            copy = path.with_name(stem + found.name.removeprefix(_STEM))
            with open_regular(found) as source, atomic_file(copy) as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


def takes_output_path(export: Export) -> Export:
    """Let a method accept torch_npu's ``output_path`` for torch's ``path``."""

    @functools.wraps(export)
    def with_path(*args: Any, **settings: Any) -> None:
        if "output_path" in settings:
            settings["path"] = settings.pop("output_path")
        export(*args, **settings)

    return cast("Export", with_path)


def no_events() -> Any:
    """Return torch's empty list of events, which has ``table()``; a plain list without torch."""
    return getattr(sys.modules.get("torch.autograd.profiler_util"), "EventList", list)([])


class Exports(ABC):
    """The newest trace of a profile, and torch's results.

    A call that fails warns and returns nothing. A strict profile raises the errors named here.
    """

    _strictness: Strictness

    @abstractmethod
    def _use_trace(self, call: str) -> AbstractContextManager[ClosedWindow]:
        """Return the newest window for use in the body; if the body fails, the trace is autosaved.

        Raises:
            ProfileError: The window is open, or there is none.
        """

    @warn_on_failure()
    @takes_output_path
    def export_chrome_trace(
        self, path: str | os.PathLike[str], use_python_export: bool = False
    ) -> None:
        """Write the trace, compressed if the name ends with ``.gz``.

        This and the other exports never replace another process's file: they write to a different
        name, and a warning says which.

        Args:
            path: The file; its folder is created. On an NPU, torch_npu writes the trace. If it
                cannot, a warning says why, and the vendor's folder is copied there.
            use_python_export: Accepted as in torch; the trace is the same.

        Raises:
            BackendError: The trace could not be written completely.
            CaptureError: The path has a symbolic link, is not a regular file, or is not writable.
            ProfileError: Nothing was recorded yet, or the profiler is still running.
        """
        del use_python_export
        with self._use_trace("export_chrome_trace()") as recorded:
            recorded.export(path)

    @warn_on_failure()
    @takes_output_path
    def export_stacks(self, path: str | os.PathLike[str], metric: str = HOST_TIME) -> None:
        """Write folded stacks for FlameGraph and speedscope: frames, then microseconds.

        On an NPU, torch_npu writes the stacks.

        Args:
            path: The file; its folder is created.
            metric: The time to count. On the host, it is the self time of each frame and operator;
                on a device, the time of what each operator started. One of
                ``self_cpu_time_total``, ``self_cuda_time_total``, ``self_xpu_time_total``,
                ``self_npu_time_total``.

        Raises:
            BackendError: torch_npu wrote none.
            CaptureError: The path has a symbolic link, is not a regular file, or is not writable.
            ProfileError: Nothing was recorded yet, or it has no stacks.
            ValueError: The metric does not exist.
        """
        if metric not in STACK_METRICS:
            text = f"metric={metric!r} is none of {', '.join(STACK_METRICS)}"
            self._strictness.reject(text, f"{STACK_METRICS[0]} is used")
            metric = STACK_METRICS[0]
        with self._use_trace("export_stacks()") as recorded:
            if not recorded.has_stacks:
                raise ProfileError("export_stacks() needs a profile with with_stack=True")
            recorded.export_stacks(path, metric)

    @warn_on_failure()
    @takes_output_path
    def export_memory_timeline(
        self, path: str | os.PathLike[str], device: str | None = None
    ) -> None:
        """Write tensor memory over time by category, as torch does; deprecated in torch.

        Args:
            path: The file: ``.html`` is a plot (needs matplotlib), ``.json`` and ``.json.gz`` have
                the points, ``.raw.json.gz`` the single events.
            device: The device, such as ``cuda:0``; default: the first device, else the CPU.

        Raises:
            CaptureError: The path has a symbolic link, is not a regular file, or is not writable.
            ProfileError: There are no results of torch.
            ValueError: ``record_shapes``, ``profile_memory`` or ``with_stack`` was not on.
        """
        with self._use_trace("export_memory_timeline()") as recorded:
            results = recorded.results

            def write(file: Path) -> None:
                with file_for_library(file) as made:
                    results.export_memory_timeline(str(made), device)

            write_file(path, write)

    @warn_on_failure(no_events)
    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> Any:
        """Return torch's averages of the events; see ``torch.profiler.profile.key_averages``.

        On failure they are empty, and so is their table.
        """
        newer = {"group_by_overload_name": True} if group_by_overload_name else {}
        with self._use_trace("key_averages()") as recorded:
            return recorded.results.key_averages(group_by_input_shape, group_by_stack_n, **newer)

    @warn_on_failure(no_events)
    def events(self) -> Any:
        """Return torch's list of events; see ``torch.profiler.profile.events``.

        On failure the list is empty.
        """
        with self._use_trace("events()") as recorded:
            return recorded.results.events()

    @property
    def profiler(self) -> Any:
        """Torch's ``torch.autograd.profiler.profile`` of the newest window; None until it ends."""
        with contextlib.suppress(ProfileError), self._use_trace("profiler") as recorded:
            return recorded.results.profiler
        return None

    def _say_no_effect(self, **settings: Any) -> None:
        """Warn of torch's arguments that have no effect here."""
        for name, value in settings.items():
            if value:
                warn_script(f"{name}={value!r} has no effect: each window is kept separately")
