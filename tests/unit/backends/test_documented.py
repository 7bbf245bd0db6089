"""What pages and schema say of the backends: which ``auto`` takes, what their traces are called."""

from __future__ import annotations

from dynprof.backends import all_backends
from dynprof.config import config_schema
from tests.processes import ROOT


def test_operators_read_of_backends_in_the_order_of_auto() -> None:
    """The first that the job has loaded serves: torch_npu's, where it stands beside torch's."""
    text = config_schema()["properties"]["backend"]["description"]
    names = [one.name for one in all_backends() if one.name != "marks"]
    assert names[:2] == ["npu", "torch"]
    places = [text.index(f"{name} (") for name in names]
    assert places == sorted(places)


def test_the_page_on_captures_names_the_ends_of_all_traces() -> None:
    """Whoever looks for one by its name knows what it ends with."""
    page = (ROOT / "docs" / "captures.md").read_text()
    assert [one.trace_suffix for one in all_backends() if one.trace_suffix not in page] == []
