"""``torch.profiler`` on CPU, CUDA and XPU.

torch is never imported here before the training script has done so: a job that does not use it
must not pay for it.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynprof.backends.base import Blocked, discard
from dynprof.backends.collectors import Collectors, Lacking, collectors_for
from dynprof.backends.torch.closing import (
    COLLECTOR,
    choose_close,
    usable,
    why_close_is_unknown,
    why_detached_is_unsafe,
    why_inline,
)
from dynprof.backends.torch.cuda_streams import CUDA_STREAMS
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from dynprof.backends.torch.devices import HOST, device_activities, used
from dynprof.backends.torch.features import experimental_config, has, has_on, lacks, takes_trace_id
from dynprof.backends.torch.forks import end_settings_thread, guard_forks, undisturbed
from dynprof.backends.torch.kineto import KINETO, OCCUPIED, ScriptSession
from dynprof.backends.torch.memory_history import MemoryHistory
from dynprof.backends.torch.operator_arguments import OperatorArguments, ScriptsObserver
from dynprof.backends.torch.quiescence import tasks
from dynprof.backends.torch.recorded_events import why_not_counted
from dynprof.backends.torch.torch_recording import (
    TorchRecording,
    follow_graph_captures,
    in_backward,
    why_not_now,
)
from dynprof.backends.torch.unfinished_operators import UNFINISHED
from dynprof.errors import BackendError
from dynprof.requests.capabilities import Capabilities, fallbacks
from dynprof.runtime.modules import whole_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.backends.base import MakeFolder
    from dynprof.backends.collectors import Collector
    from dynprof.requests.plan import Plan
    from dynprof.runtime.rank import Rank


class TorchBackend:
    """Records with ``torch.profiler``.

    Args:
        for_script: The script asks itself, and rather waits than be put off.
        detaches: Whether a recording may be closed in the detached way, which is tested first.
    """

    name = "torch"
    trace_suffix = "pt.trace.json"

    def __init__(self, *, for_script: bool = False, detaches: bool = True) -> None:
        self._for_script, self._detaches = for_script, detaches
        self._made: TorchRecording | None = None

    def capabilities(self) -> Capabilities:
        """Offer CPU, and the devices that this process can see."""
        if not hasattr(whole_module("torch"), "autograd"):
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
        """Say what the self-test means for windows here; nothing where they wait for its answer."""
        awaited = why_close_is_unknown((HOST,))
        return replace(
            capable,
            inline=why_inline((HOST,)),
            inline_on_device=why_inline(used(sys.modules["torch"], capable.activities)),
            one_thread="" if awaited else _why_no_threads(),
            uncounted=why_not_counted(),
            is_testing=SELF_TEST.is_running,
        )

    def versions(self) -> dict[str, str]:
        """Return the versions of torch and of what it was built with."""
        import torch

        devices = {"cuda": torch.version.cuda, "hip": torch.version.hip}
        found = {name: str(version) for name, version in devices.items() if version}
        return {"python": platform.python_version(), "torch": str(torch.__version__), **found}

    def blocked_by(self, plan: Plan, *, elsewhere: bool = False) -> Iterator[Blocked]:
        """Wait for the end of backward passes, graph captures, the last collecting and a test.

        The test of the detached close takes seconds once for each build of torch.
        """
        if not elsewhere:
            anywhere = bool(plan.script) or _records_all_threads(plan)
            if reason := why_not_now(in_backward_too=anywhere):
                yield Blocked(reason)
        if KINETO.collecting and not self._for_script:
            yield Blocked("the events of the last one are being collected")
        asked = plan.activities
        watched = asked if self._for_script else used(sys.modules["torch"], asked)
        if reason := why_close_is_unknown(watched):
            yield Blocked(reason, "rather wait")
        if KINETO.script_has_it:
            yield Blocked(OCCUPIED, "refused")

    def prepare(self, plan: Plan, rank: Rank, scratch: MakeFolder) -> TorchRecording:
        """Turn ``torch.profiler`` on."""
        while True:
            if plan.script:
                KINETO.make_room()  # outside of the lock, which closing a window needs as well
            KINETO.wait()
            with undisturbed():  # and of two threads that come at once, one sees the other
                if not (KINETO.collecting or (plan.script and KINETO.has_window)):
                    return self._prepare(plan, rank, scratch)

    def _prepare(self, plan: Plan, rank: Rank, scratch: MakeFolder) -> TorchRecording:
        import torch

        self._discard_strayed()
        windowed = plan.script and KINETO.has_window  # else it was given up; its thread stays away
        if KINETO.script_has_it or windowed or _is_on_here(torch):
            raise BackendError(OCCUPIED)
        with contextlib.suppress(BackendError):
            usable().end_forgotten()
        theirs = [home.__name__ for home in (sys, threading) if home.getprofile()]
        if plan.config.with_stack and theirs:
            text = f"with_stack would take the place of the job's own {theirs[0]}.setprofile()"
            raise BackendError(f"{text}; ask without it")
        asked = plan.activities
        plan = plan if plan.script else replace(plan, activities=used(torch, asked))
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
            self._made = None if plan.script else recording
            before = tasks()
            recording.prepare()
            end_settings_thread(tasks() - before)
            undo.pop_all()
        return recording

    def _discard_strayed(self) -> None:
        """Discard the last recording if Ctrl-C kept it from the window that it was made for."""
        made, self._made = self._made, None
        if made and not made.arrived:
            discard(made)


def _is_on_here(torch: Any) -> bool:
    """Return whether a profiler is on, on this thread.

    A backward pass brings back what its forward pass saw, a window that has ended since, say.
    """
    return bool(torch.autograd._profiler_enabled()) and not in_backward()


def _not_used(activity: str) -> Lacking:
    return Lacking(f"{activity} was not recorded: this process had not used it yet")


def _profiler(plan: Plan, *, all_threads: bool) -> Any:
    """Map the config onto ``torch.profiler``; the table in docs/settings.md says the same."""
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
    _complete(profiler)
    return profiler


def _complete(kineto_profile: Any) -> None:
    """Do what torch's ``prepare_trace()`` does before it prepares, without ``torch._inductor``.

    torch imports that, for a second or more, to ask whether compiled code uses CUDA graphs; a job
    that has not loaded it has no compiled code.
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
        **_newer(kineto_profile),
    )
    # Not as an argument: newer versions warn of it, on the job's stderr; the plan's remark says it.
    kineto_profile.profiler.with_modules = kineto_profile.with_modules


def _newer(kineto_profile: Any) -> dict[str, Any]:
    """Return what is handed on only where it was asked for: older versions do not know it."""
    callback = getattr(kineto_profile, "custom_trace_id_callback", None)
    return {"custom_trace_id_callback": callback} if callback else {}


def _records_all_threads(plan: Plan) -> bool:
    """Return whether to record all threads, which lets any of them end a step or the window.

    The allocator reports to the profiler of its own thread only, so where memory is asked for,
    that thread alone is recorded. A script gets what torch would give it, unless it asks.
    """
    if plan.script and plan.script.experimental_config:
        return has_on(plan.script.experimental_config, "profile_all_threads")
    if plan.script:
        return plan.script.all_threads and has("profile_all_threads")
    return not (plan.config.records_memory or _why_one_thread())


def _why_no_threads() -> str:
    """Say why no window of this process can record all threads; empty where they can."""
    if not has("profile_all_threads"):
        return "torch lacks profile_all_threads"
    return why_detached_is_unsafe()


def _why_one_thread() -> str:
    """Say why a window cannot record all threads without harm; empty where it can."""
    if reason := _why_no_threads():
        return reason
    threads = UNFINISHED.threads()
    numbers = ", ".join(map(str, sorted(threads)[:3])) + (", ..." if len(threads) > 3 else "")
    return f"{UNFINISHED.why} on thread {numbers}" if threads else ""


def _fallbacks(plan: Plan, inline: str) -> tuple[str, ...]:
    """Return how a window is recorded or closed in a lesser way than it was meant."""
    one_thread = "" if plan.script or plan.config.records_memory else _why_one_thread()
    return fallbacks(inline, one_thread, "" if plan.script else why_not_counted())


def _collectors(plan: Plan, scratch: MakeFolder) -> Iterator[Collector]:
    """Yield what records beside the profiler."""
    config = plan.config
    device = CUDA_STREAMS if "CUDA" in plan.activities else None
    yield from collectors_for(config.experimental, device=device)
    if config.experimental.record_op_args:
        yield OperatorArguments(scratch())
    if plan.script and plan.script.observer:
        yield ScriptsObserver(plan.script.observer)
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
    """Return what readers of the trace find the rank in; None where torch writes it itself."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return None
    return json.dumps({"backend": "none", "rank": rank.number, "world_size": rank.world_size})
