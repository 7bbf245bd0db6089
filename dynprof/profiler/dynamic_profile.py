"""The calls of ``dynprof.dynamic_profile``, under ``torch_npu.profiler``'s module name."""

from dynprof.dynamic_profile import init, set_state, shutdown, start, status, step, stop

__all__ = ["init", "set_state", "shutdown", "start", "status", "step", "stop"]
