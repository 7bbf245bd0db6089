"""``torch.profiler`` on CPU, CUDA and XPU.

torch is never imported here before the training script has done so: a job that does not use it
must not pay for it.
"""

from __future__ import annotations

import ctypes
import functools
import json
import platform
import sys
import time
from typing import TYPE_CHECKING, Any

from dynprof.backends.base import Saved
from dynprof.backends.closing import COLLECTOR, choose_close, why_close_is_unknown
from dynprof.backends.forks import make_forks_safe
from dynprof.backends.kineto import KINETO
from dynprof.backends.selftest import SELF_TEST
from dynprof.errors import BackendError
from dynprof.offer import Offer

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.backends.base import MakeFolder
    from dynprof.backends.libtorch import DetachedClose
    from dynprof.plan import Plan
    from dynprof.rank import Rank


class TorchBackend:
    """Records with ``torch.profiler``."""

    name = "torch"
    trace_suffix = "pt.trace.json"

    def offer(self) -> Offer:
        """Offer CPU, and the devices that this process can see."""
        if not hasattr(sys.modules.get("torch"), "autograd"):
            return Offer(self.name, missing="this process has not imported torch")
        import torch.profiler

        if not torch.profiler.kineto_available():
            return Offer(self.name, missing="this build of torch has no Kineto")
        KINETO.watch()
        SELF_TEST.begin()
        return Offer(self.name, activities=device_activities(torch))

    def versions(self) -> dict[str, str]:
        """Return the versions of torch and of what it was built with."""
        import torch

        devices = {"cuda": torch.version.cuda, "hip": torch.version.hip}
        found = {name: str(version) for name, version in devices.items() if version}
        return {"python": platform.python_version(), "torch": str(torch.__version__), **found}

    def obstacle(self) -> str | None:
        """Wait while a CUDA graph is being captured: synchronising would break it."""
        import torch

        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return "a CUDA graph is being captured"
        return None

    def hesitation(self, activities: tuple[str, ...]) -> str | None:
        """Wait for the self-test, which takes seconds once for each build of torch."""
        return why_close_is_unknown(activities)

    def prepare(self, plan: Plan, rank: Rank, scratch: MakeFolder) -> TorchRecording:  # noqa: ARG002
        """Turn ``torch.profiler`` on."""
        import torch

        if KINETO.script_has_it or torch.autograd._profiler_enabled():
            raise BackendError("another torch.profiler is active in this process; stop it first")
        if plan.config.with_stack and sys.getprofile():
            text = "with_stack would take the place of the job's own sys.setprofile()"
            raise BackendError(f"{text}; ask without it")
        profiler = _prepared(_profiler(plan))
        make_forks_safe()
        functions, closing = choose_close(plan.activities)
        return TorchRecording(profiler, _rank_facts(rank), functions, closing)


class TorchRecording:
    """One window of ``torch.profiler``."""

    bound_to_thread = True

    def __init__(
        self,
        profiler: Any,
        rank_facts: str | None,
        functions: DetachedClose | None,
        closing: str,
    ) -> None:
        self.closing = closing
        self._profiler = profiler
        self._rank_facts = rank_facts
        self._functions = functions
        self._taken: Any = None
        self._step: Any = None
        self._state = "prepared"

    def start(self) -> None:
        """Keep what happens from here on."""
        self._insist()
        KINETO.start(self._profiler.start_trace)
        self._state = "running"
        if self._rank_facts:
            self._profiler.add_metadata_json("distributedInfo", self._rank_facts)

    def begin_step(self, number: int) -> None:
        """Mark a step in the way that TensorBoard and HolisticTraceAnalysis look for."""
        from torch.autograd.profiler import record_function

        self._insist()
        self._end_step()
        self._step = record_function(f"ProfilerStep#{number}")
        self._step.__enter__()

    def stop(self) -> None:
        """Stop recording: take the profiler off this thread, or let torch collect its events."""
        self._insist()
        self._end_step()
        if self._functions:
            self._synchronise()
            self._taken = self._functions.take_off()
            KINETO.hand_over()
            sys.modules["torch.autograd.profiler"]._run_on_profiler_stop()
        else:
            KINETO.stop(self._profiler.stop_trace)
        self._state = "stopped"

    def save(self, path: Path) -> Saved:
        """Write the Chrome trace."""
        profiler, self._profiler = self._profiler, None
        taken, self._taken = self._taken, None
        if self._functions:
            COLLECTOR.run(functools.partial(self._functions.write, taken, path, KINETO.collected))
        else:
            profiler.export_chrome_trace(str(path))
        if not path.exists():  # libkineto only prints, and leaves what it wrote under another name
            raise BackendError("libkineto could not write the trace")
        return Saved()

    def orphan(self) -> None:
        """Take libkineto's session from the dead thread; left there, it crashes at exit."""
        profiler, self._profiler = self._profiler, None
        self._abandon_step()
        if profiler is not None and not KINETO.lost:
            KINETO.prepare(profiler.profiler)
            KINETO.start(profiler.profiler._start_trace)
            KINETO.stop(profiler.stop_trace)

    def leave_child(self) -> None:
        """Take the profiler off the child's thread where that can be done without collecting."""
        if self._functions and self._state == "running":
            self._functions.take_off()

    def discard(self) -> None:
        """Stop torch's profiler, also one that was only prepared."""
        profiler, self._profiler = self._profiler, None
        taken, self._taken = self._taken, None
        if self._functions and taken:
            self._functions.drop(taken)
            KINETO.collected()
        if profiler is None or self._state == "stopped":
            return
        if KINETO.lost:
            self._abandon_step()
            KINETO.drop(profiler.profiler, profiler.stop_trace)
            return
        self._end_step()
        if self._state == "prepared":
            KINETO.start(profiler.start_trace)  # torch can only disable what was enabled
        KINETO.stop(profiler.stop_trace)

    def _synchronise(self) -> None:
        """Wait for the device, as the ordinary close does, so that its last kernels are kept."""
        if self._profiler.use_device:
            import torch

            began_s = time.perf_counter()
            getattr(torch, self._profiler.use_device).synchronize()
            waited_ms = (time.perf_counter() - began_s) * 1e3
            self.closing += f", {waited_ms:.1f} ms of it waiting for the device"

    def _insist(self) -> None:
        """Raise if the script's own profiler took the session; touching it would crash."""
        if KINETO.lost:
            raise BackendError("the script started a torch.profiler of its own in the window")

    def _abandon_step(self) -> None:
        """Never end the open step annotation: it would write into a session that is gone."""
        step, self._step = self._step, None
        if step is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(step))  # its destructor would end it

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)


def device_activities(torch: Any) -> tuple[str, ...]:
    """Return what torch can watch here, without creating a device context."""
    supported = {activity.name for activity in torch.profiler.supported_activities()}
    found = ["CPU"]
    # device_count() asks NVML; is_available() would start CUDA and so break a later fork.
    if "CUDA" in supported and torch.cuda.device_count() > 0:
        found.append("CUDA")
    if "XPU" in supported and torch.xpu.device_count() > 0:
        found.append("XPU")
    return tuple(found)


def _profiler(plan: Plan) -> Any:
    """Map the config onto ``torch.profiler``; the table in docs/settings.md says the same."""
    from torch.profiler import ProfilerActivity, _KinetoProfile

    config, level = plan.config, plan.config.experimental.profiler_level
    names = [n for n in plan.activities if n == "CPU" or level != "Level_none"] or ["CPU"]
    return _KinetoProfile(
        activities=[getattr(ProfilerActivity, name) for name in names],
        record_shapes=config.record_shapes,
        profile_memory=config.profile_memory,
        with_stack=config.with_stack,
        with_flops=config.with_flops,
        with_modules=config.with_modules,
        experimental_config=_experimental(plan),
    )


def _prepared(kineto_profile: Any) -> Any:
    """Prepare as torch does, but without importing ``torch._inductor``.

    torch's own ``prepare_trace()`` imports it, for a second or more, to ask whether compiled
    code uses CUDA graphs; a job that has not loaded it has no compiled code.
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
        with_modules=kineto_profile.with_modules,
        use_kineto=True,
        experimental_config=kineto_profile.experimental_config,
    )
    KINETO.prepare(kineto_profile.profiler)
    return kineto_profile


def _experimental(plan: Plan) -> Any:
    from torch._C._profiler import _ExperimentalConfig

    settings, level = plan.config.experimental, plan.config.experimental.profiler_level
    asked = {
        "enable_cuda_sync_events": level in ("Level1", "Level2") and "CUDA" in plan.activities,
        "capture_overload_names": level == "Level2",
        "record_python_gc_info": settings.gc_detect_threshold is not None,
    }
    wanted: dict[str, Any] = {name: True for name, is_wanted in asked.items() if is_wanted}
    return _ExperimentalConfig(**wanted)


def _rank_facts(rank: Rank) -> str | None:
    """Return what readers of the trace find the rank in; None where torch writes it itself."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return None
    return json.dumps({"backend": "none", "rank": rank.number, "world_size": rank.world_size})
