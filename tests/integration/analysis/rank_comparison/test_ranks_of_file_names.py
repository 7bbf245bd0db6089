"""Traces that do not say their rank: the names of their files do, or dynprof asks."""

from __future__ import annotations

import gzip
import json
import os
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.many_traces import analyse_each
from dynprof.analysis.runs.merge import merge
from dynprof.analysis.runs.one_trace import traces_in
from dynprof.analysis.runs.window_difference import compare
from dynprof.analysis.runs.window_report import report_on
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECOND_NS = 10**9


def nameless(path: Path, *, work_us: float = 100, since_s: int = 0) -> None:
    """Write a trace of two steps that does not say its rank."""
    events = []
    for step in range(2):
        begin = 1000.0 + 1000 * step
        name, length = f"ProfilerStep#{step}", 500 + work_us
        label = {"cat": "user_annotation", "name": name, "ts": begin, "dur": length}
        operator = {"cat": "cpu_op", "name": "aten::mm", "ts": begin + 10, "dur": work_us}
        events += [{"ph": "X", "pid": 9, "tid": 9, **one} for one in (label, operator)]
    base = (1_767_189_312 + since_s) * SECOND_NS
    text = json.dumps({"baseTimeNanoseconds": base, "deviceProperties": [], "traceEvents": events})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.mark.parametrize(
    "name",
    ["rank-{}.json", "rank{}_trace.json", "x_rank_{}.0.json.gz", "7-TP-{}.trace.json.gz"],
)
def test_the_rank_is_in_the_name(tmp_path: Path, name: str) -> None:
    """Both ranks are compared and merged; other files with a rank in the name are no traces."""
    for rank in range(2):
        nameless(tmp_path / name.format(rank), work_us=100 + 50 * rank)
    for other in ("rank-5.json", "rank_6.csv", "rank-7.json.gz", "config.json"):
        (tmp_path / other).write_text('{"rank": 5}')
    assert len(traces_in(tmp_path)) == 2
    made = report_on(tmp_path)
    assert (
        "What follows is about rank 1, which has the most work of its own: 0.65 ms a step; "
        "the other rank has 0.6 ms."
    ) in made.words
    assert merge(tmp_path).words[0] == "merged: ranks 0 to 1"


def test_a_folder_may_have_traces_of_any_name(tmp_path: Path) -> None:
    """They are read if no file has the name of a trace; other JSON, and dynprof's own, is not."""
    names = ("a/before.json.gz", "b/after.json", "c/trace_view.json")
    for name in names:
        nameless(tmp_path / name)
    nameless(tmp_path / "a/analysis/merged.json.gz")
    (tmp_path / "a/config.json").write_text('{"rank": 5}')
    assert traces_in(tmp_path) == [tmp_path / name for name in names]
    analyse_each(traces_in(tmp_path), ["text"], processes=1)
    assert traces_in(tmp_path) == [tmp_path / name for name in names]
    nameless(tmp_path / "d.trace.json")
    assert traces_in(tmp_path) == [tmp_path / "d.trace.json"]


def test_a_difference_uses_the_newest_trace_of_a_rank(tmp_path: Path) -> None:
    """It says that it passed over the other one."""
    for place, name in enumerate(("b", "a")):
        path = tmp_path / f"{name}.trace.json"
        nameless(path, work_us=100 + 50 * place)
        os.utime(path, (place, place))
    (said,) = compare(tmp_path, tmp_path / "a.trace.json").passed_over
    assert said.startswith(f"{tmp_path / 'b.trace.json'}: another trace of rank 0 is compared")


@pytest.mark.parametrize("command", [report_on, merge])
def test_two_captures_of_one_time_need_names(
    tmp_path: Path, command: Callable[[Path], object]
) -> None:
    """They are of two ranks, and none of them is silently left out."""
    for name in ("a", "b"):
        nameless(tmp_path / f"{name}.trace.json")
    question = "the captures a and b were recorded at the same time, and neither says its rank"
    with pytest.raises(CaptureError, match=question):
        command(tmp_path)
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    assert question in outcome.problems[tmp_path]
    assert report_on(tmp_path / "a.trace.json").path.is_file()


def test_a_later_capture_of_one_process_needs_none(tmp_path: Path) -> None:
    """One process records one capture after the other, and a file may be there packed too."""
    nameless(tmp_path / "a.trace.json", since_s=0)
    nameless(tmp_path / "b.trace.json", since_s=60)
    nameless(tmp_path / "b.trace.json.gz", since_s=60)
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    assert not outcome.problems


def test_folders_of_torch_npu_are_the_ranks_of_one_window(tmp_path: Path) -> None:
    """Each has a trace of the same name; a file next to its tables has the rank."""
    for rank in (3, 4):
        folder = tmp_path / f"host_{rank}_2026_ascend_pt"
        nameless(folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", work_us=100 + rank)
        (folder / f"profiler_info_{rank}.json").write_text("{}")
    traces = traces_in(tmp_path)
    assert [MeasuredTrace(trace).rank for trace in traces] == [3, 4]
    assert (
        "What follows is about rank 4, which has the most work of its own: 0.604 ms a step; "
        "the other rank has 0.603 ms."
    ) in report_on(tmp_path).words
