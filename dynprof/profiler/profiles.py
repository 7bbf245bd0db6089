"""``profile``: windows by a schedule, with the API of torch and torch_npu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.errors import BackendError
from dynprof.profiler.closed_window import takes_output_path
from dynprof.profiler.handlers import TraceHandler, tensorboard_trace_handler
from dynprof.profiler.kineto_profile import _KinetoProfile
from dynprof.profiler.script_windows import recorder_of_another_thread
from dynprof.profiler.strictness import warn_on_failure
from dynprof.runtime.standard_streams import warn_script
from dynprof.windows.window import RECORDING, ProfilerAction

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

_ALL_THREADS = {
    "npu": "a newer torch_npu has this call",
    "torch": "pass experimental_config="
    "torch.profiler._ExperimentalConfig(profile_all_threads=True) to profile()",
}
"""How to record all threads, for each backend."""
NONE, RECORD, SAVE = ProfilerAction.NONE, ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE


class profile(_KinetoProfile):  # noqa: N801 - torch's name
    """Records the steps of a schedule and passes each trace to a callback.

    Args:
        activities: See :class:`_KinetoProfile`, as for all arguments not listed here.
        schedule: Returns the action of a step, from 0; see :func:`schedule`. Without it, everything
            is recorded and the trace has no step marks.
        on_trace_ready: Called with this profile at the end of each cycle, also of an unfinished one
            as the profile ends; see :func:`tensorboard_trace_handler`.
        use_cuda: Torch's deprecated argument: adds or removes CUDA.
        strict: Raise if an argument is wrong, or if the profiler, a callback, a save or an analysis
            fails. Otherwise this is a warning, as with torch_npu.

    Attributes:
        step_num: The number of the running step, from 0.
        current_action: The action of that step.
    """

    def __init__(
        self,
        *,
        activities: Iterable[Any] | None = None,
        schedule: Callable[[int], Any] | None = None,
        on_trace_ready: Callable[[Any], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: Any = None,
        execution_trace_observer: Any = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        memory_snapshot: bool = False,
        backend: str = "auto",
        acc_events: bool = False,
        post_processing_timeout_s: float | None = None,
        use_cuda: bool | None = None,
        strict: bool = False,
    ) -> None:
        if isinstance(on_trace_ready, TraceHandler) and on_trace_ready.async_mode:
            self._in_place = ""
        self._marks_steps, self._use_cuda = callable(schedule), use_cuda
        super().__init__(
            activities,
            record_shapes,
            profile_memory,
            with_stack,
            experimental_config,
            with_flops=with_flops,
            with_modules=with_modules,
            execution_trace_observer=execution_trace_observer,
            custom_trace_id_callback=custom_trace_id_callback,
            memory_snapshot=memory_snapshot,
            backend=backend,
            acc_events=acc_events,
            post_processing_timeout_s=post_processing_timeout_s,
            strict=strict,
        )
        reject = self._strictness.reject
        if schedule is not None and not callable(schedule):
            reject(f"schedule={schedule!r} cannot be called", "everything is recorded")
            schedule = None
        if on_trace_ready is not None and not callable(on_trace_ready):
            reject(f"on_trace_ready={on_trace_ready!r} cannot be called", "nothing is done")
            on_trace_ready = None
        self.schedule, self.on_trace_ready = schedule, on_trace_ready
        self._skips = False
        self.step_num = 0
        self.current_action = self._next_action(0)

    @warn_on_failure()
    def step(self) -> None:
        """End a step and begin the next one.

        Raises:
            ProfileError: Only another thread may call this; nothing has changed.
            BackendError: The profiler failed.
            ValueError: The schedule did not return an action.
        """
        if not self._running:
            warn_script("step() has no effect: the profiler is not running")
            return
        if self._windows.is_of_parent:
            warn_script("step() has no effect: only the parent process may step its profile")
            return
        if self._windows.window:
            self._windows.require_window("step")
        if self._windows.continues_step():
            return
        before, action = self.current_action, self._next_action(self.step_num + 1)
        self.step_num, self.current_action = self.step_num + 1, action
        self._attempt("step()", lambda: self._end_step(before, action))
        if _ends(before, action):
            self._skips = False
        if self._running:  # the callback may have stopped it
            self._attempt("step()", self._begin_step)

    @takes_output_path
    def export_chrome_trace(
        self, path: str | os.PathLike[str], use_python_export: bool = False
    ) -> None:
        """Write the trace, unless a :func:`tensorboard_trace_handler` writes it already."""
        if isinstance(self.on_trace_ready, TraceHandler):
            warn_script("export_chrome_trace() has no effect: tensorboard_trace_handler writes it")
            return
        super().export_chrome_trace(path, use_python_export)

    @classmethod
    def enable_profiler_in_child_thread(
        cls,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
    ) -> None:
        """Let the open profile also record the operators of the calling thread, as on an NPU.

        Without torch_npu, an open profile cannot add a thread. If it records only the thread that
        opened it, a warning says which argument it needs. A profile of plain Python and an
        operator's window record all threads.

        Args:
            record_shapes: Record shapes on the calling thread; see :class:`profile`.
            profile_memory: Record its allocations.
            with_stack: Record its call stacks.
            with_flops: Estimate its floating point operations.
            with_modules: Record its modules.
        """
        settings = {name: value for name, value in locals().items() if name != "cls"}
        if _call_vendor("enable_profiler_in_child_thread", **settings):
            return
        backend = recorder_of_another_thread()
        if backend in _ALL_THREADS:  # VizTracer records threads that start during a profile
            warn_script(
                "enable_profiler_in_child_thread() has no effect: the open profile records only "
                f"the thread that opened it; {_ALL_THREADS[backend]}"
            )

    @classmethod
    def disable_profiler_in_child_thread(cls) -> None:
        """Undo :meth:`enable_profiler_in_child_thread`; without torch_npu, do nothing."""
        _call_vendor("disable_profiler_in_child_thread")

    def _action_at(self, step: int) -> ProfilerAction:
        action = self.schedule(step) if self.schedule else RECORD
        found = getattr(ProfilerAction, getattr(action, "name", ""), None)
        if not isinstance(found, ProfilerAction):
            raise ValueError(f"the schedule returned {action!r} for step {step}, not an action")  # noqa: TRY004
        return found

    def _next_action(self, step: int) -> ProfilerAction:
        """Return the action of a step; NONE if the schedule fails and the profile is not strict."""
        found = [NONE]

        def ask() -> None:
            found.append(self._action_at(step))

        self._strictness.attempt_each_step("the schedule", ask)
        return found[-1]

    def _begin(self) -> None:
        self._skips = False
        self._attempt("start()", self._begin_step)

    def _end_step(self, before: ProfilerAction, action: ProfilerAction) -> None:
        if self._windows.window:
            self._windows.end_step()
            if _ends(before, action):
                self._end_window(before, action)

    def _begin_step(self) -> None:
        if self._windows.window:
            self._windows.begin_step(self.step_num)
        elif self.current_action is not NONE and not self._skips:
            self._open(lambda _step: self.current_action, self.step_num)

    def _end_window(self, before: ProfilerAction, action: ProfilerAction) -> None:
        if before is not SAVE:
            warn_script(f"incorrect schedule: {before.name} is followed by {action.name}")
        self._close()
        if before is SAVE:
            self._trace_ready()

    def _finish(self) -> None:
        if self._windows.window:
            self._close()
            if self.current_action in RECORDING:
                self._trace_ready()

    def _end_at_exit(self) -> None:
        """Stop and save, on this thread, a profile that is still open as the process ends."""
        if isinstance(self.on_trace_ready, TraceHandler):
            self.on_trace_ready.async_mode = False
        elif self.on_trace_ready is None:
            self.on_trace_ready = tensorboard_trace_handler(analyse_flag=False)
        super()._end_at_exit()

    def _needs_autosave(self) -> bool:
        return self.on_trace_ready is None and super()._needs_autosave()

    def _attempt(self, call: str, action: Callable[[], None]) -> bool:
        """Run an action; after a failure, record nothing until the next cycle."""
        failed = super()._attempt(call, action)
        self._skips |= failed
        return failed

    def _trace_ready(self) -> None:
        if self.on_trace_ready and self._recorded:
            with self._autosave.rescuing(self._recorded, "on_trace_ready"):
                self.on_trace_ready(self)


def _call_vendor(call: str, **settings: bool) -> bool:
    """Let the vendor's profiler make a call for this thread; return whether it is installed."""
    from dynprof.backends.npu import call_for_thread

    try:
        return call_for_thread(call, **settings)
    except BackendError as error:
        warn_script(f"{call}() has no effect: {error}")
        return True


def _ends(before: ProfilerAction, action: ProfilerAction) -> bool:
    """Return whether a window ends between two steps."""
    if before in RECORDING:
        return before is SAVE or action not in RECORDING
    return action is NONE
