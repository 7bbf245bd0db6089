"""One window of ``torch.profiler``."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import time
from typing import TYPE_CHECKING, Any

from dynprof.backends.base import Saved
from dynprof.backends.closing import COLLECTOR
from dynprof.backends.libtorch import find
from dynprof.errors import BackendError

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.backends.kineto import KinetoSession, ScriptsClaim
    from dynprof.backends.libtorch import DetachedClose
    from dynprof.companions import Companion


class TorchRecording:
    """One window of ``torch.profiler``."""

    def __init__(
        self,
        profiler: Any,
        session: KinetoSession | ScriptsClaim,
        rank_facts: str | None,
        functions: DetachedClose | None,
        closing: str,
        companions: Companion,
        *,
        all_threads: bool = False,
    ) -> None:
        self.bound_to_thread = not all_threads
        self.closing = closing
        self.companions = companions
        self._profiler, self._session = profiler, session
        self._rank_facts = rank_facts
        self._functions = functions
        self._taken: Any = None
        self._step: Any = None
        self._state = "prepared"

    @property
    def results(self) -> Any:
        """Torch's own object, which knows the results; None after a detached close."""
        return None if self._functions else self._profiler

    def start(self) -> None:
        """Keep what happens from here on."""
        self._insist()
        self._session.start(self._profiler.start_trace)
        self._state = "running"
        if self._rank_facts:
            self._profiler.add_metadata_json("distributedInfo", self._rank_facts)

    def begin_step(self, number: int | None) -> None:
        """Mark a step in the way that TensorBoard and HolisticTraceAnalysis look for."""
        from torch.autograd.profiler import record_function

        self._insist()
        self._end_step()
        if number is not None:
            self._step = record_function(f"ProfilerStep#{number}")
            self._step.__enter__()

    def stop(self) -> None:
        """Stop recording: take the profiler off this thread, or let torch collect its events."""
        self._insist()
        self._end_step()
        if self._functions:
            self._synchronise()
            self._taken = self._functions.take_off()
            self._session.hand_over()
            sys.modules["torch.autograd.profiler"]._run_on_profiler_stop()
        else:
            self._session.stop(self._profiler.stop_trace)
        self._state = "stopped"

    def save(self, path: Path) -> Saved:
        """Write the Chrome trace."""
        profiler, self._profiler = self._profiler, None
        taken, self._taken = self._taken, None
        if self._functions:
            COLLECTOR.run(
                functools.partial(self._functions.write, taken, path, self._session.collected)
            )
        else:
            profiler.export_chrome_trace(str(path))
        if not path.exists():  # libkineto only prints, and leaves what it wrote under another name
            raise BackendError("libkineto could not write the trace")
        return Saved()

    def orphan(self) -> None:
        """Take libkineto's session from the dead thread; left there, it crashes at exit."""
        profiler, self._profiler = self._profiler, None
        self._abandon_step()
        if profiler is not None and not self._session.lost:
            self._session.prepare(profiler.profiler)
            self._session.start(profiler.profiler._start_trace)
            self._session.stop(profiler.stop_trace)

    def leave_child(self) -> None:
        """Take the profiler off the child's thread where that can be done without collecting."""
        with contextlib.suppress(BackendError):
            if self._state == "running":
                (self._functions or find()).take_off()

    def discard(self) -> None:
        """Stop torch's profiler, also one that was only prepared."""
        profiler, self._profiler = self._profiler, None
        taken, self._taken = self._taken, None
        if self._functions and taken:
            self._functions.drop(taken)
            self._session.collected()
        if profiler is None or self._state == "stopped":
            return
        if self._session.lost:
            self._abandon_step()
            self._session.drop(profiler.profiler, profiler.stop_trace)
            return
        self._end_step()
        if self._state == "prepared":
            self._session.start(profiler.start_trace)  # torch can only disable what was enabled
        self._session.stop(profiler.stop_trace)

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
        if self._session.lost:
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
