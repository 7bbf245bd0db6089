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
