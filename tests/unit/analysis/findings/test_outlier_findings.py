"""The cause of a slow step is found by comparison with the others, and is never dynprof."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.findings.finding import Finding
from dynprof.analysis.findings.rules import all_findings, without_repeated_advice
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.rank_comparison.comparison import Ranks
from dynprof.analysis.rank_comparison.parquet import RANK_TABLES, parquet_file, write_rank_tables
from dynprof.analysis.report.contents import contents, verdict
from tests.unit.analysis.findings.given_spans import MS, Span

if TYPE_CHECKING:
    from pathlib import Path

USUAL: list[Span] = [("aten::mm", "cpu_op", 1, 8)]
SLOW = 3
WRAPPER = "dynprof/marks/record_functions.py(71): begin"


def job(
    folder: Path,
    slow: dict[int, list[Span]],
    usual: list[Span] = USUAL,
    rank: int = 0,
    *,
    count: int = 6,
    longer: float = 100.0,
    shapes: list[Any] | None = None,
) -> MeasuredTrace:
    """Return steps of 10 ms; some are longer, with spans of their own.

    Args:
        folder: The folder for the trace.
        slow: The spans that slow steps have, by the number of the step.
        usual: The spans of all steps.
        rank: The rank of the trace.
        count: The number of steps.
        longer: The ms by which slow steps are longer.
        shapes: The shapes of operators in usual spans, and in those of slow steps.
    """
    events: list[dict[str, Any]] = []
    begin = 0.0
    for number in range(count):
        more = slow.get(number)
        took = 10.0 if more is None else 10.0 + longer
        spans = [(f"ProfilerStep#{number}", "user_annotation", 0, took), *usual, *(more or [])]
        events += [
            {"ph": "X", "pid": 1, "tid": 1, "name": name, "cat": category,
             "ts": (begin + since) * MS, "dur": lasts * MS,
             "args": {"Input Dims": shapes[place > len(usual)]} if shapes else {}}
            for place, (name, category, since, lasts) in enumerate(spans)
        ]  # fmt: skip
        begin += took
    path = folder / f"rank{rank}.trace.json"
    members = {"distributedInfo": {"rank": rank, "world_size": 1}, "baseTimeNanoseconds": 0}
    path.write_text(json.dumps({**members, "traceEvents": events}))
    return MeasuredTrace(path)


CAUSES: dict[str, tuple[list[Span], list[str]]] = {
    "an operator": (
        [("aten::sort", "cpu_op", 9, 100)],
        ["aten::sort takes longer. It takes 100 ms of step 3.", "others that is 0 ms"]),
    "an operator that is longer": (
        [("aten::mm", "cpu_op", 9, 100)],
        ["aten::mm takes longer. It takes 108 ms of step 3.", "others that is 8 ms"]),
    "a label of the script": (
        [("load_index", "user_annotation", 9, 100)],
        ["load_index takes longer. It takes 100 ms of step 3."]),
    "a function": (
        [("job.py(4): main", "python_function", 0, 110),
         ("job.py(9): read", "python_function", 9, 100),
         ("<built-in function sleep>", "python_function", 9, 99)],
        ["No operator and no collective runs for 102 ms of step 3, 99 ms in sleep, called by read "
         "(defined at job.py:9)."]),
    "a collection": (
        [("collection of generation 2", "gc", 9, 100)],
        ["Garbage collection: Python collects garbage 1 time in step 3, for 100 ms."]),
    "a loader": (
        [("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", 9, 100),
         ("job.py(7): collate", "python_function", 9, 99)],
        ["keeps step 3 waiting for 100 ms, 100% of it in job.py:7 (collate)."]),
    "workers": (
        [("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation", 9,
          100),
         ("<built-in method poll of select.poll object at 0x7f>", "python_function", 9, 99)],
        ["keeps step 3 waiting for 100 ms: training waits for batches of its worker processes"]),
    "a checkpoint": (
        [("checkpoint", "user_annotation", 9, 100)],
        ["Checkpoints hold the step up: Saving takes 100 ms of step 3"]),
}  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_of_a_slow_step_is_named(tmp_path: Path, cause: str) -> None:
    """The cause is the first finding, with the function if there are stacks."""
    spans, words = CAUSES[cause]
    measured = job(tmp_path, {SLOW: spans})
    said = verdict(measured)
    assert said[0].startswith(
        "A step takes 10 ms (median of 6 steps); step 3 took 110 ms, 11 times the median. "
    )
    first, *others = all_findings(measured)
    assert first.title == "Step 3 takes longer than the others"
    assert first.detail.startswith("It takes 110 ms, 100 ms more than the others. ")
    assert first.share == pytest.approx(100 / 160)
    for one in words:
        assert one in first.detail
    assert first.detail.count("For the others that is") == 1
    assert not any("step 3" in one.detail for one in others)
    assert contents(measured)["verdict"] == said[0]


def test_slow_steps_with_one_cause_are_one_finding(tmp_path: Path) -> None:
    """A slow step with another cause has its own finding."""
    sort: list[Span] = [("aten::sort", "cpu_op", 9, 100)]
    save: list[Span] = [("checkpoint", "user_annotation", 9, 100)]
    found = all_findings(job(tmp_path, {1: sort, 4: sort}))
    assert found[0].title == "Step 1 takes longer than the others"
    assert found[0].detail.endswith("The main cause is the same in step 4.")
    assert not any("Step 4" in one.title for one in found)
    both = all_findings(job(tmp_path, {1: sort, 4: save}))
    assert {one.title for one in both[:2]} == {
        "Step 1 takes longer than the others", "Step 4 takes longer than the others",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("other", "together"), [("job.py(9): read", True), ("a.py(3): check", False)]
)
def test_slow_steps_are_one_finding_only_for_the_same_function(
    tmp_path: Path, other: str, together: bool
) -> None:
    """Python between operators is one kind of cause, but each function counts separately."""
    slow: dict[int, list[Span]] = {
        step: [
            ("job.py(4): main", "python_function", 0, 110), (name, "python_function", 9, 100),
            ("<built-in function sleep>", "python_function", 9, 99),
        ]
        for step, name in ((1, "job.py(9): read"), (4, other))
    }  # fmt: skip
    found = all_findings(job(tmp_path, slow))
    assert found[0].detail.endswith("The main cause is the same in step 4.") is together
    of_the_fourth = [one.detail for one in found if one.title.startswith("Step 4")]
    assert ["called by check (defined at a.py:3)" in one for one in of_the_fourth] == [True] * (
        not together
    )


def test_slow_steps_without_a_known_cause_are_one_finding(tmp_path: Path) -> None:
    """The finding does not say that the causes are the same."""
    many: list[Span] = [(f"aten::{n}", "cpu_op", 10 + 10 * n, 10) for n in range(10)]
    first, *others = all_findings(job(tmp_path, {1: many, 4: many}))
    why = "The trace does not show why. The cause is also unknown for step 4."
    assert first.detail.endswith(why)
    assert not any("Step 4" in one.title for one in others)


def test_repeated_advice_names_the_finding_that_has_it() -> None:
    """The number is that of the list, also if another finding is between them."""
    one, two, three = (Finding("", 0, "", advice) for advice in ("Do this.", "Do that.", "More."))
    advice = "Do this. To see which functions, record with stacks: dynprof arm."
    named = Finding("", 0, "", advice)
    said = [found.advice for found in without_repeated_advice([named, one, one, two, one, three])]
    same = "Try the same as for 1."
    assert said == [named.advice, same, same, "Do that.", same, "More."]


def test_a_step_that_the_profiler_slowed_is_not_a_finding(tmp_path: Path) -> None:
    """The verdict says whose time it is."""
    measured = job(
        tmp_path,
        {SLOW: [("dynprof/runtime/error_boundary.py(48): attempt", "python_function", 9, 90)]},
    )
    assert "11 times the median, 90 ms of it in the profiler itself. " in verdict(measured)[0]
    assert not any("Step 3" in one.title for one in all_findings(measured))


def test_a_wrapper_of_dynprof_is_not_a_cause(tmp_path: Path) -> None:
    """A wrapper is no function, optimizer or loader, and is not on the critical path."""
    for label, title in (
        ("Optimizer.step#SGD.step", "The optimizer takes long"),
        ("dataloader", "The step waits for data"),
    ):
        usual: list[Span] = [
            ("job.py(2): train", "python_function", 1, 8),
            (label, "user_annotation", 1, 8),
            (WRAPPER, "python_function", 2, 4),
            ("torch/autograd/profiler.py(9): __enter__", "python_function", 2.5, 3),
        ]
        measured = job(tmp_path, {}, [*usual, ("aten::mm", "cpu_op", 9.5, 0.1)])
        found = {one.title: one for one in all_findings(measured)}
        assert "4 ms" in found[title].detail
        assert "8 ms" not in found[title].detail
        page = contents(measured)
        assert not any("dynprof/" in row[0] for row in page["critical_path"]["names"])
        assert not any("dynprof/" in str(one) for one in page["findings"])
    called = "dynprof/plugin/torch_patches.py(100): call"
    usual = [("job.py(2): train", "python_function", 1, 8), (called, "python_function", 1, 8),
             ("torch/optim/sgd.py(9): step", "python_function", 2, 7)]  # fmt: skip
    (between,) = all_findings(job(tmp_path, {}, [*usual, ("aten::mm", "cpu_op", 9.5, 0.1)]))
    assert "7 ms in step (defined at torch/optim/sgd.py:9), called by train" in between.detail


def test_the_command_that_names_lines_is_printed_once(tmp_path: Path) -> None:
    """The command is named without frames; with frames and a line, usual causes are left out."""
    bare: list[Span] = [("aten::mm", "cpu_op", 1, 3), ("dataloader", "user_annotation", 4, 3)]
    said = "\n".join(map(str, all_findings(job(tmp_path, {}, bare))))
    assert said.count("record with stacks: with_stack=True") == 1
    assert "The usual causes are" in said
    frame: Span = ("job.py(2): train", "python_function", 0, 10)
    said = "\n".join(map(str, all_findings(job(tmp_path, {}, [*bare, frame]))))
    assert "record with stacks" not in said
    assert "the usual ones" not in said


def test_slow_steps_of_many_ranks_are_one_finding(tmp_path: Path) -> None:
    """The finding names the step and the number of slow ranks, not each rank."""
    sort: list[Span] = [("aten::sort", "cpu_op", 9, 100)]
    files: dict[str, list[Path]] = {name: [] for name in RANK_TABLES}
    for rank in range(12):
        slow = {2: sort} if rank < 10 else {4: sort} if rank == 11 else {}
        list(write_rank_tables(job(tmp_path, slow, rank=rank), tmp_path / str(rank)))
        for name in RANK_TABLES:
            files[name].append(parquet_file(tmp_path / str(rank), name))
    (said,) = [one for one in Ranks(files, lambda _: range(12)).words() if "median of" in one]
    assert said == (
        "step 4 took 110 ms on rank 11, 11 times the median of its steps; "
        "step 2 took up to 110 ms on 10 ranks, up to 11 times the median of their steps"
    )


def test_one_of_a_few_steps_comes_last(tmp_path: Path) -> None:
    """A slow step of three may be chance: it comes after what each step costs, and says so."""
    sort: list[Span] = [("aten::sort", "cpu_op", 9, 100)]
    *others, last = all_findings(job(tmp_path, {1: sort}, count=3))
    assert last.title == "Step 1 takes longer than the others"
    assert last.detail.startswith("It is one of 3 steps. It takes 110 ms, 100 ms more")
    assert last.saves == "Without that, the average step would be 33.3 ms shorter."
    assert others[0].title == "aten::mm takes the most"


def test_the_average_step_decides_the_order(tmp_path: Path) -> None:
    """A step that is a little longer costs less than what takes most of each step."""
    found = all_findings(job(tmp_path, {SLOW: [("aten::sort", "cpu_op", 9, 9)]}, longer=10.0))
    assert found[0].title == "aten::mm takes the most"
    assert "Step 3 takes longer than the others" in [one.title for one in found]


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        ([[8, 8]], "Its inputs have the same shapes as in the others"),
        ([[64, 8]], "Its inputs have shapes that the others do not have"),
        (None, "See whether it is called more often than in the others, or with larger inputs."),
    ],
)
def test_advice_on_a_longer_operator_knows_its_shapes(
    tmp_path: Path, slow: list[list[int]] | None, said: str
) -> None:
    """A question that the trace answers is not asked."""
    shapes = None if slow is None else [[[8, 8]], slow]
    spans: list[Span] = [("aten::sort", "cpu_op", 9, 100)]
    few: list[Span] = [("aten::sort", "cpu_op", 1, 2)]
    measured = job(tmp_path, {SLOW: spans}, few, shapes=shapes)
    (found,) = (one for one in all_findings(measured) if one.title.startswith("Step 3"))
    assert found.advice.startswith(said)
