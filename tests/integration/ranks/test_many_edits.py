"""Edits that come while ranks record, or have yet to agree on the one before."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.files.output import write_atomic
from dynprof.journal.status import load_status
from tests.integration.commands import dynprof
from tests.integration.ranks.agreeing import SHARED, job, log, manifests
from tests.integration.running import wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch", reason="torch is not installed")


def edits(root: Path) -> dict[int, str]:
    """Return what has become of each edit on rank 0."""
    answers = load_status(root / "status" / "rank_0.json").edits
    return {answer.number: answer.outcome for answer in answers}


def test_an_edit_for_others_is_served_beside_a_long_window(tmp_path: Path) -> None:
    """It neither ends that one nor waits for it."""
    root = tmp_path / SHARED
    with job(tmp_path, 3):
        assert dynprof("arm", root, "--active", 100_000, "--ranks", "2")[0] == 0
        wait_for("an open window", lambda: "; recording steps" in log(root) or None)
        code, output, errors = dynprof("arm", root, "--active", 2, "--ranks", "0-1", "--wait")
        assert code == 0, errors
        assert sorted(load_manifest(tmp_path / line).rank for line in output.splitlines()) == [0, 1]
        assert len(manifests(root)) == 2
        assert dynprof("cancel", root)[0] == 0
        wait_for("the long one", lambda: len(manifests(root)) == 3 or None)
    (long,) = (one for one in manifests(root) if one.rank == 2)
    assert long.steps.recorded > 20


def test_of_the_edits_that_wait_for_an_agreement_the_newest_counts(tmp_path: Path) -> None:
    """As in a single process; a cancel disarms that one, too, and all hear of it at once."""
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
        time.sleep(2.5)  # longer than an edit is waited for that nobody proposes
        write_atomic(config, json.dumps({"cancel": True}))
        wanted = {1: "saved", 2: "superseded", 3: "superseded", 4: "disarmed", 5: "cancel"}
        wait_for(f"{wanted}", lambda: edits(root) == wanted or None)
        wait_for("the captures", lambda: len(manifests(root)) == 2 or None)
        assert log(root).count("request 4: disarmed by request 5") == 2
    assert "was not proposed" not in log(root)


def test_what_rank_0_refuses_as_it_is_saved_all_ranks_answer(tmp_path: Path) -> None:
    """At once, with the reason and the setting that it is about; the next request is served."""
    root = tmp_path / SHARED
    elsewhere = tmp_path / "elsewhere"
    tmp_path.chmod(0o770)
    with job(tmp_path, 2):
        for number, option, pointer in (
            (1, "--prof-dir", "/prof_dir"),
            (2, "--scratch-dir", "/storage/scratch_dir"),
        ):
            code, _, errors = dynprof("arm", root, option, elsewhere, "--wait")
            assert code == 4, errors
            assert f"{pointer}: {elsewhere}" in errors
            assert "rank 1: refused: rank 0 has refused it: line " in errors
            write_atomic(root / "profiler_config.json", json.dumps({"active": number}))
            wait_for("captures", lambda: len(manifests(root)) == 2 * number or None)  # noqa: B023
