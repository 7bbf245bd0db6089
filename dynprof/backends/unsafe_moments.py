"""The moments in which a ``torch.profiler`` has to be left as it is."""

from __future__ import annotations

from dynprof.process.graph_captures import GRAPH_CAPTURES


def in_backward() -> bool:
    """Return whether this thread is in a backward pass.

    There a thread's profiler is not its own: at the end autograd puts back what it had before.
    """
    import torch

    return bool(torch._C._current_graph_task_id() != -1)


def why_not_now(*, in_backward_too: bool) -> str | None:
    """Say why a window can neither open nor close at this very moment; None where it can.

    Args:
        in_backward_too: Whether a backward pass does not matter.
    """
    import torch

    if not in_backward_too and in_backward():
        return "step() was called inside a backward pass"
    if reason := GRAPH_CAPTURES.under_way():
        return reason
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return None


def follow_graph_captures() -> None:
    """Know of all graphs that are captured through torch from now on."""
    import torch

    GRAPH_CAPTURES.follow(torch.cuda.CUDAGraph, "a CUDA graph")
    if graphs := getattr(torch.xpu, "XPUGraph", None):
        GRAPH_CAPTURES.follow(graphs, "an XPU graph")
