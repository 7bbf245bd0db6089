"""``torch.profiler`` on CPU, CUDA and XPU.

This module never imports torch before the training script does: a job without torch must not pay
for it.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynprof.backends.base import Blocked, discard
from dynprof.backends.collectors import Collectors, Unavailable, collectors_for
from dynprof.backends.torch.closing import (
    COLLECTOR,
    choose_close,
    usable_functions,
    why_close_is_unknown,
    why_detached_is_unsafe,
    why_inline,
)
from dynprof.backends.torch.collectors import (
    CUDA_STREAMS,
    MemoryHistory,
    OperatorArguments,
    ScriptObserver,
)
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from dynprof.backends.torch.features import (
    HOST,
    device_activities,
    experimental_config,
    has,
    has_on,
    lacks,
    takes_trace_id,
    used_activities,
)
from dynprof.backends.torch.forks import end_config_thread, guard_forks, profiler_change
from dynprof.backends.torch.kineto import KINETO, OCCUPIED, ScriptSession
from dynprof.backends.torch.open_annotations import UNFINISHED
from dynprof.backends.torch.quiescence import native_thread_ids
from dynprof.backends.torch.torch_recording import (
    TorchRecording,
    follow_graph_captures,
    in_backward,
    why_not_counted,
    why_not_now,
)
from dynprof.errors import BackendError
from dynprof.requests.capabilities import Capabilities, fallbacks
from dynprof.runtime.modules import imported_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.backends.base import MakeFolder
    from dynprof.backends.collectors import Collector
    from dynprof.requests.plan import Plan
    from dynprof.runtime.rank import Rank


class TorchBackend:
    """Records with ``torch.profiler``.

    Args:
        for_script: The script itself requests the recording and prefers waiting to a refusal.
        detaches: Whether a recording may use the detached close, after a self-test.
    """

    name = "torch"
    trace_suffix = "pt.trace.json"

    def __init__(self, *, for_script: bool = False, detaches: bool = True) -> None:
        self._for_script, self._detaches = for_script, detaches
        self._last_prepared: weakref.ref[TorchRecording] | None = None

    def capabilities(self) -> Capabilities:
        """Offer CPU, and the devices that this process can see."""
        if not hasattr(imported_module("torch"), "autograd"):
            return Capabilities(self.name, missing="this process has not imported torch")
        import torch.profiler

        with contextlib.suppress(ImportError):  # as in session/startup.py
            import torch.profiler.python_tracer
        if not torch.profiler.kineto_available():
            return Capabilities(self.name, missing="this build of torch has no Kineto")
        KINETO.watch()
        guard_forks()
        follow_graph_captures()
        if self._detaches:
            SELF_TEST.begin()
        activities = device_activities(torch)
        capable = Capabilities(self.name, activities=activities, lacks=tuple(lacks()))
        return self._with_fallbacks(capable) if self._detaches else capable

    def _with_fallbacks(self, capable: Capabilities) -> Capabilities:
        """Add what the self-test means for windows here; nothing while they wait for its answer."""
        awaited = why_close_is_unknown((HOST,))
        return replace(
            capable,
            inline=why_inline((HOST,)),
            inline_on_device=why_inline(used_activities(sys.modules["torch"], capable.activities)),
            one_thread="" if awaited else _why_no_threads(),
            uncounted=why_not_counted(),
            is_testing=SELF_TEST.is_running,
        )

    def versions(self) -> dict[str, str]:
        """Return the versions of torch and of the toolkits it was built with."""
        import torch

        devices = {"cuda": torch.version.cuda, "hip": torch.version.hip}
        found = {name: str(version) for name, version in devices.items() if version}
        return {"python": platform.python_version(), "torch": str(torch.__version__), **found}

    def blocked_by(self, plan: Plan, *, elsewhere: bool = False) -> Iterator[Blocked]:
        """Wait for backward passes, graph captures, the last collection and the self-test.

        The self-test of the detached close takes some seconds, once for each build of torch.
        """
        if not elsewhere:
            anywhere = bool(plan.script) or _records_all_threads(plan)
            if reason := why_not_now(in_backward_too=anywhere):
                yield Blocked(reason)
        if KINETO.collecting and not self._for_script:
            yield Blocked("the events of the last window are being collected")
        asked = plan.activities
        watched = asked if self._for_script else used_activities(sys.modules["torch"], asked)
        if reason := why_close_is_unknown(watched):
            yield Blocked(reason, "prefer wait")
        if KINETO.script_is_profiling:
            yield Blocked(OCCUPIED, "refused")

    def prepare(self, plan: Plan, rank: Rank, scratch: MakeFolder) -> TorchRecording:
        """Start ``torch.profiler``, for the warm-up."""
        while True:
            if plan.script:
                KINETO.end_open_window()  # not under the lock: closing a window takes it
            KINETO.wait()
            with profiler_change():  # of two concurrent threads, one sees the other
                if not (KINETO.collecting or (plan.script and KINETO.has_window)):
                    return self._prepare(plan, rank, scratch)

    def _prepare(self, plan: Plan, rank: Rank, scratch: MakeFolder) -> TorchRecording:
        import torch

        self._discard_orphan()
        windowed = plan.script and KINETO.has_window  # else that window was given up
        if KINETO.script_is_profiling or windowed or _is_on_here(torch):
            raise BackendError(OCCUPIED)
        with contextlib.suppress(BackendError):
            usable_functions().remove_parent_callback()
        in_use = [home.__name__ for home in (sys, threading) if home.getprofile()]
        if plan.config.with_stack and in_use:
            text = f"with_stack would replace the job's own {in_use[0]}.setprofile()"
            raise BackendError(f"{text}; turn with_stack off")
        asked = plan.activities
        plan = plan if plan.script else replace(plan, activities=used_activities(torch, asked))
        session = ScriptSession() if plan.script else KINETO
        facts = _rank_facts(rank)
        in_place = plan.script.in_place if plan.script else ""
        functions, inline = choose_close(plan.activities, in_place)
        if functions:
            COLLECTOR.start()
        all_threads = _records_all_threads(plan)
        profiler = _profiler(plan, all_threads=all_threads)
        unused = tuple(name for name in asked if name not in plan.activities)
        collectors = Collectors([*_collectors(plan, scratch), *map(_not_used, unused)])
        recording = TorchRecording(
            profiler, session, facts, functions, f"inline: {inline}" if inline else "detached",
            collectors, all_threads=all_threads,
        )  # fmt: skip
        recording.without = unused
        recording.fallbacks = _fallbacks(plan, "" if in_place else inline)
        with contextlib.ExitStack() as undo:
            undo.callback(discard, recording)
            self._last_prepared = None if plan.script else weakref.ref(recording)
            before = native_thread_ids()
            recording.prepare()
            end_config_thread(native_thread_ids() - before)
            undo.pop_all()
        return recording

    def _discard_orphan(self) -> None:
        """Discard the last recording if Ctrl-C came before its window took it over.

        Its session then still references it. A saved one is gone, with the events of its window.
        """
        last, self._last_prepared = self._last_prepared, None
        made = last() if last else None
        if made and not made.is_adopted:
            discard(made)


def _is_on_here(torch: Any) -> bool:
    """Return whether a profiler is on, on this thread.

    A backward pass restores the state of its forward pass, for example a window that has ended.
    """
    return bool(torch.autograd._profiler_enabled()) and not in_backward()


def _not_used(activity: str) -> Unavailable:
    return Unavailable(f"{activity} was not recorded: this process had not used it yet")


def _profiler(plan: Plan, *, all_threads: bool) -> Any:
    """Map the config to ``torch.profiler``; the table in docs/settings.md says the same."""
    from torch.profiler import ProfilerActivity, _KinetoProfile

    config, script = plan.config, plan.script
    gives_id = script and script.trace_id and takes_trace_id()
    profiler = _KinetoProfile(
        activities=[getattr(ProfilerActivity, name) for name in plan.activities],
        record_shapes=config.record_shapes,
        profile_memory=plan.config.records_memory,
        with_stack=config.with_stack,
        with_flops=config.with_flops,
        with_modules=config.with_modules,
        experimental_config=(script and script.experimental_config)
        or _experimental(plan, all_threads=all_threads),
        **({"custom_trace_id_callback": script.trace_id} if script and gives_id else {}),
    )
    _create_profiler(profiler)
    return profiler


def _create_profiler(kineto_profile: Any) -> None:
    """Create torch's inner profiler as ``prepare_trace()`` does, without ``torch._inductor``.

    torch imports that module, for a second or more, to ask whether compiled code uses CUDA graphs.
    A job that has not loaded it has no compiled code.
    """
    from torch.autograd.profiler import profile

    config = sys.modules.get("torch._inductor.config")
    kineto_profile.has_cudagraphs = bool(config and config.triton.cudagraphs)
    kineto_profile.profiler = profile(
        use_cpu=any(activity.name == "CPU" for activity in kineto_profile.activities),
        use_device=kineto_profile.use_device,
        record_shapes=kineto_profile.record_shapes,
        with_flops=kineto_profile.with_flops,
        profile_memory=kineto_profile.profile_memory,
        with_stack=kineto_profile.with_stack,
        use_kineto=True,
        experimental_config=kineto_profile.experimental_config,
        **_newer_arguments(kineto_profile),
    )
    # Not an argument: newer versions warn of it on the job's stderr. The plan's remark says it.
    kineto_profile.profiler.with_modules = kineto_profile.with_modules


def _newer_arguments(kineto_profile: Any) -> dict[str, Any]:
    """Return the arguments that older versions do not know; only those that are in use."""
    callback = getattr(kineto_profile, "custom_trace_id_callback", None)
    return {"custom_trace_id_callback": callback} if callback else {}


def _records_all_threads(plan: Plan) -> bool:
    """Return whether to record all threads, so that any thread can end a step or the window.

    The allocator reports to the profiler of its own thread only. So a window that records memory
    records only that thread. A script gets torch's default, unless it requests all threads.
    """
    if plan.script and plan.script.experimental_config:
        return has_on(plan.script.experimental_config, "profile_all_threads")
    if plan.script:
        return plan.script.all_threads and has("profile_all_threads")
    return not (plan.config.records_memory or _why_one_thread())


def _why_no_threads() -> str:
    """Return why no window of this process can record all threads; empty where they can."""
    if not has("profile_all_threads"):
        return "torch lacks profile_all_threads"
    return why_detached_is_unsafe()


def _why_one_thread() -> str:
    """Return why a window cannot safely record all threads; empty where it can."""
    if reason := _why_no_threads():
        return reason
    threads = UNFINISHED.threads()
    numbers = ", ".join(map(str, sorted(threads)[:3])) + (", ..." if len(threads) > 3 else "")
    return f"{UNFINISHED.why} on thread {numbers}" if threads else ""


def _fallbacks(plan: Plan, inline: str) -> tuple[str, ...]:
    """Return where a window records or closes in a slower or lesser way than planned."""
    one_thread = "" if plan.script or plan.config.records_memory else _why_one_thread()
    return fallbacks(inline, one_thread, "" if plan.script else why_not_counted())


def _collectors(plan: Plan, scratch: MakeFolder) -> Iterator[Collector]:
    """Yield the window's collectors."""
    config = plan.config
    device = CUDA_STREAMS if "CUDA" in plan.activities else None
    yield from collectors_for(config.experimental, device=device)
    if config.experimental.record_op_args:
        yield OperatorArguments(scratch())
    if plan.script and plan.script.observer:
        yield ScriptObserver(plan.script.observer)
    if config.memory_snapshot:
        yield from MemoryHistory.of_devices(plan.activities)


def _experimental(plan: Plan, *, all_threads: bool) -> Any:
    level = plan.config.experimental.profiler_level
    asked = {
        "enable_cuda_sync_events": level in ("Level1", "Level2") and "CUDA" in plan.activities,
        "capture_overload_names": level == "Level2",
        "profile_all_threads": all_threads,
    }
    return experimental_config(asked)


def _rank_facts(rank: Rank) -> str | None:
    """Return the metadata that gives a trace its rank; None where torch writes it itself."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return None
    return json.dumps({"backend": "none", "rank": rank.number, "world_size": rank.world_size})
