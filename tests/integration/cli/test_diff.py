"""``dynprof diff`` and ``dynprof top``, in a terminal and in a pipe."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from tests.processes import DYNPROF, run
from tests.step_traces import write

if TYPE_CHECKING:
    from pathlib import Path


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    """Brackets are no markup for the terminal, and control characters are escaped."""
    name = "[/] [red]a\u001b[2J<b>"
    path = write(tmp_path / "a.trace.json", 1, 1, 1, cat="cpu_op", name=name)
    other = write(tmp_path / "b.trace.json", 1, 1, 1)
    for command in (["top", str(path)], ["diff", str(other), str(path)]):
        done = run([*DYNPROF, *command], env={**os.environ, "COLUMNS": "150"})
        assert done.returncode == 0, done.stderr
        assert "[/] [red]a" in done.stdout
        assert "<b>" in done.stdout
        assert "\x1b[2J" not in done.stdout


def test_large_counts_are_written_out(tmp_path: Path) -> None:
    """30,000 calls in a step are not 3e+04; fractions have four digits."""
    paths = [write(tmp_path / f"{n}.trace.json", 1, n, ms=0.01) for n in (3, 30_000)]
    done = run([*DYNPROF, "diff", *map(str, paths)], env={**os.environ, "COLUMNS": "120"})
    (row,) = (line.split() for line in done.stdout.splitlines() if line.startswith("aten::mm"))
    assert row[2:4] == ["3", "30,000"]


@pytest.mark.parametrize("width", [40, 80, 0])
def test_the_tables_fit_the_screen(tmp_path: Path, width: int) -> None:
    """No line is wider than the screen, and a long name has one line; a pipe has it whole."""
    name = "void at::native::elementwise_kernel<128, 2, at::native::add_kernel>(int, float)"
    path = write(tmp_path / "a.trace.json", 2, 3, 20, cat="cpu_op", name=name)
    other = write(tmp_path / "b.trace.json", 2, 3, 10, cat="cpu_op", name=name, dur=9)
    env = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    for command in (["top", str(path)], ["diff", str(path), str(other)]):
        screen = {"COLUMNS": str(width)} if width else {}
        done = run([*DYNPROF, *command], env={**env, **screen})
        assert (done.returncode, done.stderr) == (0, "")
        assert "ProfilerStep" not in done.stdout
        (row,) = (line for line in done.stdout.splitlines() if line.startswith("void at"))
        if width:
            assert max(map(len, done.stdout.splitlines())) <= width
            assert "…" in row
        else:
            assert name in row


def test_the_command(tmp_path: Path) -> None:
    """The command prints the table; its exit code says whether the figures are comparable."""
    one = write(tmp_path / "a.trace.json", 2, 3, 10)
    other = write(tmp_path / "b.trace.json", 2, 3, 20, cat="python_function")
    codes = []
    for second in (one, other, tmp_path / "no"):
        done = run([*DYNPROF, "diff", one, second])
        codes.append(done.returncode)
        if second == other:
            assert "aten::mm" in done.stdout
            assert "+30.000" in done.stdout
            assert "only the second has the host's Python frames" in done.stderr
    assert codes == [0, 1, 2]


def test_without_marked_steps_the_whole_is_compared(tmp_path: Path) -> None:
    """The whole trace is compared, and called that; equal traces give no empty table."""
    event = {"ph": "X", "pid": 1, "tid": 1, "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 5}
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    wide = {**os.environ, "COLUMNS": "300"}
    done = run([*DYNPROF, "diff", str(path), str(path)], env=wide)
    same = "1 and 2 are the same window; give the paths of two\n"
    assert (done.returncode, done.stderr) == (0, same)
    assert done.stdout.splitlines() == [
        f"1: {path}",
        f"2: {path}",
        "the trace: 0.005 ms in 1, 0.005 ms in 2 (+0.000 ms)",
        "nothing changed",
    ]


def test_a_capture_without_operators_is_not_called_faster(tmp_path: Path) -> None:
    """A window of ``Level_none`` has no operators: missing ones are not a gain."""
    one = write(tmp_path / "a.trace.json", 2, 3, 10)
    other = tmp_path / "b.trace.json"
    other.write_text(one.read_text().replace('"cpu_op"', '"mstx"'))
    done = run([*DYNPROF, "diff", one, other])
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "not comparable: only the first has operators",
        "not comparable: only the first has phases of the host",  # guessed from operators
    ]
    shown = run([*DYNPROF, "top", other])
    words = "no operator was recorded; dynprof report shows 8 marks"
    assert shown.stdout.splitlines() == ["b.trace.json", words]


def test_captures_of_other_devices_are_named(tmp_path: Path) -> None:
    """Kernels of another device have other names; the command says so without an error."""
    paths = []
    for name in ("NVIDIA A100", "NVIDIA H100"):
        args = {"device": 0, "stream": 7}
        path = write(tmp_path / f"{name}.trace.json", 1, 1, 10, cat="kernel", args=args)
        said = json.loads(path.read_text())
        path.write_text(json.dumps({**said, "deviceProperties": [{"id": 0, "name": name}]}))
        paths.append(str(path))
    same, other = (run([*DYNPROF, "diff", paths[0], path]) for path in paths)
    assert (same.returncode, "ran on" in same.stderr) == (0, False)
    assert other.returncode == 0
    assert other.stderr == (
        "1 ran on NVIDIA A100, 2 on NVIDIA H100; kernels may have other names, so compare "
        "categories, modules and shapes\n"
    )
    code, line = judged(*paths)
    reason = "1 ran on NVIDIA A100, 2 on NVIDIA H100, and a verdict needs the same device"
    assert (code, line) == (1, f"not comparable: {reason}")


def stepping(path: Path, *lengths_ms: float, rank: int = 0, name: str = "aten::mm") -> Path:
    """Write steps of the given lengths, each with an operator that takes half of it."""
    events: list[dict[str, Any]] = []
    common = {"ph": "X", "pid": 1, "tid": 1}
    for number, length_ms in enumerate(lengths_ms):
        ts, dur = number * 10**6, round(length_ms * 1000)
        events += [
            {**common, "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": ts,
             "dur": dur},
            {**common, "cat": "cpu_op", "name": name, "ts": ts + 1, "dur": dur // 2},
        ]  # fmt: skip
    said = {"baseTimeNanoseconds": 0, "distributedInfo": {"rank": rank, "world_size": 2}}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**said, "traceEvents": events}))
    return path


def judged(*arguments: str | Path) -> tuple[int, str]:
    """Return the exit code of ``diff --fail-over 5%``, and the last line of its errors."""
    done = run([*DYNPROF, "diff", *arguments, "--fail-over", "5%"])
    return done.returncode, done.stderr.splitlines()[-1]


def test_a_slower_step_fails(tmp_path: Path) -> None:
    """The median decides, so that one step of 90 ms does not; the line says how much steps vary."""
    steady = stepping(tmp_path / "a.trace.json", 10, 10.1, 9.9, 10, 10.2)
    outlier = stepping(tmp_path / "b.trace.json", 10.3, 10.4, 10.2, 10.3, 90)
    slower = stepping(tmp_path / "c.trace.json", 10.6, 10.7, 10.6, 10.5, 10.6)
    assert judged(steady, outlier) == (0, (
        "passed: a step is 3.0% longer in 2 (10.300 ms) than in 1 (10.000 ms), and 5% more is "
        "allowed; the median of 5 steps in 1 and 5 in 2; half of the steps are within 1.0% and "
        "1.0% of it"
    ))  # fmt: skip
    code, line = judged(steady, slower)
    assert (code, line.split(" in 2 ")[0]) == (8, "failed: a step is 6.0% longer")
    code, line = judged(slower, steady)
    assert (code, line.split(" in 2 ")[0]) == (0, "passed: a step is 5.7% shorter")
    single = stepping(tmp_path / "d.trace.json", 20)
    code, line = judged(steady, single)
    assert (code, line.split("; ")[-1]) == (
        8, "the variation of one step is unknown, so record more steps"
    )  # fmt: skip
    noisy = stepping(tmp_path / "e.trace.json", 8, 9, 10, 11, 12)
    assert judged(noisy, steady) == (0, (
        "passed: a step is 0.0% longer in 2 (10.000 ms) than in 1 (10.000 ms), and 5% more is "
        "allowed; the median of 5 steps in 1 and 5 in 2; half of the steps are within 10.0% and "
        "1.0% of it, a variation above the limit, so record more steps"
    ))  # fmt: skip


def test_captures_that_are_not_comparable_do_not_pass(tmp_path: Path) -> None:
    """Equal captures without steps, and steps with and without operators, are no verdict."""
    event = {"ph": "X", "pid": 1, "tid": 1, "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 5}
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    assert judged(path, path) == (
        1, "not comparable: neither has marked steps, which --fail-over compares"
    )  # fmt: skip
    one = stepping(tmp_path / "b.trace.json", 10, 10)
    other = tmp_path / "c.trace.json"
    other.write_text(one.read_text().replace('"cpu_op"', '"mstx"'))
    assert judged(one, other) == (1, "not comparable: only the first has phases of the host")
    stepping(tmp_path / "d" / "0.trace.json", 10, 10)
    (tmp_path / "d" / "1.trace.json").write_text("{")
    assert judged(one, tmp_path / "d") == (1, "not comparable: 1 trace cannot be read")
    for limit in ("0.05", "x", "x%", "-1%", "inf%", "nan%", "%"):
        done = run([*DYNPROF, "diff", one, one, f"--fail-over={limit}"])
        assert done.returncode == 2
        assert "write a percentage, such as 5%" in " ".join(re.split(r"[\s│]+", done.stderr))


@pytest.mark.parametrize(
    ("limit", "code"), [("15", 8), ("25", 0), ("20.5", 0), ("0", 8), ("0.5%", 8)]
)
def test_a_limit_may_lack_its_sign(tmp_path: Path, limit: str, code: int) -> None:
    """A step that takes 20% longer is above 15, and below 25."""
    one, other = (stepping(tmp_path / f"{ms}.trace.json", ms, ms) for ms in (10, 12))
    assert run([*DYNPROF, "diff", one, other, "--fail-over", limit]).returncode == code


def test_names_are_cut_and_stay_different(tmp_path: Path) -> None:
    """Kernels that differ only where a cut falls have rows that differ."""
    names = [f"void kernel_{'a' * 80}{one}{'b' * 500}_per_row_1(float)" for one in "xy"]
    names += [f"void gemm<{'int, ' * 20}{one}, {'int, ' * 200}>(float)" for one in "xy"]
    paths = [tmp_path / f"{which}.trace.json" for which in "ab"]
    for path, dur in zip(paths, (100, 300), strict=True):
        events = [
            {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": name, "ts": 1000 * place,
             "dur": dur, "args": {"device": 0, "stream": 7}}
            for place, name in enumerate(names)
        ]  # fmt: skip
        path.write_text(json.dumps({"traceEvents": events}))
    env = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    for form, mark in (("table", "…"), ("markdown", "…"), ("junit", "&#8230;")):
        done = run([*DYNPROF, "diff", *paths, "--by", "kernel", "--format", form], env=env)
        rows = [line for line in done.stdout.splitlines() if "void" in line]
        assert len(set(rows)) == len(names), done.stdout
        assert all(mark in row and len(row) < 400 for row in rows)
    done = run([*DYNPROF, "diff", *paths, "--by", "kernel", "--format", "json"])
    assert {row["name"] for row in json.loads(done.stdout)["rows"]} == {*names}


def serving(path: Path, *iterations: tuple[str, float]) -> Path:
    """Write a trace of iterations of a server, each with its label and its ms."""
    begin, events = 0.0, list[dict[str, Any]]()
    for label, took in iterations:
        span = {"ph": "X", "pid": 1, "tid": 1, "ts": begin * 1000, "dur": took * 1000}
        events.append({**span, "name": label, "cat": "user_annotation"})
        events.append({**span, "name": "aten::mm", "cat": "cpu_op"})
        begin += took + 1
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_iterations_are_compared_with_their_kind(tmp_path: Path) -> None:
    """More prefills in the second window are no regression; slower decode iterations are.

    Where no kind is in both windows, there is no verdict.
    """
    decode, wide, prefill = "step[DECODE bs=8]", "step[DECODE bs=16]", "step[EXTEND bs=2 toks=99]"
    one = serving(tmp_path / "a.trace.json", *[(decode, 2)] * 3, (prefill, 30))
    more = serving(tmp_path / "b.trace.json", (decode, 2), *[(prefill, 30)] * 4)
    slow = serving(tmp_path / "c.trace.json", (wide, 3), (wide, 3), (prefill, 30))
    alone = serving(tmp_path / "d.trace.json", (prefill, 30))
    code, line = judged(one, more)
    assert (code, line.split(", and ")[0]) == (
        0, "passed: an iteration is 0.0% longer in 2 (2.000 ms) than in 1 (2.000 ms)"
    )  # fmt: skip
    code, line = judged(one, slow)
    assert (code, line.split(" in 2 ")[0]) == (8, "failed: an iteration is 50.0% longer")
    done = run([*DYNPROF, "diff", one, slow])
    assert done.stderr.splitlines() == [
        "compared: 3 decode iterations in 1, 2 in 2; not prefill",
        "decode iterations have 8 and 16 requests (medians)",
        "decode iterations have 8 and 16 tokens (medians)",
    ]
    only = serving(tmp_path / "e.trace.json", (decode, 2))
    assert judged(only, alone) == (
        1, "not comparable: no kind of iteration is in both: 1 has decode iterations, 2 has "
        "prefill iterations"
    )  # fmt: skip


def test_rows_are_selected(tmp_path: Path) -> None:
    """Only the requested rows are shown; those that cannot exist have a remark."""
    one, other = (stepping(tmp_path / f"{ms}.trace.json", ms, ms) for ms in (10, 12))
    chosen = ["--by", "category", "--by", "operator", "--by", "module"]
    done = run([*DYNPROF, "diff", one, other, *chosen], env={**os.environ, "COLUMNS": "300"})
    assert [line.split()[:2] for line in done.stdout.splitlines()[4:]] == [["aten::mm", "operator"]]
    assert done.stderr.splitlines() == [
        "by category: neither has a device", "by module: neither has any",
    ]  # fmt: skip


def test_other_numbers_of_ranks_are_named(tmp_path: Path) -> None:
    """Only the rank that both windows have is compared: 12 ms to 10 ms, not the mean."""
    stepping(tmp_path / "a" / "0.trace.json", 10, 10)
    stepping(tmp_path / "b" / "0.trace.json", 12, 12)
    stepping(tmp_path / "b" / "1.trace.json", 90, 90, rank=1)
    done = run([*DYNPROF, "diff", tmp_path / "a", tmp_path / "b", "--fail-over", "50%"])
    first, second = done.stderr.splitlines()
    assert first == "compared: rank 0; only one of the two has rank 1"
    assert second.startswith("passed: a step is 20.0% longer in 2 (12.000 ms)")


def test_a_summary_for_a_pull_request(tmp_path: Path) -> None:
    """Names are code, and no sign of a name ends its cell; the verdict comes first."""
    one = stepping(tmp_path / "a.trace.json", 10, 10, name="a|b`c\n<i>")
    other = stepping(tmp_path / "b.trace.json", 12, 12, name="a|b`c\n<i>")
    done = run([*DYNPROF, "diff", one, other, "--by", "operator", "--fail-over", "5%",
                "--format", "markdown"])  # fmt: skip
    assert done.returncode == 8
    title, _, verdict, _, *rows = done.stdout.splitlines()
    both = "10.000 ms in 1, 12.000 ms in 2 (+2.000 ms)"
    assert title == f"**dynprof diff**, a step, mean: {both}; median: {both}"
    assert [row.partition(":")[0] for row in rows[-2:]] == ["- 1", "- 2"]
    rows = rows[:-3]
    assert verdict.startswith("failed: a step is 20.0% longer in 2")
    assert rows == [
        "| by | name | ms 1 | ms 2 | change | % |",
        "|---|---|---:|---:|---:|---:|",
        r"| operator | `` a\|b`c\n<i> `` | 5.000 | 6.000 | +1.000 | +20.0% |",
    ]
    same = run([*DYNPROF, "diff", one, one, "--format", "markdown"])
    assert same.stdout.splitlines()[2] == "Nothing changed."


@pytest.mark.parametrize(
    ("ms", "mark", "code", "outcome"),
    [(10, "cpu_op", 0, None), (12, "cpu_op", 8, "failure"), (10, "mstx", 1, "error")],
)
def test_a_test_case_for_ci(
    tmp_path: Path, ms: int, mark: str, code: int, outcome: str | None
) -> None:
    """The test case passes, fails, or is an error if nothing is comparable."""
    one = stepping(tmp_path / "a.trace.json", 10, 10, name="\ud800\x01&")
    other = stepping(tmp_path / "b.trace.json", ms, ms, name="\ud800\x01&")
    other.write_text(other.read_text().replace('"cpu_op"', f'"{mark}"'))
    done = run([*DYNPROF, "diff", one, other, "--fail-over", "5%", "--format", "junit"])
    assert done.returncode == code
    (suite,) = ET.fromstring(done.stdout)  # noqa: S314 - our own output
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors")}
    assert counts == {"tests": 1, "failures": outcome == "failure", "errors": outcome == "error"}
    (case,) = suite
    assert float(case.attrib["time"]) == ms / 1000
    found = {child.tag: child for child in case}
    assert found.keys() == {"system-out"} | ({outcome} if outcome else set())
    if outcome:
        assert found[outcome].attrib["message"] in done.stderr


def test_the_comparison_for_scripts(tmp_path: Path) -> None:
    """JSON has the whole names, times in ns and everything that stderr says."""
    name = "aten::" + "m" * 500
    one = stepping(tmp_path / "a.trace.json", 10, 10, name=name)
    other = stepping(tmp_path / "b.trace.json", 12, 12, rank=1, name=name)
    done = run([*DYNPROF, "diff", one, other, "--by", "operator", "--fail-over", "5%",
                "--format", "json"])  # fmt: skip
    said = json.loads(done.stdout)
    assert said["rows"] == [
        {"by": "operator", "name": name, "count": [1, 1], "time_ns": [5e6, 6e6], "change_ns": 1e6}
    ]
    assert said["step"] == {
        "of": "a step", "mean_ns": [10e6, 12e6], "median_ns": [10e6, 12e6], "steps": [2, 2],
        "variation": [0, 0],
    }  # fmt: skip
    assert (said["fail_over"]["limit"], said["fail_over"]["failed"]) == (0.05, True)
    assert [*said["remarks"], said["fail_over"]["text"]] == done.stderr.splitlines()
    assert said["remarks"] == ["1 is rank 0, 2 rank 1"]
