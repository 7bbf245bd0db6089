"""Edits that come while ranks record, or before they agree on the previous one."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from dynprof.journal.status import load_status
from dynprof.runtime.safe_write import write_atomic
from tests.integration.commands import dynprof
from tests.integration.ranks.agreeing import SHARED, job, log, manifests
from tests.integration.running import wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch", reason="torch is not installed")


def edits(root: Path) -> dict[int, str]:
    """Return the results of each edit on rank 0."""
    answers = load_status(root / "status" / "rank_0.json").edits
    return {answer.number: answer.outcome for answer in answers}


def test_the_newest_edit_that_waits_for_an_agreement_counts(tmp_path: Path) -> None:
    """As in a single process. A cancel cancels the newest one too, and all ranks hear at once."""
    root = tmp_path / SHARED
    config = root / "profiler_config.json"
    patience = {"agreement": {"patience_s": 3600}}
    with job(tmp_path, 2):
        assert dynprof("arm", root, "--active", 100_000)[0] == 0
        wait_for("open windows", lambda: log(root).count("; recording steps") == 2 or None)
        for asked in (2, 3, 4):
            write_atomic(config, json.dumps({"active": asked, **patience}))
            wait_for("it to be read", lambda: max(edits(root)) == asked or None)  # noqa: B023
            time.sleep(0.1)
        time.sleep(2.5)  # longer than the wait for an edit without a proposal
        write_atomic(config, json.dumps({"cancel": True}))
        wanted = {1: "saved", 2: "superseded", 3: "superseded", 4: "cancelled", 5: "cancel"}
        wait_for(f"{wanted}", lambda: edits(root) == wanted or None)
        wait_for("the captures", lambda: len(manifests(root)) == 2 or None)
        assert log(root).count("request 4: cancelled by request 5") == 2
    assert "was not proposed" not in log(root)
