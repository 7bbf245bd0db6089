"""What a backend is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.config import ProfilerConfig
from dynprof.process.rank import Rank
from dynprof.requests.plan import Plan

if TYPE_CHECKING:
    from dynprof.backends import Backend

RANK = Rank(3, 8, "test")


def a_plan(backend: Backend, **config: Any) -> Plan:
    """Return a plan for a backend."""
    model = ProfilerConfig.model_validate({"activities": ["CPU"], **config})
    return Plan(model, backend.name, ("CPU",), None, ())
