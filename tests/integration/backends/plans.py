"""Plans for backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.config import ProfilerConfig
from dynprof.requests.plan import Plan
from dynprof.runtime.rank import Rank

if TYPE_CHECKING:
    from dynprof.backends import Backend
    from dynprof.runtime.safe_write import PrivateFolder

RANK = Rank(3, 8, "test")


def no_folder() -> PrivateFolder:
    """Fail: these recordings write nothing while they record."""
    raise AssertionError("a folder to write in while recording was asked for")


def a_plan(backend: Backend, **config: Any) -> Plan:
    """Return a plan for a backend."""
    model = ProfilerConfig.model_validate({"activities": ["CPU"], **config})
    return Plan(model, backend.name, ("CPU",), None, ())
