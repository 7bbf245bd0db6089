"""The backends in pages and schema: the order of ``auto``, and the traces' file names."""

from __future__ import annotations

from dynprof.backends import all_backends
from dynprof.config import config_schema
from tests.processes import ROOT


def test_operators_read_of_backends_in_the_order_of_auto() -> None:
    """The first imported one counts; torch_npu precedes torch."""
    text = config_schema()["properties"]["backend"]["description"]
    names = [one.name for one in all_backends() if one.name != "marks"]
    assert names[:2] == ["npu", "torch"]
    places = [text.index(f"{name} (") for name in names]
    assert places == sorted(places)


def test_the_page_on_captures_names_the_suffixes_of_all_traces() -> None:
    """A user who looks for a trace by name needs the suffix."""
    page = (ROOT / "docs" / "captures.md").read_text()
    assert [one.trace_suffix for one in all_backends() if one.trace_suffix not in page] == []
