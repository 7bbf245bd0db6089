"""A window of several ranks with only one trace on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.runs.merge import merge
from dynprof.analysis.runs.window_report import report_on
from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.captures.window_record import RankRecord, WindowRecord
from dynprof.errors import CaptureError
from tests.rank_traces import write

if TYPE_CHECKING:
    from pathlib import Path

ELSEWHERE = "rank 1: its capture is on node1, /prof_config/w/info/rank_1.info.json"


@pytest.fixture
def window(tmp_path: Path) -> Path:
    """Return the folder of a window whose ranks 1 and 2 are not here."""
    (tmp_path / "info").mkdir()
    write(tmp_path, 0)
    request = RequestRecord(number=1, edited_at="2026", sha256="ab", config={})
    here = tmp_path / "info" / "rank_0.info.json"
    Manifest(
        dynprof="0", backend="torch", versions={}, host="node0", pid=1, rank=0, world_size=3,
        request=request, steps=Steps(first=0, last=4, recorded=5, warmup=0), opened_at="",
        closed_at="", activities=("CPU",), complete=True, trace="rank0.pt.trace.json",
        cost=Cost(open_ms=0, close_ms=0),
    ).save(here)  # fmt: skip
    places = {0: str(here), 1: ELSEWHERE.split(", ")[1]}
    WindowRecord(
        dynprof="0", leader="", world_size=3, request=request, start_step=0, first=0, last=4,
        asked=(0, 1, 2), ranks={rank: RankRecord(host=f"node{rank}", outcome="saved", capture=place)
               for rank, place in places.items()},
        missing={2: "it does not answer"}, agreed_ms=1, complete=False,
    ).save(tmp_path / "info" / "window.json")  # fmt: skip
    return tmp_path


def test_a_report_names_the_hosts_of_the_others(window: Path) -> None:
    """A report on one trace names the captures on other machines, and the missing rank."""
    words = report_on(window).words
    assert words[:2] == [f"R{ELSEWHERE[1:]}.", "Rank 2 is missing: it does not answer."]
    (trace,) = window.glob("*.json")
    assert "node1" not in " ".join(report_on(trace).words)  # a trace's path means only that one


def test_merge_of_one_trace_names_the_other_hosts(window: Path) -> None:
    """The error says that the captures have to be copied here first."""
    with pytest.raises(CaptureError, match="holds a single rank") as refused:
        merge(window)
    assert str(refused.value).splitlines()[1:] == [
        ELSEWHERE,
        "rank 2 is missing: it does not answer",
    ]
