"""A window of several ranks whose captures are not here, alone or with other windows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import RequestRecord
from dynprof.captures.window_record import RankRecord, WindowRecord, load_window_record
from tests.integration.commands import dynprof
from tests.rank_traces import write

if TYPE_CHECKING:
    from pathlib import Path

ELSEWHERE = "rank 1: its capture is on node1, /prof_config/w/info/rank_1.info.json"
MISSING = "rank 2 is missing: it does not answer"


def window(root: Path, *elsewhere: int) -> Path:
    """Write the record of a window of three ranks; return its folder."""
    folder = root / "step_1-3_20260101T000000Z"
    (folder / "info").mkdir(parents=True)
    ranks = {
        rank: RankRecord(
            host=f"node{rank}",
            outcome="saved",
            capture=f"/prof_config/w/info/rank_{rank}.info.json",
        )
        for rank in elsewhere
    }
    WindowRecord(
        dynprof="0", leader="", world_size=3, start_step=1, first=1, last=3, asked=(0, 1, 2),
        request=RequestRecord(number=1, edited_at="2026", sha256="ab", config={}), ranks=ranks,
        missing={rank: "it does not answer" for rank in range(3) if rank not in elsewhere},
        agreed_ms=1, remarks=("rank 1 counted its steps otherwise",), complete=False,
    ).save(folder / "info" / "window.json")  # fmt: skip
    return folder


@pytest.mark.parametrize(
    ("command", "elsewhere"), [("report", ()), ("merge", (0, 1)), ("diff", (0, 1))]
)
def test_missing_ranks_and_other_hosts_are_named(
    tmp_path: Path, command: str, elsewhere: tuple[int, ...]
) -> None:
    """The error has a line for each rank, though there is no capture to read."""
    folder = window(tmp_path, *elsewhere)
    code, output, errors = dynprof(command, tmp_path, *([folder] if command == "diff" else []))
    assert (code, output) == (2, "")
    said = errors.splitlines()
    assert said[0] == f"{folder / 'info' / 'window.json'} names no capture that is here"
    assert said[1] == "rank 1 counted its steps otherwise"
    assert said[-1] == MISSING
    assert (ELSEWHERE in said) == bool(elsewhere)
    assert len(said) == 5


def older(root: Path) -> Path:
    """Write an older window of two ranks next to it; return its folder."""
    folder = root / "step_0-4_20250101T000000Z"
    folder.mkdir()
    for rank in range(2):
        write(folder, rank)
        os.utime(folder / f"rank{rank}.pt.trace.json", (1, 1))
    return folder


def cancelled(record: Path, outcome: str = "cancelled") -> None:
    """Write this outcome of two ranks into a record; they left no capture."""
    told = load_window_record(record)
    ranks = {rank: RankRecord(host="a", outcome=outcome) for rank in range(2)}
    told.model_copy(update={"ranks": ranks}).save(record)


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("report", "cancelled"),
        ("merge", "recording"),
        ("top", "recording"),
        ("diff", "cancelled"),
    ],
)
def test_the_newest_window_with_captures_is_used(
    tmp_path: Path, command: str, outcome: str
) -> None:
    """A window that was cancelled before it opened, or is being recorded, is skipped."""
    captures = older(tmp_path)
    newest = window(tmp_path)
    cancelled(newest / "info" / "window.json", outcome)
    code, output, errors = dynprof(command, tmp_path, *([captures] if command == "diff" else []))
    assert code == 0, errors
    assert output
    assert errors.splitlines()[0] == (
        f"skipped: {newest.name}: no capture is here of ranks 0 to 1 ({outcome}), "
        "rank 2 (it does not answer)"
    )
    assert "names no capture" not in errors


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("report", "saved elsewhere"),
        ("merge", "record"),
        ("top", "folder"),
        ("diff", "saved elsewhere"),
    ],
)
def test_a_window_that_is_named_or_saved_elsewhere_is_not_skipped(
    tmp_path: Path, command: str, named: str
) -> None:
    """The error names the reason; no older window replaces the requested one."""
    older(tmp_path)
    newest = window(tmp_path, *([1] if named == "saved elsewhere" else []))
    record = newest / "info" / "window.json"
    if named != "saved elsewhere":
        cancelled(record)
    path = {"folder": newest, "record": record}.get(named, tmp_path)
    code, output, errors = dynprof(command, path, *([path] if command == "diff" else []))
    assert (code, output) == (2, "")
    assert errors.splitlines()[0] == f"{record} names no capture that is here"
    assert (ELSEWHERE in errors) == (named == "saved elsewhere")


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A window record that cannot be read is named, with the reason."""
    path = window(tmp_path) / "info" / "window.json"
    path.write_text("{}")
    code, _, errors = dynprof("report", path)
    assert code == 2
    assert f"{path} is not the record of a window" in errors
    assert "Traceback" not in errors
