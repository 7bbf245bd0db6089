"""Ranks of several roles in one directory."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.captures.window_record import load_window_record
from dynprof.journal.status import load_status
from tests.integration.commands import dynprof
from tests.integration.launching import end_well, ranks
from tests.integration.ranks.agreeing import JOB, SHARED, log, manifests
from tests.integration.running import wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch", reason="torch is not installed")


def script(role: str) -> str:
    """Return the script of a role's ranks; they stop when a file ``enough`` exists."""
    made = JOB.format(directory=SHARED, ms=5.0, without=(), leaving="dist.destroy_process_group()")
    return made.replace(f'"{SHARED}")', f'"../{SHARED}", role="{role}")').replace(
        '"enough"', '"../enough"'
    )


def test_two_roles_share_a_directory(tmp_path: Path) -> None:
    """Two roles of two ranks each record one save in one directory, without collisions."""
    root = tmp_path / SHARED
    with contextlib.ExitStack() as stack:
        running = []
        for role in ("trainer", "rollout"):
            folder = tmp_path / role
            folder.mkdir()
            running += stack.enter_context(ranks(folder, script(role), 2))
        wait_for("the ranks", lambda: log(root).count("agree on the steps") == 4 or None)
        wait_for("four statuses", lambda: len(list(root.glob("status/*.json"))) == 4 or None)
        code, output, errors = dynprof("arm", root, "--active", 2, "--wait")
        assert code == 0, errors
        assert len(output.splitlines()) == 4
        for role in ("rollout", "trainer"):
            assert f"2 of 2 {role} ranks saved it: " in errors
        code, output, errors = dynprof("status", root)
        assert code == 0, errors
        shown = [" ".join(line.split()[:2]) for line in output.splitlines()[1:5]]
        assert shown == ["rollout 0", "rollout 1", "trainer 0", "trainer 1"]
        assert "rollout rank 0 leads 2 ranks" in output
        assert "trainer rank 0 leads 2 ranks" in output
        found = json.loads(dynprof("status", root, "--json")[1])["ranks"]
        assert [(one["role"], one["rank"]) for one in found] == [
            ("rollout", 0), ("rollout", 1), ("trainer", 0), ("trainer", 1),
        ]  # fmt: skip
        (tmp_path / "enough").touch()
        assert "Traceback" not in end_well(running)
    assert "two jobs share it" not in log(root)
    assert {load_status(path).named for path in root.glob("status/*.json")} == {
        "rollout rank 0", "rollout rank 1", "trainer rank 0", "trainer rank 1",
    }  # fmt: skip
    assert len(manifests(root)) == 4
    for role in ("rollout", "trainer"):
        (window,) = root.glob(f"step_*_{role}")
        record = load_window_record(window / "info" / "window.json")
        assert (record.asked, record.missing, record.complete) == ((0, 1), {}, True)
        assert record.leader.startswith(f"{role} rank 0 on ")
        of_ranks = [load_manifest(window / f"info/{role}_rank_{rank}.info.json") for rank in (0, 1)]
        assert [(one.role, one.rank) for one in of_ranks] == [(role, 0), (role, 1)]
        assert len({(one.steps.first, one.steps.last) for one in of_ranks}) == 1
        assert len(list(window.glob("*.pt.trace.json.gz"))) == 2
        code, _, errors = dynprof("merge", window)
        assert code == 0, errors
        assert "merged: ranks 0 to 1" in errors
