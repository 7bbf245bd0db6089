"""What can be had from a profile after its window: files, events, averages."""

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
from dynprof.runtime.output import by_library
from dynprof.runtime.warnings_to_script import warn_script

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
    """Have a method take ``output_path``, which torch_npu calls it, for torch's ``path``."""

    @functools.wraps(export)
    def with_path(*args: Any, **settings: Any) -> None:
        if "output_path" in settings:
            settings["path"] = settings.pop("output_path")
        export(*args, **settings)

    return cast("Export", with_path)


def no_events() -> Any:
    """Return torch's empty list of events, which has a table; a plain one without torch."""
    return getattr(sys.modules.get("torch.autograd.profiler_util"), "EventList", list)([])


class Exports(ABC):
    """The newest trace of a profile, and torch's view of it.

    Where a call fails, it warns and returns nothing; a strict profile raises the errors named here.
    """

    _strictness: Strictness

    @abstractmethod
    def _use_trace(self, call: str) -> AbstractContextManager[ClosedWindow]:
        """Give what the newest window recorded; have it saved should the body fail with it.

        Raises:
            ProfileError: The window is open, or there was none.
        """

    @warn_on_failure()
    @takes_output_path
    def export_chrome_trace(
        self, path: str | os.PathLike[str], use_python_export: bool = False
    ) -> None:
        """Write the trace; compressed where the name ends with ``.gz``.

        A file of another process stays, here and in the other exports: the new one gets a name of
        its own, and a warning says which.

        Args:
            path: Where to; its folder is made. On an NPU torch_npu makes the trace; where it
                makes none, a warning says why, and its folder is put there.
            use_python_export: Taken as torch does; the trace is the same.

        Raises:
            BackendError: It could not be written whole.
            CaptureError: A symbolic link is in the path, no regular file at its end, or it cannot
                be written.
            ProfileError: Nothing was recorded yet, or the profiler is still running.
        """
        del use_python_export
        with self._use_trace("export_chrome_trace()") as recorded:
            recorded.export(path)

    @warn_on_failure()
    @takes_output_path
    def export_stacks(self, path: str | os.PathLike[str], metric: str = HOST_TIME) -> None:
        """Write folded stacks, which FlameGraph and speedscope read: frames, then microseconds.

        Args:
            path: Where to; its folder is made.
            metric: Whose time counts: of the host, what each frame and operator took itself; of a
                device, what each operator started there. One of
                ``self_cpu_time_total``, ``self_cuda_time_total``, ``self_xpu_time_total``,
                ``self_npu_time_total``.

        torch_npu makes the stacks of what an NPU recorded.

        Raises:
            BackendError: torch_npu made none.
            CaptureError: A symbolic link is in the path, no regular file at its end, or it cannot
                be written.
            ProfileError: Nothing was recorded yet, or without stacks.
            ValueError: There is no such metric.
        """
        if metric not in STACK_METRICS:
            text = f"metric={metric!r} is none of {', '.join(STACK_METRICS)}"
            self._strictness.reject(text, f"{STACK_METRICS[0]} is taken")
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
        """Write tensor memory over time by category, as torch does; torch calls this deprecated.

        Args:
            path: Where to: ``.html`` draws it (with matplotlib), ``.json`` and ``.json.gz`` hold
                the points, ``.raw.json.gz`` the single events.
            device: Whose memory, such as ``cuda:0``; left out, the first device's, else the CPU's.

        Raises:
            CaptureError: A symbolic link is in the path, no regular file at its end, or it cannot
                be written.
            ProfileError: Torch has no results to ask for.
            ValueError: ``record_shapes``, ``profile_memory`` or ``with_stack`` was not on.
        """
        with self._use_trace("export_memory_timeline()") as recorded:
            results = recorded.results

            def write(file: Path) -> None:
                with by_library(file) as made:
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

        Where it fails they are empty, and so is their table.
        """
        newer = {"group_by_overload_name": True} if group_by_overload_name else {}
        with self._use_trace("key_averages()") as recorded:
            return recorded.results.key_averages(group_by_input_shape, group_by_stack_n, **newer)

    @warn_on_failure(no_events)
    def events(self) -> Any:
        """Return torch's list of events; see ``torch.profiler.profile.events``.

        Where it fails the list is empty.
        """
        with self._use_trace("events()") as recorded:
            return recorded.results.events()

    @property
    def profiler(self) -> Any:
        """Torch's ``torch.autograd.profiler.profile`` of the newest window; None before its end."""
        with contextlib.suppress(ProfileError), self._use_trace("profiler") as recorded:
            return recorded.results.profiler
        return None

    def _say_no_effect(self, **settings: Any) -> None:
        """Warn of arguments of torch's that mean nothing here."""
        for name, value in settings.items():
            if value:
                warn_script(f"{name}={value!r} has no effect: each window is kept apart, and whole")
