"""``dynprof diff`` and ``dynprof top``, in a terminal and in a pipe."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

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
    done = run([*DYNPROF, "diff", str(path), str(path)])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "the trace: 0.005 ms in 1, 0.005 ms in 2 (+0.000 ms)",
        "nothing changed",
    ]


def test_a_capture_without_operators_is_not_called_faster(tmp_path: Path) -> None:
    """A window of ``Level_none`` has no operators: missing ones are not a gain."""
    one = write(tmp_path / "a.trace.json", 2, 3, 10)
    other = tmp_path / "b.trace.json"
    other.write_text(one.read_text().replace('"cpu_op"', '"mstx"'))
    done = run([*DYNPROF, "diff", one, other])
    assert (done.returncode, done.stderr) == (1, "not comparable: only the first has operators\n")
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
    assert (same.returncode, same.stderr) == (0, "")
    assert other.returncode == 0
    assert other.stderr == "1 ran on NVIDIA A100, 2 on NVIDIA H100; kernels may have other names\n"
