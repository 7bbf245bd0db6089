"""Marks on the streams of a CUDA device, where Kineto draws them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dynprof.backends.torch.open_annotations import hidden_from_modes

if TYPE_CHECKING:
    from collections.abc import Callable

LABEL = "dynprof: device mark"
"""Lies around each on the host, so that the analysis knows whose work it is."""
_LEAST_HANDLE = 4096
"""No pointer is smaller, but for 1 and 2, by which CUDA knows two streams of each device."""


def draw(message: str, buffer: Callable[[], Any]) -> None:
    """Put the smallest work there is on the current stream, under a name.

    Kineto gives what a device does for a range of ``record_function`` the range's name there.

    Args:
        message: The name.
        buffer: Returns what may be written to; only the first time it makes it.
    """
    from torch.autograd.profiler import record_function

    with record_function(LABEL):
        written = buffer()
        with record_function(message):
            written.zero_()


class CudaStreams:
    """Marks them, without waiting for the device; the process needs one."""

    def __init__(self) -> None:
        self._buffers: dict[Any, Any] = {}

    def stream(self, given: object) -> object | None:
        """Return a stream of CUDA's, or the one that a handle of CUDA's stands for.

        Nobody can ask CUDA whether a handle is one: it has to be, as everywhere.
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
        """Return whether what is put on a stream becomes part of a graph."""
        import torch

        with torch.cuda.stream(stream):
            return bool(torch.cuda.is_current_stream_capturing())

    def mark(self, message: str, stream: Any) -> None:
        """Put a mark behind what is on a stream so far."""
        import torch

        with hidden_from_modes(), torch.cuda.stream(stream):
            draw(message, functools.partial(self._buffer, stream.device))

    def _buffer(self, device: Any) -> Any:
        import torch

        if device not in self._buffers:
            with torch.inference_mode(False):  # to be written to in any mode
                self._buffers[device] = torch.zeros(1, device=device)
        return self._buffers[device]


def _of_cuda(stream: Any) -> object:
    """Return a stream of whatever device as one of CUDA's; None where it is none."""
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
"""The process has one."""
