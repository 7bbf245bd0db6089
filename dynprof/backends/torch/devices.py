"""The devices that ``torch.profiler`` can record in this process, found without starting any."""

from __future__ import annotations

from typing import Any

HOST, DEVICES = "CPU", ("CUDA", "XPU")


def device_activities(torch: Any) -> tuple[str, ...]:
    """Return the activities that torch can record here.

    This keeps forks possible. ``supported_activities()`` and ``is_available()`` start CUDA's
    driver, after which no forked child can use it. ``device_count()`` asks NVML where that answers.
    """
    return (HOST, *(name for name in DEVICES if _is_offered(torch, name)))


def used_activities(torch: Any, activities: tuple[str, ...]) -> tuple[str, ...]:
    """Return the activities whose device this process already uses; the host where there is none.

    Kineto would start an unused device. That takes half a GiB of an H100 for a process that runs
    nothing there, and children forked later could not use the device.
    """
    found = tuple(name for name in activities if name == HOST or is_used(torch, name))
    return found or (HOST,)


def _is_offered(torch: Any, name: str) -> bool:
    if getattr(torch, name.lower()).device_count() == 0:
        return False
    return not is_used(torch, name) or _is_supported(torch, name)


def is_used(torch: Any, name: str) -> bool:
    """Return whether this process already uses a device, by the name of its activity."""
    device = getattr(torch, name.lower(), None)
    return bool(getattr(device, "is_initialized", lambda: True)())


def _is_supported(torch: Any, name: str) -> bool:
    """Return whether Kineto was built for it; called only where the driver runs already."""
    return name in {activity.name for activity in torch.profiler.supported_activities()}
