"""Which devices ``torch.profiler`` can watch in this process, without starting any of them."""

from __future__ import annotations

from typing import Any

HOST, DEVICES = "CPU", ("CUDA", "XPU")


def device_activities(torch: Any) -> tuple[str, ...]:
    """Return what torch can watch here.

    Asked so that forks stay possible: ``supported_activities()`` and ``is_available()`` start the
    driver of CUDA, after which no child that is forked can use it. ``device_count()`` asks NVML,
    where that answers.
    """
    return (HOST, *(name for name in DEVICES if _is_offered(torch, name)))


def used_activities(torch: Any, activities: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of some activities whose device this process has begun to use, or the host.

    Kineto would begin to: half a GiB of an H100 for a process that runs nothing there, and no use
    of the device by children that are forked from then on.
    """
    found = tuple(name for name in activities if name == HOST or is_used(torch, name))
    return found or (HOST,)


def _is_offered(torch: Any, name: str) -> bool:
    if getattr(torch, name.lower()).device_count() == 0:
        return False
    return not is_used(torch, name) or _is_supported(torch, name)


def is_used(torch: Any, name: str) -> bool:
    """Return whether this process has begun to use a device, by the name of its activity."""
    device = getattr(torch, name.lower(), None)
    return bool(getattr(device, "is_initialized", lambda: True)())


def _is_supported(torch: Any, name: str) -> bool:
    """Return whether Kineto was built for it; asked where the driver runs already."""
    return name in {activity.name for activity in torch.profiler.supported_activities()}
