"""Marks on the streams of a CUDA device, as Kineto draws them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dynprof.backends.torch.open_annotations import hidden_from_modes

if TYPE_CHECKING:
    from collections.abc import Callable

LABEL = "dynprof: device mark"
"""Name of the host range around each mark, by which the analysis recognises it."""
_LEAST_HANDLE = 4096
"""Smallest handle that is a pointer; CUDA also uses 1 and 2, for two streams of each device."""


def draw(message: str, buffer: Callable[[], Any]) -> None:
    """Put a minimal kernel on the current stream, under a name.

    Kineto gives the device work of a ``record_function`` range the range's name.

    Args:
        message: The name.
        buffer: Returns a tensor to write to; creates it at the first call.
    """
    from torch.autograd.profiler import record_function

    with record_function(LABEL):
        written = buffer()
        with record_function(message):
            written.zero_()


class CudaStreams:
    """Marks CUDA streams, without waiting for the device; a process has one such object."""

    def __init__(self) -> None:
        self._buffers: dict[Any, Any] = {}

    def stream(self, given: object) -> object | None:
        """Return the CUDA stream for a stream object or a CUDA handle; None for others.

        CUDA cannot check whether a handle is valid; the script must pass a valid one.
        """
        import torch

        if isinstance(given, torch.cuda.Stream):
            found: object = given
        elif isinstance(given, torch.Stream):
            found = _of_cuda(given)
        elif isinstance(given, int) and torch.cuda.is_initialized() and _is_handle(given):
            found = torch.cuda.ExternalStream(given)
        else:
            found = None
        return found

    def is_capturing(self, stream: Any) -> bool:
        """Return whether work put on a stream becomes part of a graph."""
        import torch

        with torch.cuda.stream(stream):
            return bool(torch.cuda.is_current_stream_capturing())

    def mark(self, message: str, stream: Any) -> None:
        """Put a mark on a stream, after the work queued so far."""
        import torch

        with hidden_from_modes(), torch.cuda.stream(stream):
            draw(message, functools.partial(self._buffer, stream.device))

    def _buffer(self, device: Any) -> Any:
        import torch

        if device not in self._buffers:
            with torch.inference_mode(False):  # writable in any mode
                self._buffers[device] = torch.zeros(1, device=device)
        return self._buffers[device]


def _of_cuda(stream: Any) -> object:
    """Return a stream of any device as a CUDA stream; None where it is no CUDA stream."""
    import torch

    if stream.device.type != "cuda":
        return None
    return torch.cuda.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def _is_handle(number: int) -> bool:
    named = number in (1, 2) and not isinstance(number, bool)
    return named or number >= _LEAST_HANDLE


CUDA_STREAMS = CudaStreams()
"""The process's CUDA streams."""
