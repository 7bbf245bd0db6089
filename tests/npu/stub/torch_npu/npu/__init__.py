"""The device: an NPU that does nothing. Its marks are the wheel's."""

import torch_npu
from torch_npu._C._profiler import note

__path__.append(str(torch_npu.WHEEL / "torch_npu/npu"))

from torch_npu.npu import streams  # noqa: E402 - the marks look it up
from torch_npu.npu.mstx import mstx  # noqa: E402 - its place is known only now


class Event:
    """An event of a stream."""

    def record(self):
        """Do nothing."""

    wait = query = elapsed_time = synchronize = record


def _lazy_init():
    note("lazy init")


def is_available():
    """Return True."""
    return True


def device_count():
    """Return the number of devices."""
    return 1


def synchronize():
    """Note the call."""
    note("synchronize")


def current_stream():
    """Return no stream."""
    return


__all__ = [
    "Event", "current_stream", "device_count", "is_available", "mstx", "streams", "synchronize",
]  # fmt: skip
