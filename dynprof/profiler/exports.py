"""Results of a profile after its window: files, events and averages."""

from __future__ import annotations

import contextlib
import functools
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dynprof.errors import ProfileError
from dynprof.profiler.closed_window import HOST_TIME
from dynprof.profiler.output_paths import write_file
from dynprof.profiler.strictness import Strictness, warn_on_failure
from dynprof.runtime.output import file_for_library
from dynprof.runtime.standard_streams import warn_script

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from dynprof.profiler.closed_window import ClosedWindow

STACK_METRICS = (
    HOST_TIME,
    "self_cuda_time_total",
    "self_xpu_time_total",
    "self_npu_time_total",
)

Export = TypeVar("Export", bound="Callable[..., None]")


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
