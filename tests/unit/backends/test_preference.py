"""Which profiler ``auto`` takes."""

from __future__ import annotations

from dynprof.backends import all_backends
from dynprof.config import config_schema


def test_operators_read_of_backends_in_the_order_of_auto() -> None:
    """The first that the job has loaded serves: torch_npu's, where it stands beside torch's."""
    text = config_schema()["properties"]["backend"]["description"]
    names = [one.name for one in all_backends() if one.name != "marks"]
    assert names[:2] == ["npu", "torch"]
    places = [text.index(f"{name} (") for name in names]
    assert places == sorted(places)
