"""``torch_npu.profiler`` on Ascend NPUs, and marks that are passed on to it.

Written against the Python layer of torch_npu 2.1 to 2.14, and tested with it over a stub of the
native module. No NPU has run it yet. The vendor's methods swallow their errors and print them, so
this module calls the functions behind the decorator.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.backends.base import Blocked, Saved
from dynprof.backends.collectors import Collectors
from dynprof.backends.collectors.marks import HOST_ONLY, warn_once
from dynprof.backends.torch.collectors import MemoryHistory
from dynprof.errors import BackendError
from dynprof.marks.nvtx import NVTX_MARKS
from dynprof.marks.open_ranges import MAX_STARTED, all_open, forget_oldest
from dynprof.marks.sinks import SINKS, Range, Sink, is_short
from dynprof.requests.capabilities import Capabilities
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.graph_captures import GRAPH_CAPTURES
from dynprof.runtime.modules import imported_module
from dynprof.runtime.permissions import who_else_may_change
from dynprof.runtime.safe_write import PrivateFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from dynprof.backends.base import MakeFolder
    from dynprof.config import ProfilerConfig
    from dynprof.config.sections import ExperimentalConfig
    from dynprof.marks.sinks import Source
    from dynprof.requests.plan import Plan
    from dynprof.runtime.rank import Rank

MAX_METADATA_CHARS = 4096
"""Longest metadata value; the vendor drops longer ones, and all values beyond about 50 KiB."""
_VENDOR_ERRORS = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError)
"""Exceptions that the vendor's methods may raise; they serve many devices and versions."""


class NpuBackend:
    """Records with ``torch_npu.profiler``."""

    name = "npu"
    trace_suffix = "ascend_pt"

    def capabilities(self) -> Capabilities:
        """Offer what the vendor's profiler supports; the job must have imported torch_npu."""
        device = getattr(imported_module("torch_npu"), "npu", None)
        if device is None:
            return Capabilities(self.name, missing="this process has not imported torch_npu")
        try:
            import torch_npu.profiler as vendor

            supported = {activity.name for activity in vendor.supported_activities()}
            devices = device.device_count()
            if graphs := getattr(device, "NPUGraph", None):
                GRAPH_CAPTURES.follow(graphs, "an NPU graph")
        except (ImportError, AttributeError, RuntimeError) as error:
            return Capabilities(self.name, missing=f"torch_npu.profiler cannot be used: {error}")
        if "NPU" not in supported or not devices:
            return Capabilities(self.name, missing="torch_npu sees no NPU")
        return Capabilities(self.name, tuple(name for name in ("CPU", "NPU") if name in supported))

    def versions(self) -> dict[str, str]:
        """Return the versions of Python, torch and torch_npu."""
        names = ("torch", "torch_npu")
        found = {name: str(getattr(sys.modules[name], "__version__", "?")) for name in names}
        return {"python": platform.python_version(), **found}

    def blocked_by(self, plan: Plan, *, elsewhere: bool = False) -> Iterator[Blocked]:  # noqa: ARG002
        """Yield the graph capture that blocks the window, if there is one.

        A thread sees only its own profilers; ``prepare`` checks for another one.
        """
        if not elsewhere and (reason := _why_blocked()):
            yield Blocked(reason)

    def prepare(self, plan: Plan, rank: Rank, scratch: MakeFolder) -> NpuRecording:  # noqa: ARG002
        """Start the vendor's profiler, for the warm-up."""
        import torch
        import torch_npu.profiler as vendor

        if torch.autograd._profiler_enabled():
            raise BackendError("another profiler is active in this process; stop it first")
        recording = NpuRecording(vendor, plan, _with_trusted_path(scratch()))
        recording.warm_up()
        return recording


def _with_trusted_path(folder: PrivateFolder) -> PrivateFolder:
    """Return a folder whose path the vendor's own programs can trust.

    Where other users may write to a parent folder, it is a folder in the temporary directory.
    """
    if not who_else_may_change(folder.place):
        return folder
    folder.remove()
    return PrivateFolder(Path(tempfile.gettempdir()) / folder.place.name)


def _why_blocked() -> str | None:
    """Return the graph capture that blocks a window, if any: synchronising would break it."""
    if reason := GRAPH_CAPTURES.under_way():
        return reason
    capturing = getattr(sys.modules["torch_npu"].npu, "is_current_stream_capturing", None)
    return "an NPU graph is being captured" if capturing and capturing() else None


class NpuRecording:
    """A recording of ``torch_npu.profiler``."""

    bound_to_thread = True
    results = None
    saves_concurrently = True
    note_step = None
    closing = "inline: torch_npu collects on the training thread"
    without = fallbacks = ()

    def __init__(self, vendor: Any, plan: Plan, scratch: PrivateFolder) -> None:
        config = plan.config
        wanted = config.memory_snapshot
        self.collectors = Collectors(MemoryHistory.of_devices(plan.activities) if wanted else ())
        self._scratch, self._pid = scratch, os.getpid()
        self._lost: list[str] = []
        self._actions = vendor.ProfilerAction
        self._action = self._actions.WARMUP
        self._steps_left = None if plan.script else config.active
        self._marks = _marks(config.experimental, self._lost)
        self._metadata = config.metadata
        self._scripts_metadata = plan.script.metadata if plan.script else {}
        activities = [getattr(vendor.ProfilerActivity, name) for name in plan.activities]
        self._profiler = vendor.profile(
            activities=activities,
            schedule=self._schedule(vendor.schedule, config),
            on_trace_ready=vendor.tensorboard_trace_handler(str(scratch.place), analyse_flag=False),
            record_shapes=config.record_shapes,
            profile_memory=config.profile_memory,
            with_stack=config.with_stack,
            with_flops=config.with_flops,
            with_modules=config.with_modules,
            experimental_config=experimental(vendor, config.experimental, self._lost),
        )

    def blocked_by(self) -> str | None:
        """Return the graph capture that blocks the window; None if there is none."""
        return _why_blocked()

    def load(self, *, inside_step: bool) -> None:
        """Return None: the vendor writes to disk as it records."""

    def _schedule(self, schedule: type, config: ProfilerConfig) -> Any:
        """Return a schedule that shows the vendor's tools the config; this object controls it."""
        steered = type("Schedule", (schedule,), {"__call__": lambda _self, _step: self._action})
        return steered(wait=0, warmup=config.warmup, active=config.active, repeat=1)

    def warm_up(self) -> None:
        """Start the warm-up.

        Raises:
            BackendError: The vendor's profiler did not start.
        """
        try:
            self._call_vendor("start")
        except BackendError:
            self.discard()
            raise

    def start(self) -> None:
        """End the warm-up; the vendor's profiler does so with its next step."""
        self._add_metadata(self._metadata)

    def _add_metadata(self, metadata: Mapping[str, Any]) -> None:
        for key, value in metadata.items():
            text = json.dumps(value)
            if len(text) > MAX_METADATA_CHARS:
                self._lost.append(f"metadata {key!r}: torch_npu takes {MAX_METADATA_CHARS} chars")
            self._profiler.add_metadata_json(key, text)

    def begin_step(self, number: int | None) -> None:
        """End the previous step and begin a step, under the job's number."""
        if self._steps_left is not None:
            self._steps_left -= 1
        last = self._steps_left == 0
        self._action = self._actions.RECORD_AND_SAVE if last else self._actions.RECORD
        if number is not None:
            self._profiler.step_num = number - 1  # the vendor counts steps from 0
        self._call_vendor("step")
        if self._marks:
            self._marks.start()  # the vendor's profiler accepts marks only from here on

    def close(self) -> None:
        """Stop as the vendor's profiler ends a complete window, or a cut one."""
        self._end_marks()
        self._add_metadata(self._scripts_metadata)
        if self._action is self._actions.RECORD_AND_SAVE:
            self._action = self._actions.NONE
            self._call_vendor("step")
        self._call_vendor("stop")

    def save(self, path: Path) -> Saved:
        """Move the vendor's folder to where the trace is assembled."""
        self._profiler = None
        folders = self._folders()
        if not folders or not any(folders[0].glob("profiler_info*.json")):
            raise BackendError("torch_npu wrote no profiler_info next to its data")
        folder = Path(shutil.move(folders[0], path.with_name(folders[0].name)))
        self._scratch.remove()
        return Saved(lost=tuple(self._lost), folder=folder.name)

    def discard(self) -> None:
        """Stop, and delete the recorded data."""
        self._end_marks()
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()
        self._scratch.remove()

    def before_another_profiler(self, close_for_other: Callable[[], None]) -> None:
        """Do nothing: the vendor's profiler does not detect others."""

    def abandon(self) -> None:
        """Discard, except in a forked child: an NPU does not survive a fork."""
        if os.getpid() == self._pid:
            self.discard()

    def _end_marks(self) -> None:
        if self._marks:
            self._marks.stop()

    def _call_vendor(self, name: str) -> None:
        """Call a method of the vendor's profiler without its ``no_exception_func``."""
        try:
            with GRAPH_CAPTURES.block_captures():
                inspect.unwrap(getattr(type(self._profiler), name))(self._profiler)
        except _VENDOR_ERRORS as error:
            raise BackendError(f"torch_npu.profiler failed in {name}(): {error}") from error

    def _folders(self) -> list[Path]:
        return list(self._scratch.path.glob("*_ascend_pt"))


def call_for_thread(call: str, **settings: bool) -> bool:
    """Call a method of the vendor's ``profile`` that affects the calling thread.

    Returns:
        Whether this process has such a call.

    Raises:
        BackendError: A graph is being captured.
    """
    vendor = getattr(sys.modules.get("torch_npu"), "profiler", None)
    method = getattr(getattr(vendor, "profile", None), call, None)
    if method is None:
        return False
    with GRAPH_CAPTURES.block_captures():
        method(**settings)
    return True


def _marks(settings: ExperimentalConfig, lost: list[str]) -> VendorMarks | None:
    """Return the sink that passes marks on; None where they are not requested or not supported."""
    device = sys.modules["torch_npu"].npu
    if not settings.marks:
        return None
    if not hasattr(device, "mstx"):
        lost.append("this version of torch_npu has no mstx: marks of dynprof.mstx are missing")
        return None
    return VendorMarks(device, (NVTX_MARKS,))


def experimental(vendor: Any, settings: ExperimentalConfig, lost: list[str]) -> Any:
    """Return the settings as the ``_ExperimentalConfig`` of this version of torch_npu.

    Args:
        vendor: ``torch_npu.profiler``.
        settings: The config's settings.
        lost: Receives a sentence for each setting that this version does not know.
    """
    accepted = inspect.signature(vendor._ExperimentalConfig.__init__).parameters
    known: dict[str, object] = {}
    metrics = getattr(vendor.AiCMetrics, settings.aic_metrics, None)
    if metrics is None:
        lost.append(f"this version of torch_npu has no aic_metrics {settings.aic_metrics}")
        metrics = vendor.AiCMetrics.AiCoreNone
    known["aic_metrics"] = metrics
    for name, value in _vendor_settings(vendor, settings, accepted):
        if name in accepted:
            known[name] = value
        elif value:
            lost.append(f"this version of torch_npu has no {name}")
    return vendor._ExperimentalConfig(**known)


def _vendor_settings(
    vendor: Any, settings: ExperimentalConfig, accepted: Any
) -> Iterator[tuple[str, object]]:
    """Yield the settings under the vendor's names, as the vendor's values."""
    yield "profiler_level", getattr(vendor.ProfilerLevel, settings.profiler_level)
    types = [getattr(vendor.ExportType, name.capitalize()) for name in settings.export_types]
    one = accepted["export_type"].annotation in (str, "str")  # before 2.5 it took no list
    yield "export_type", types[0] if one or len(types) == 1 else types
    yield ("mstx" if "mstx" in accepted else "msprof_tx"), settings.marks
    yield "host_sys", [name.lower() for name in settings.host_sys or ()]
    yield "mstx_domain_include", settings.mstx_domain_include
    yield "mstx_domain_exclude", settings.mstx_domain_exclude
    for name in ("l2_cache", "op_attr", "gc_detect_threshold", "data_simplification"):
        yield name, getattr(settings, name)
    for name in ("record_op_args", "sys_io", "sys_interconnection"):
        yield name, getattr(settings, name)


class VendorMarks(Sink):
    """Passes each mark and range on to torch_npu while an NPU records; open ranges begin with it.

    Args:
        device: ``torch_npu.npu``.
        sources: Other sources of marks to pass on.
    """

    wants_begins = True

    def __init__(self, device: Any, sources: Collection[Source]) -> None:
        self._mstx, self._streams = device.mstx, getattr(device, "streams", None)
        self._sources, self._boundary = sources, ErrorBoundary(StderrNotes())
        self._open: dict[int, tuple[Range, int]] = {}
        self._accepted = {
            name: inspect.signature(getattr(self._mstx, name)).parameters
            for name in ("mark", "range_start", "range_end")
        }

    def start(self) -> None:
        """Pass on marks from now on; further calls do nothing."""
        if self in SINKS.on_streams:
            return
        SINKS.add(self)
        for source in self._sources:
            source.add(self)
        for begun in all_open():
            if is_short(begun.message):
                self.begin(begun)

    def stop(self) -> None:
        """End the open ranges and stop passing on marks; may be called twice."""
        SINKS.remove(self)
        for source in self._sources:
            source.remove(self)
        while self._open:
            with contextlib.suppress(KeyError):  # another thread may end one
                begun, _ = next(iter(self._open.copy().values()))
                self.end(begun)

    def mark(self, message: str, domain: str, stream: object = None) -> None:
        """Set the mark in torch_npu."""
        self._call("mark", message, stream=self._stream(stream), domain=domain)

    def begin(self, begun: Range) -> None:
        """Begin the range in torch_npu, unless it has begun."""
        if id(begun) in self._open:
            return
        stream = self._stream(begun.stream)
        number = self._call("range_start", begun.message, stream=stream, domain=begun.domain)
        if number:
            self._open[id(begun)] = (begun, number)
        if len(self._open) > MAX_STARTED:  # a script may never end any
            forget_oldest(self._open)

    def end(self, ended: Range) -> None:
        """End the range in torch_npu, if it was begun there."""
        _, number = self._open.pop(id(ended), (None, None))
        if number is not None:
            self._call("range_end", number, domain=ended.domain)

    def _stream(self, stream: object) -> object:
        """Return a stream of the vendor's; None for others, which would make it lose the mark."""
        kind = getattr(self._streams, "Stream", None)
        if stream is None or (isinstance(stream, int) and not stream):
            return None
        if kind and isinstance(stream, kind):
            return stream
        text = f"{HOST_ONLY}: the stream is a {type(stream).__name__}; give a torch_npu.npu.Stream"
        self._boundary.attempt("a warning", lambda: warn_once(text))
        return None

    def _call(self, name: str, first: object, **more: object) -> Any:
        """Call a function with the arguments that its version knows; an error costs the mark."""
        known = {key: value for key, value in more.items() if key in self._accepted[name]}
        found: list[Any] = []
        function = getattr(self._mstx, name)
        self._boundary.attempt(
            f"torch_npu.npu.mstx.{name}", lambda: found.append(function(first, **known))
        )
        return found[0] if found else None
