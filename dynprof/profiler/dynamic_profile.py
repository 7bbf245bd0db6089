"""The calls of ``dynprof.dynamic_profile``, where ``torch_npu.profiler`` has them."""

from dynprof.dynamic_profile import init, set_state, shutdown, start, status, step, stop

__all__ = ["init", "set_state", "shutdown", "start", "status", "step", "stop"]
