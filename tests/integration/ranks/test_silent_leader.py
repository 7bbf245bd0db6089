"""The leader says nothing for a while, and the others have read what is saved."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from dynprof.journal.status import load_status
from tests.integration.commands import dynprof
from tests.integration.ranks.agreeing import SHARED, job, log, manifests
from tests.integration.running import wait_for

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

TORCHRUN = ("--standalone",)  # the store lives beside the ranks
SILENT = "which leads, has said nothing since this file was saved; this rank waits for it"


def test_a_leader_that_is_stopped_while_all_read_one_file(tmp_path: Path) -> None:
    """The others wait, and say so; once it goes on the request is served, with one number."""
    root = tmp_path / SHARED
    with job(tmp_path, 2, SHARED, 2.0, (), "agree on the steps", *TORCHRUN):
        leader = load_status(root / "status" / "rank_0.json").pid
        os.kill(leader, signal.SIGSTOP)
        try:
            assert dynprof("arm", root, "--active", 3)[0] == 0
            wait_for("a word of it", lambda: SILENT in log(root) or None)
        finally:
            os.kill(leader, signal.SIGCONT)
        wait_for("both captures", lambda: len(manifests(tmp_path)) == 2 or None)
    assert (log(root).count(SILENT), log(root).count("refused")) == (1, 0)
    assert len({(one.steps.first, one.request.number) for one in manifests(tmp_path)}) == 1
