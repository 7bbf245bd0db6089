"""Files that are not traces, and traces with unusual names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.runs.many_traces import analyse_each
from dynprof.analysis.runs.one_trace import newest_in, traces_in
from dynprof.analysis.runs.recorded_window import newest_measured
from dynprof.analysis.runs.window_report import report_on
from dynprof.errors import CaptureError
from tests.processes import DYNPROF, run
from tests.rank_traces import write
from tests.unit.analysis.random_traces import random_trace

if TYPE_CHECKING:
    from pathlib import Path

NO_TRACES = (
    "",
    "[1, 2, 3]",
    '[{"a": 1}]',
    '{"a": 1}',
    '{"traceEvents": 7}',
    '"x"',
    "PK",
    "\x1f\x8b",
)
EMPTY = ('{"traceEvents": []}', '{"traceEvents": [', "[]")


def folder_of_all_kinds(base: Path) -> Path:
    """Return a folder with one trace, and newer files with names of traces."""
    folder = base / "captures"
    folder.mkdir()
    random_trace(base, 1).rename(folder / "good.trace.json")
    for number, text in enumerate((*NO_TRACES, *EMPTY)):
        path = folder / f"other_{number}.trace.json"
        path.write_text(text, encoding="latin-1")
        os.utime(path, ns=(0, (folder / "good.trace.json").stat().st_mtime_ns + 10**9 + number))
    (folder / "a_folder.trace.json").mkdir()
    (folder / "nowhere.trace.json").symlink_to(folder / "there is none")
    return folder


def test_the_newest_trace_is_found_among_other_files(tmp_path: Path) -> None:
    """Other files are skipped with a reason."""
    folder = folder_of_all_kinds(tmp_path)
    measured, passed_over = newest_measured(folder)
    assert measured.path.name == "good.trace.json"
    assert len(passed_over) == len(NO_TRACES) + len(EMPTY)
    for path, why in passed_over.items():
        assert path.name in why


def test_the_newest_window_is_that_of_the_newest_request(tmp_path: Path) -> None:
    """A copy may have written the older one last."""
    for number, name in enumerate(("step_9-12_20260131T235959Z", "step_5-8_20251231T000000Z")):
        (tmp_path / name).mkdir()
        write(tmp_path / name, number)
        os.utime(tmp_path / name / f"rank{number}.pt.trace.json", (1e9 + number, 1e9 + number))
    measured, _ = newest_measured(tmp_path)
    assert measured.path.parent.name == "step_9-12_20260131T235959Z"
    assert newest_in(tmp_path) == measured.path


def test_report_and_analyse_use_the_trace_and_name_other_files(tmp_path: Path) -> None:
    """``report`` and ``analyse`` use the trace, and name the other files."""
    folder = folder_of_all_kinds(tmp_path)
    made = report_on(folder)
    assert made.path.is_file()
    assert "ms" in made.words[0]
    assert len(made.problems) >= len(NO_TRACES)
    outcome = analyse_each(traces_in(folder), processes=1)
    assert {path.name for path in outcome.problems} == {
        f"other_{number}.trace.json" for number in range(len(NO_TRACES))
    }
    assert any(path.parts[-2:] == ("good", "report.html") for path in outcome.made)


def test_an_empty_trace_is_used_if_it_is_the_only_one(tmp_path: Path) -> None:
    """An empty trace is used if all other files are not traces."""
    for number, text in enumerate((EMPTY[0], "{}")):
        (tmp_path / f"{number}.trace.json").write_text(text)
    measured, passed_over = newest_measured(tmp_path)
    assert (measured.path.name, len(passed_over)) == ("0.trace.json", 1)
    (tmp_path / "0.trace.json").unlink()
    with pytest.raises(CaptureError, match="traceEvents"):
        newest_measured(tmp_path)


@pytest.mark.parametrize("name", ["trace", "my trace.2024.pt", "a.jsonl", ".hidden", "b.gz"])
def test_a_file_of_any_name(tmp_path: Path, name: str) -> None:
    """A file with an unusual name is read if its path is given, and not found in a folder."""
    path = random_trace(tmp_path, 1).rename(tmp_path / name)
    with pytest.raises(CaptureError, match="give the path of a file with another name"):
        traces_in(tmp_path)
    assert newest_measured(path)[0].path == path
    assert report_on(path).path.is_file()
    assert not analyse_each(traces_in(path), processes=1).problems


def test_terminal_commands_print_skipped_files(tmp_path: Path) -> None:
    """``top`` and ``diff`` print the skipped files."""
    folder = folder_of_all_kinds(tmp_path)
    good = folder / "good.trace.json"
    for arguments, shown in (
        (["top", folder], "aten::op"),
        (["diff", good, folder], "a step, mean: "),
    ):
        done = run([*DYNPROF, *map(str, arguments)])
        assert (done.returncode, shown in done.stdout) == (0, True)
        assert done.stderr.count("skipped: ") == len(NO_TRACES) + len(EMPTY) + 2  # a link, a folder
