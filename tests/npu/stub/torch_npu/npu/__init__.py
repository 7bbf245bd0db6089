"""The device: one NPU that does nothing."""

from torch_npu._C._profiler import note
from torch_npu.npu import mstx


class Event:
    """An event of a stream."""

    def record(self):
        """Do nothing."""

    wait = query = elapsed_time = synchronize = record


def _lazy_init():
    note("lazy init")


def is_available():
    """Say yes."""
    return True


def device_count():
    """Return how many there are."""
    return 1


def synchronize():
    """Note it."""
    note("synchronize")


def current_stream():
    """Return none."""
    return


__all__ = ["Event", "current_stream", "device_count", "is_available", "mstx", "synchronize"]
