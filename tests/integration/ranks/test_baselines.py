"""Baselines of two ranks under torchrun: all record the same steps, and only baselines go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.ranks.agreeing import SHARED, everything, job, log, manifests
from tests.integration.running import wait_for
from tests.processes import DYNPROF, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


def test_two_ranks_record_the_same_steps_of_each_baseline(tmp_path: Path) -> None:
    """Rank 0 repeats the request for both; a window in between stays, a cancel ends it on both."""
    root = tmp_path / SHARED

    def saved(*, repeats: bool) -> dict[str, set[tuple[int, int, int]]]:
        """Return rank and steps of the captures, by the time of their edit."""
        found: dict[str, set[tuple[int, int, int]]] = {}
        for one in manifests(root):
            if one.is_baseline == repeats and one.trace:
                steps = (one.rank, one.steps.first, one.steps.last)
                found.setdefault(one.request.edited_at, set()).add(steps)
        return found

    def arm(*options: str) -> None:
        done = run([*DYNPROF, "arm", str(root), *options, "--wait"])
        assert done.returncode == 0, done.stderr

    with job(tmp_path, 2, SHARED, 5.0, (), "agree on the steps", "--standalone"):
        arm("--every", "1.5s", "--keep", "2", "--active", "2")
        arm("--active", "3")
        (own,) = saved(repeats=False).values()
        assert {rank for rank, *_ in own} == {0, 1}
        first = min(saved(repeats=True))
        wait_for("the removal", lambda: None if first in saved(repeats=True) else True)

        def of_both() -> list[set[tuple[int, int, int]]]:
            return [those for those in saved(repeats=True).values() if len(those) == 2]

        both = wait_for("a baseline of both", lambda: of_both() or None)
        assert [len({one[1:] for one in those}) for those in both] == [1] * len(both)
        assert run([*DYNPROF, "cancel", str(root), "--wait"]).returncode == 0
        assert saved(repeats=False) == {next(iter(saved(repeats=False))): own}
        assert log(root).count("dynprof cancel ends the baselines") == 1  # only rank 0 repeats it
        assert "did not propose" not in everything(tmp_path)
