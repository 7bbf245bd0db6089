"""``info/window.json`` has a window's result on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.captures.window_record import load_window_record
from dynprof.ranks.job_windows import LEFT
from tests.integration.commands import dynprof
from tests.integration.ranks.agreeing import APART, everything, job, the_record
from tests.integration.running import below, wait_for

pytest.importorskip("torch", reason="torch is not installed")


def test_cancel_with_wait_waits_for_the_captures(tmp_path: Path) -> None:
    """The wait ends when all open captures are saved, also in other directories."""
    root = tmp_path / "desk_0"
    with job(tmp_path, 2, APART):
        for ranks, opened in (("all", 2), ("1", 3)):
            assert dynprof("arm", root, "--active", 100_000, "--ranks", ranks)[0] == 0
            _wait_until(tmp_path, "opened at", opened)
            code, output, errors = dynprof("cancel", root, "--wait")
            newest = max(below(root, "window.json"), key=lambda path: path.stat().st_mtime_ns)
            saved = load_window_record(newest).ranks
            assert {one.outcome for one in saved.values()} == {"saved"}, errors
            own = [saved[0].capture] if 0 in saved else []
            assert (code, output.splitlines()) == (0, own), errors
            assert f"saved it: {newest}" in errors
        assert dynprof("arm", root, "--active", 1, "--start-step", 10**6, "--ranks", "all")[0] == 0
        _wait_until(tmp_path, "opens at step 1000000", 2)
        code, output, errors = dynprof("cancel", root, "--wait")
        assert (code, output) == (0, ""), errors
        assert "0 of 2 ranks saved it, cancelled on 2" in errors


@pytest.mark.parametrize("leaving", ["", "dist.destroy_process_group()"])
def test_a_job_that_ends_in_its_window(tmp_path: Path, leaving: str) -> None:
    """Captures that are saved at the end of the ranks are in the record, wherever they are.

    If the store has ended with the process group, the others are missing; none is in progress.
    """
    root = tmp_path / "desk_0"
    with job(tmp_path, 3, APART, leaving=leaving):
        assert dynprof("arm", root, "--active", 100_000)[0] == 0
        wait_for("the windows", lambda: _opened(tmp_path) == 3 or None)
    (path,) = below(root, "window.json")
    record = load_window_record(path)
    told = {rank: one.outcome for rank, one in record.ranks.items()}
    assert told == dict.fromkeys({1, 2} - record.missing.keys() | {0}, "saved")
    assert not record.complete
    for rank, one in record.ranks.items():
        assert load_manifest(Path(one.capture)).rank == rank
        assert one.cut == load_manifest(Path(one.capture)).reason != ""
    assert leaving or record.missing == {}


def test_a_leader_that_ends_dynprof_while_the_others_train(tmp_path: Path) -> None:
    """The others wait for it in a collective. It does not wait for their windows, which continue.

    A rank that watches another directory then serves its own saves.
    """
    with job(tmp_path, 2, APART):
        assert dynprof("arm", tmp_path / "desk_0", "--active", 100_000, "--ranks", "1")[0] == 0
        wait_for("the window", lambda: _opened(tmp_path) or None)
        (tmp_path / "leave").touch()
        why = LEFT.format("open")
        wait_for("the end", lambda: the_record(tmp_path / "desk_0").missing == {1: why} or None)
        by_itself = "the leader has ended"
        wait_for("it to be heard", lambda: by_itself in everything(tmp_path) or None)
        assert dynprof("cancel", tmp_path / "desk_1")[0] == 0
        wait_for("the cancel", lambda: "early: cancelled by" in everything(tmp_path) or None)
    assert [load_manifest(path).rank for path in below(tmp_path, "rank_*.info.json")] == [1]


def _opened(folder: Path) -> int:
    return sum("opened at" in log.read_text() for log in folder.glob("desk_*/log/*.log"))


def _wait_until(folder: Path, said: str, times: int) -> None:
    wait_for(said, lambda: everything(folder).count(said) == times or None)
