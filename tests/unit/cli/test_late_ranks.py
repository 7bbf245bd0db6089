"""Ranks that start just as ``arm`` saves the config."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from dynprof.cli import arm
from dynprof.cli.app import app
from dynprof.config.editing import change
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.status import Status
from dynprof.runtime.layout import CONFIG_NAME, STATUS_DIR, host_name, pid_namespace

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def rank(number: int, raw: bytes | None) -> Status:
    """Return the status of a live rank that has read a save, or has not."""
    edits = (Answer(1, hashlib.sha256(raw).hexdigest(), 0.0, "waiting"),) if raw else ()
    here: dict[str, Any] = {"host": host_name(), "pid_namespace": pid_namespace()}
    return Status(
        "waiting", rank=number, world_size=2, pid=os.getpid(), heartbeat=time.time(), edits=edits,
        **here,
    )  # fmt: skip


def armed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *looks: bool, others: int = 0
) -> tuple[int, str]:
    """Start a rank as ``arm`` saves; return the exit code and the output.

    Args:
        folder: The config's directory.
        monkeypatch: Starts the rank.
        looks: Whether it has read the save at each look. The last value repeats.
        others: The number of ranks that ran before.
    """
    (folder / CONFIG_NAME).write_text("{}")
    (folder / STATUS_DIR).mkdir()
    left = list(looks)

    def write(status: Status) -> None:
        path = folder / STATUS_DIR / f"rank_{status.rank}.json"
        path.write_text(json.dumps(dataclasses.asdict(status)))

    def saved(*given: Any) -> bytes:
        raw = change(*given)

        def comes_up(_: float) -> None:
            write(rank(others, raw if (left.pop(0) if left[1:] else left[0]) else None))

        comes_up(0)
        monkeypatch.setattr(time, "sleep", comes_up)
        return raw

    for number in range(others):
        write(rank(number, None))
    monkeypatch.setattr(arm, "change", saved)
    monkeypatch.setattr(arm, "READ_S", arm.READ_S if looks[-1] else 0.0)
    done = CliRunner().invoke(app, ["arm", str(folder)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_a_rank_that_has_read_the_save_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank's status appears just before; "no process watches" would be wrong."""
    code, said = armed(tmp_path, monkeypatch, True)
    assert (code, "requested from 1 live rank" in said, "superseded" in said) == (0, True, False)


def test_a_rank_that_soon_reads_the_save_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank looks at the file again at most two seconds after its start."""
    code, said = armed(tmp_path, monkeypatch, False, False, True)
    assert (code, "requested from 1 live rank" in said) == (0, True)


def test_a_rank_that_joins_others_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new rank is not among the ranks that are missing."""
    code, said = armed(tmp_path, monkeypatch, True, others=1)
    assert (code, "requested from 2 live ranks" in said, "not running" in said) == (0, True, False)


def test_a_rank_that_started_after_the_save_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank does not treat an older file as a request; it does not count as ended either."""
    code, said = armed(tmp_path, monkeypatch, False)
    assert (code, "last heard of" in said) == (3, False)
    assert "its process started after this save; save again to include it" in said
