"""The differences between the versions of torch, from 2.4 on.

Each check looks at torch itself, not at its version: vendors' builds may have either alone.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any

from dynprof.requests.capabilities import Lack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LEVEL = "Level2 has no overloads of operators here: torch {version} does not record them."
_THREADS = "only the thread that starts it is recorded: torch {version} cannot record others."
_MODULES = "this sees TorchScript models only{more}; with_stack records the modules of all others."
_DROPPED = ", and torch is about to drop it (yours is {version})"
HOST, DEVICES = "CPU", ("CUDA", "XPU")


def lacks() -> Iterator[Lack]:
    """Yield the settings that this torch serves only in part."""
    import torch

    version = torch.__version__
    if not has("capture_overload_names"):
        yield Lack("profiler_level", "Level2", _LEVEL.format(version=version))
    if not has("profile_all_threads"):
        yield Lack("all_threads", True, _THREADS.format(version=version))
    dropped = "``with_modules`` is deprecated" in str(torch.autograd.profiler.profile.__doc__)
    more = _DROPPED.format(version=version) if dropped else ""
    yield Lack("with_modules", True, _MODULES.format(more=more))


def experimental_config(asked: Mapping[str, bool]) -> Any:
    """Return torch's ``_ExperimentalConfig`` with the requested switches that this torch has.

    Args:
        asked: Names of switches, and whether each shall be on.
    """
    from torch._C._profiler import _ExperimentalConfig

    switches: dict[str, Any] = {name: True for name in asked if asked[name] and has(name)}
    return _ExperimentalConfig(**switches)


def has(switch: str) -> bool:
    """Return whether torch's ``_ExperimentalConfig`` has a switch."""
    return switch in _switches()


def has_on(config: Any, switch: str) -> bool:
    """Return whether a switch is on in an ``_ExperimentalConfig`` that the script made.

    Torch shows it only in the pickled values; this finds the value that the switch changes.
    """
    if not has(switch):
        return False
    off, on = (type(config)(**{switch: value}).__getstate__() for value in (False, True))
    places = [place for place in range(len(off)) if off[place] != on[place]]
    return any(config.__getstate__()[place] for place in places)


@functools.cache
def takes_trace_id() -> bool:
    """Return whether torch accepts a callback for the id of a trace."""
    from torch.profiler import _KinetoProfile

    return "custom_trace_id_callback" in inspect.signature(_KinetoProfile).parameters


@functools.cache
def _switches() -> frozenset[str]:
    """Return the names in the signature, which pybind writes to the docstring's first line."""
    from torch._C._profiler import _ExperimentalConfig

    signature = str(_ExperimentalConfig.__init__.__doc__).partition("\n")[0]
    return frozenset(re.findall(r"(\w+): ", signature))


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
