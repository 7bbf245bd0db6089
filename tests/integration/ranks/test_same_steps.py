"""The ranks of a job open their windows at the same step, wherever the config is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dynprof.captures.manifest import load_manifest
from tests.integration.commands import dynprof
from tests.integration.launching import end_well, ranks
from tests.integration.ranks.agreeing import (
    APART,
    SHARED,
    everything,
    job,
    log,
    manifests,
    numbers_in_trace,
    the_record,
)
from tests.integration.running import wait_for

pytest.importorskip("torch", reason="torch is not installed")


TORCHRUN = ("--standalone",)


@pytest.mark.parametrize(("ms", "torchrun"), [(1.0, ()), (30.0, TORCHRUN)])
def test_every_window_has_the_same_steps_on_all_ranks(
    tmp_path: Path, ms: float, torchrun: tuple[str, ...]
) -> None:
    """The traces show it, however the ranks learn of the edit."""
    with job(tmp_path, 3, SHARED, ms, (), "agree on the steps", *torchrun):
        for _ in range(3):
            code, output, errors = dynprof("arm", tmp_path / SHARED, "--active", 3, "--wait")
            assert code == 0, errors
            assert len(output.splitlines()) == 3
    windows = sorted((tmp_path / SHARED).glob("step_*"))
    assert len(windows) == 3
    for window in windows:
        first, last = map(int, re.findall(r"step_(\d+)-(\d+)_", window.name)[0])
        traces = list(window.glob("*.pt.trace.json.gz"))
        assert len(traces) == 3
        assert [numbers_in_trace(path) for path in traces] == [set(range(first, last + 1))] * 3
        iterations = [sorted(numbers_in_trace(path, "Iteration")) for path in traces]
        assert iterations == iterations[:1] * 3, window
        assert len(iterations[0]) == 3


def test_the_leaders_disk_is_enough(tmp_path: Path) -> None:
    """Each rank has its own directory, as on other machines; status names rank 0's."""
    with job(tmp_path, 3, APART):
        code, _, errors = dynprof("arm", tmp_path / "desk_0", "--active", 2, "--wait")
        assert code == 0, errors
        assert "rank 0 also sends the request to ranks without a status here: ranks 1, 2" in errors
        assert "3 of 3 ranks saved it: " in errors
        assert len(manifests(tmp_path)) == 3  # arm has waited for all of them
        record = the_record(tmp_path / "desk_0")
        assert (record.asked, record.missing, record.complete) == ((0, 1, 2), {}, True)
        assert {load_manifest(Path(one.capture)).rank for one in record.ranks.values()} == {0, 1, 2}
        (status,) = (tmp_path / "desk_1" / "status").glob("rank_1.json")
        wait_for("its leader", lambda: "follows rank 0" in status.read_text() or None)
        code, output, errors = dynprof("status", tmp_path / "desk_1")
        assert "rank 1 follows rank 0 on " in output, errors
        assert "desk_0/profiler_config.json)" in output
        code, _, errors = dynprof("arm", tmp_path / "desk_1", "--active", 3, "--wait")
        assert code == 4, errors
        assert "rank 1 follows rank 0 on " in errors
        assert "desk_0/profiler_config.json); save it there" in errors
        said = "leads and did not propose this save"
        wait_for("the log of rank 1", lambda: said in log(tmp_path / "desk_1") or None)
    assert sorted(manifest.rank for manifest in manifests(tmp_path)) == [0, 1, 2]
    assert len({(one.steps.first, one.steps.last) for one in manifests(tmp_path)}) == 1


def test_a_window_is_joined_wherever_its_captures_are(tmp_path: Path) -> None:
    """The record in the leader's directory finds all captures; missing ranks are named."""
    first, second = tmp_path / "first", tmp_path / "second"
    with job(tmp_path, 3, APART):
        for place, ranks in ((first, "all"), (second, "1-2")):  # the leader leads, or records too
            asked = ("--active", 2, "--ranks", ranks, "--wait")
            code, _, errors = dynprof("arm", tmp_path / "desk_0", *asked)
            assert code == 0, errors
            (path,) = set((tmp_path / "desk_0").glob("step_*")) - {first_folder(first)}
            place.symlink_to(path)
            said = {"report": "What follows is about rank", "merge": "merged: ranks "}
            said["merge"] += "0 to 2" if ranks == "all" else "1 to 2"
            for command, words in said.items():
                code, output, errors = dynprof(command, tmp_path / "desk_0")
                assert (code, Path(output.splitlines()[-1]).parents[1]) == (0, path), errors
                assert words in output + errors
    code, output, errors = dynprof("diff", first.resolve(), second.resolve() / "info/window.json")
    assert code == 0, errors
    assert "compared: ranks 1 to 2, their mean; only one of the two has rank 0" in errors
    (gone,) = (tmp_path / "desk_2").glob(f"{first.resolve().name}/*.pt.trace.json.gz")
    gone.unlink()
    code, output, errors = dynprof("merge", first.resolve())
    assert code == 0, errors
    assert "merged: ranks 0 to 1" in errors
    assert "rank 2: its capture is on " in errors
    assert f"desk_2/{first.resolve().name}/info/rank_2.info.json" in errors


def first_folder(link: Path) -> Path | None:
    """Return the target of a link, if it exists."""
    return link.resolve() if link.exists() else None


def test_ranks_serve_their_own_saves_if_rank_0_has_no_dynprof(tmp_path: Path) -> None:
    """No log says that the ranks agree."""
    root = tmp_path / SHARED
    with job(tmp_path, 3, without=(0,), said="; profilers: "):
        code, _, errors = dynprof("arm", root, "--active", 2, "--wait")
        assert code == 5, errors  # rank 0 is missing
        wait_for("two captures", lambda: len(manifests(root)) == 2 or None)
    assert sorted(manifest.rank for manifest in manifests(root)) == [1, 2]
    assert "agree on the steps" not in log(root)


PLAIN = """
import os, time, torch, torch.distributed as dist, dynprof as dp
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
dp.init(f"desk_{rank}", store=store)
while not os.path.exists("enough"):
    time.sleep(0.005)
    dp.step()
dp.shutdown()
store.add("ended", 1)
while rank == 0 and store.add("ended", 0) < size:  # it has the store
    time.sleep(0.01)
"""


def test_ranks_without_a_process_group_agree_over_the_scripts_store(tmp_path: Path) -> None:
    """The launcher's variables give the number of ranks; rank 0 leads."""
    with ranks(tmp_path, PLAIN, 2) as running:
        wait_for("the ranks", lambda: everything(tmp_path).count("agree on the steps") == 2 or None)
        code, _, errors = dynprof("arm", tmp_path / "desk_0", "--active", 2, "--wait")
        assert code == 0, errors
        assert "2 of 2 ranks saved it: " in errors
        (tmp_path / "enough").touch()
        assert "Traceback" not in end_well(running)
    found = manifests(tmp_path)
    assert sorted(manifest.rank for manifest in found) == [0, 1]
    assert len({(one.steps.first, one.steps.last) for one in found}) == 1
