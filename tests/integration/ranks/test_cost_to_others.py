"""The cost of a window for ranks that do not record: no collective waits for a save."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.journal.status import load_status
from tests.integration.commands import dynprof
from tests.integration.ranks import agreeing
from tests.integration.ranks.agreeing import APART, JOB, job, manifests
from tests.integration.running import wait_for

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

HELD = """
from dynprof.backends.torch.backend import TorchBackend
from dynprof.backends.torch.torch_recording import TorchRecording
begun, threads = [], set()
prepare, save = TorchBackend.prepare, TorchRecording.save
def preparing(*args):
    begun.append(args)
    return prepare(*args)
def saving(*args):
    open("saves", "w").close()
    while not os.path.exists("may_save"):
        time.sleep(0.001)
    return save(*args)
TorchBackend.prepare, TorchRecording.save = preparing, saving
def look():
    import threading
    if os.path.exists("recorded"):
        names = [thread.name for thread in threading.enumerate()]
        threads.add(frozenset(names) - frozenset(["dynprof-selftest"]))  # it is at its end
"""
SEEN = """
assert len(begun) == rank
assert rank or len(threads) == 1, threads
"""


def test_a_save_costs_other_ranks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks train while one saves. The other one records nothing and starts no thread."""
    begin, loop, end = "rank = dist.get_rank()\n", "    dp.step()\n", 'print("trained")'
    text = JOB.replace(begin, begin + HELD).replace(loop, f"{loop}    look()\n")
    monkeypatch.setattr(agreeing, "JOB", text.replace(end, SEEN + end))

    def step(rank: int) -> int:
        return load_status(tmp_path / f"desk_{rank}" / "status" / f"rank_{rank}.json").step

    with job(tmp_path, 2, APART):
        (tmp_path / "recorded").touch()
        assert dynprof("arm", tmp_path / "desk_0", "--active", 20, "--ranks", 1)[0] == 0
        wait_for("the save", lambda: (tmp_path / "saves").exists() or None)
        before = [step(rank) for rank in (0, 1)]
        for rank in (0, 1):
            wait_for("100 steps", lambda: step(rank) >= before[rank] + 100 or None)  # noqa: B023
        assert manifests(tmp_path) == []
        (tmp_path / "may_save").touch()
        wait_for("the capture", lambda: manifests(tmp_path) or None)
    (manifest,) = manifests(tmp_path)
    assert (manifest.rank, manifest.complete) == (1, True)
    assert not [*tmp_path.glob("desk_0/step_*/*rank0*")]
