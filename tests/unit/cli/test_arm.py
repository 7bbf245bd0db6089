"""What ``arm`` says of ranks that do not step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dynprof.cli.arm import _tell_what_is_asked
from dynprof.journal.status import NOBODY_YET, Status

if TYPE_CHECKING:
    import pytest


def test_who_asks_a_rank_of_which_nobody_ends_steps_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else he would wait for the end of a first step that never comes."""
    why = f"{NOBODY_YET}: no step has ended in 30 s: no optimizer of torch's has made a step"
    here = {"host": "node9", "heartbeat": time.time(), "longest_s": None}
    _tell_what_is_asked(
        [Status("idle", rank=0, **here), Status("idle", rank=3, steps_from=why, **here)],  # type: ignore[arg-type]
        [],
    )
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("2 ranks are in the first step still")
    assert said[1:] == [f"rank 3: its steps come from {why}"]
