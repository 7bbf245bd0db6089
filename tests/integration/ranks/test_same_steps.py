"""The ranks of a job open their windows at one step, wherever the config lies."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from dynprof.captures.manifest import load_manifest
from tests.integration.commands import dynprof
from tests.integration.launching import end_well, ranks
from tests.integration.ranks import agreeing
from tests.integration.ranks.agreeing import (
    APART,
    JOB,
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
    """Seen in the traces, however the ranks come to know of the edit."""
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
    """Each rank has a directory of its own, as on other machines; status says where rank 0's is."""
    with job(tmp_path, 3, APART):
        code, _, errors = dynprof("arm", tmp_path / "desk_0", "--active", 2, "--wait")
        assert code == 0, errors
        assert "of which nothing is known here, too: ranks 1, 2" in errors
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
        code, _, errors = dynprof("arm", tmp_path / "desk_1", "--active", 2, "--wait")
        assert code == 4, errors
        assert "rank 1 follows rank 0 on " in errors
        assert "desk_0/profiler_config.json); save it there" in errors
        said = "what was saved here was not proposed by rank 0 on "
        wait_for("the log of rank 1", lambda: said in log(tmp_path / "desk_1") or None)
    assert sorted(manifest.rank for manifest in manifests(tmp_path)) == [0, 1, 2]
    assert len({(one.steps.first, one.steps.last) for one in manifests(tmp_path)}) == 1


def test_a_request_has_one_number_on_all_ranks(tmp_path: Path) -> None:
    """Though one of them had edits of its own before, which the others have not seen."""
    with job(tmp_path, 2, APART):
        config, said = tmp_path / "desk_1" / "profiler_config.json", "was not proposed by rank 0"
        for number in (1, 2):
            config.write_text(json.dumps({"active": 10 + number}))
            refused = lambda number=number: log(config.parent).count(said) == number or None  # noqa: E731
            wait_for("the refusal", refused)
        code, _, errors = dynprof("arm", tmp_path / "desk_0", "--active", 2, "--wait")
        assert code == 0, errors
    assert [manifest.request.number for manifest in manifests(tmp_path)] == [3, 3]
    assert the_record(tmp_path / "desk_0").request.number == 3
    assert "where rank 0 runs" not in log(tmp_path / "desk_1")


def test_a_window_is_one_thing_wherever_its_captures_lie(tmp_path: Path) -> None:
    """Where the leader watches, all of them are found by its record; who is not there is named."""
    first, second = tmp_path / "first", tmp_path / "second"
    with job(tmp_path, 3, APART):
        for place, ranks in ((first, "all"), (second, "1-2")):  # the leader leads, or records too
            asked = ("--active", 2, "--ranks", ranks, "--wait")
            code, _, errors = dynprof("arm", tmp_path / "desk_0", *asked)
            assert code == 0, errors
            (path,) = set((tmp_path / "desk_0").glob("step_*")) - {first_folder(first)}
            place.symlink_to(path)
            said = {"report": "What follows is of rank", "merge": "merged: ranks "}
            said["merge"] += "0 to 2" if ranks == "all" else "1 to 2"
            for command, words in said.items():
                code, output, errors = dynprof(command, tmp_path / "desk_0")
                assert (code, Path(output.strip()).parents[1]) == (0, path), errors
                assert words in errors
    code, output, errors = dynprof("diff", first.resolve(), second.resolve() / "info/window.json")
    assert code == 0, errors
    assert "compared: ranks 1 to 2, their mean; only one of the two has rank 0" in errors
    (gone,) = (tmp_path / "desk_2").glob(f"{first.resolve().name}/*.pt.trace.json.gz")
    gone.unlink()
    code, output, errors = dynprof("merge", first.resolve())
    assert code == 0, errors
    assert "merged: ranks 0 to 1" in errors
    assert "rank 2: its capture lies on " in errors
    assert f"desk_2/{first.resolve().name}/info/rank_2.info.json" in errors


def first_folder(link: Path) -> Path | None:
    """Return where a link leads, if it is there."""
    return link.resolve() if link.exists() else None


def test_only_who_is_asked_for_records_and_a_cancel_reaches_all(tmp_path: Path) -> None:
    """Rank 0 leads without taking part; what it refuses or cancels is no news for the others."""
    root = tmp_path / SHARED
    with job(tmp_path, 3):
        code, output, errors = dynprof("arm", root, "--active", 2, "--ranks", "1-2", "--wait")
        assert code == 0, errors
        assert sorted(load_manifest(tmp_path / line).rank for line in output.splitlines()) == [1, 2]
        assert dynprof("arm", root, "--active", 100_000, "--ranks", "all")[0] == 0
        wait_for("three open windows", lambda: log(root).count("; recording steps") == 5 or None)
        assert dynprof("cancel", root)[0] == 0
        wait_for("their captures", lambda: len(manifests(root)) == 5 or None)
        (root / "profiler_config.json").write_text('{"active": 0}')
        wait_for("a refusal", lambda: "/active" in log(root) or None)
        time.sleep(3)  # else it would be said a second later, or two
    assert log(root).count("cancelled by request") >= 3
    assert "save it there" not in log(root)


def test_what_one_rank_cannot_serve_all_refuse(tmp_path: Path) -> None:
    """A file stands where its captures go; the leader says which rank it is, and why."""
    (tmp_path / "desk_1").mkdir()
    (tmp_path / "desk_1" / "captures").touch()
    with job(tmp_path, 3, APART):
        arm = ("arm", tmp_path / "desk_0", "--active", 2, "--wait", "--prof-dir", "captures")
        code, _, errors = dynprof(*arm)
        assert code != 0
        (said,) = [line for line in errors.splitlines() if line.startswith("rank 0: refused: ")]
        assert "rank 1: line 7, column 5, /prof_dir: " in said
        assert f"{tmp_path}/desk_1/captures is not a directory; " in said
    assert manifests(tmp_path) == []


def test_a_rank_whose_script_profiles_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That delays the start, and past the patience the rank is left out; none opens half."""
    begins = """    if rank == 1 and os.path.exists("profiles"):
        mine = torch.profiler.profile()
        mine.start()
        os.remove("profiles")
    if rank == 1 and os.path.exists("ends"):
        mine.stop()
        os.remove("ends")
"""
    text = JOB.replace("    dp.step()\n", f"{begins}    dp.step()\n")
    monkeypatch.setattr(agreeing, "JOB", text)
    arm = ("arm", tmp_path / "desk_0", "--active", 2)

    def do(what: str) -> None:
        (tmp_path / what).touch()
        wait_for(what, lambda: not (tmp_path / what).exists() or None)

    with job(tmp_path, 2, APART):
        do("profiles")
        code, _, errors = dynprof(*arm, "--patience-s", 1, "--wait")
        assert code == 5, errors
        assert "rank 1: another torch.profiler is active in this process; stop it first" in errors
        assert dynprof(*arm, "--patience-s", 3600)[0] == 0
        waits = "request 2 waits for rank 1: another torch.profiler is active"
        wait_for("it to wait", lambda: waits in log(tmp_path / "desk_0") or None)
        do("ends")
        wait_for("the captures", lambda: len(manifests(tmp_path)) == 3 or None)
    assert sorted((one.request.number, one.rank) for one in manifests(tmp_path)) == [
        (1, 0), (2, 0), (2, 1),
    ]  # fmt: skip


def ask_for_rank_1(folder: Path, place: Path, mode: int, end: str = "") -> None:
    """Save a config that has rank 1 record elsewhere, in a directory of this mode."""
    for desk in folder.glob("desk_*"):
        desk.chmod(mode)
    asked = {"active": 2, "ranks": [1], "prof_dir": str(place)}
    (folder / "desk_0" / "profiler_config.json").write_text(json.dumps(asked) + end)


def test_a_place_that_the_leaders_owner_does_not_allow(tmp_path: Path) -> None:
    """The leader refuses what others may have asked for; each rank refuses what the leader asks."""
    place = tmp_path / "elsewhere"
    with job(tmp_path, 2, APART):
        ask_for_rank_1(tmp_path, place, 0o770)
        refused = "request 1: refused, nothing changes"  # by the leader, which asks nobody
        wait_for("a refusal", lambda: refused in log(tmp_path / "desk_0") or None)
        assert "lies outside of" in log(tmp_path / "desk_0").partition(refused)[2]
        ask_for_rank_1(tmp_path, place, 0o700, "\n")
        refused = "request 2: refused, nothing changes"
        wait_for("a refusal", lambda: refused in log(tmp_path / "desk_1") or None)
        said = log(tmp_path / "desk_1").partition(refused)[2]
        assert "another rank asks for it, over the job's store; allow it on every rank" in said
    assert not place.exists()


def test_a_place_that_every_rank_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the environment of all, whoever may change the config."""
    place = tmp_path / "elsewhere"
    monkeypatch.setenv("DYNPROF_PROF_DIRS", str(place))
    with job(tmp_path, 2, APART):
        ask_for_rank_1(tmp_path, place, 0o770)
        wait_for("a capture", lambda: manifests(place) or None)
    assert [(one.rank, one.request.number) for one in manifests(place)] == [(1, 1)]


def test_a_rank_without_dynprof_is_named(tmp_path: Path) -> None:
    """The others agree without it."""
    with job(tmp_path, 3, without=(2,)):
        code, output, errors = dynprof("arm", tmp_path / SHARED, "--active", 2, "--wait")
        assert code == 5, errors
        assert len(output.splitlines()) == 2
        assert "2 of 3 ranks saved it: " in errors
        assert "rank 2: it does not run dynprof" in errors
        code, output, errors = dynprof("status", tmp_path / SHARED)
        assert "rank 0 leads 3 ranks: 2 idle, 1 missing" in output, errors
        assert "request 1: 2 of 3 ranks saved" in output
    record = the_record(tmp_path / SHARED)
    assert (set(record.ranks), record.complete) == ({0, 1}, False)
    assert record.missing == {2: "it does not run dynprof"}
    assert "rank 2 takes no part: it does not run dynprof" in log(tmp_path / SHARED)


def test_where_rank_0_has_no_dynprof_each_serves_what_it_reads(tmp_path: Path) -> None:
    """Nobody says that the ranks agree."""
    root = tmp_path / SHARED
    with job(tmp_path, 3, without=(0,), said="; profilers: "):
        code, _, errors = dynprof("arm", root, "--active", 2, "--wait")
        assert code == 5, errors  # rank 0 is missing
        wait_for("two captures", lambda: len(manifests(root)) == 2 or None)
    assert sorted(manifest.rank for manifest in manifests(root)) == [1, 2]
    assert "agree on the steps" not in log(root)


def test_where_the_leader_leaves_each_serves_what_it_reads(tmp_path: Path) -> None:
    """Rank 0 trains on without dynprof; an edit where another rank watches is that rank's own."""
    with job(tmp_path, 2, APART):
        (status,) = (tmp_path / "desk_1" / "status").glob("rank_1.json")
        wait_for("its leader", lambda: "follows rank 0" in status.read_text() or None)
        (tmp_path / "leave").touch()
        wait_for("the farewell", lambda: not (tmp_path / "leave").exists() or None)
        own = "the rank that leads has ended"
        wait_for("it to be heard", lambda: own in log(tmp_path / "desk_1") or None)
        wait_for("its status", lambda: "follows" not in status.read_text() or None)
        code, _, errors = dynprof("arm", tmp_path / "desk_1", "--active", 2, "--wait")
        assert code == 5, errors  # rank 0 is missing
    (manifest,) = manifests(tmp_path)
    assert (manifest.rank, manifest.complete) == (1, True)


def test_ranks_that_count_otherwise_are_refused_with_what_to_call(tmp_path: Path) -> None:
    """One of them was not there from the first step on, and its steps wait for the others."""
    with job(tmp_path, 3, late=70):
        time.sleep(3)  # until each rank knows that its steps have collectives
        code, _, errors = dynprof("arm", tmp_path / SHARED, "--active", 3, "--wait")
        assert code == 4, errors
    said = log(tmp_path / SHARED)
    assert "though they step together; call dp.set_state() with the same number" in said
    assert manifests(tmp_path) == []


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


def test_ranks_without_a_process_group_agree_over_a_store_of_the_scripts(tmp_path: Path) -> None:
    """As many as the launcher's variables say; rank 0 leads."""
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


def test_all_come_down_to_what_they_have_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one rank torch's profiler is of no use: none opens, or all record with VizTracer."""
    pytest.importorskip("viztracer", reason="viztracer is not installed")
    cripple = """
if os.environ["RANK"] == "1":
    from dynprof.backends.torch import TorchBackend
    from dynprof.requests.capabilities import Capabilities
    TorchBackend.capabilities = lambda self: Capabilities("torch", (), "it is broken here")
"""
    monkeypatch.setattr(agreeing, "JOB", JOB.replace("rank = dist", cripple + "rank = dist"))
    root = tmp_path / SHARED
    with job(tmp_path, 3):
        code, _, errors = dynprof("arm", root, "--active", 2, "--wait")
        assert code != 0
        assert "ranks 0, 2: it would record with torch (CPU)" in errors
        assert "rank 1: it would record with python (CPU)" in errors
        assert manifests(root) == []
        arm = ("arm", root, "--active", 2, "--unable", "downgrade", "--wait")
        code, _, errors = dynprof(*arm)
        assert code == 0, errors
        assert "3 of 3 ranks saved it: " in errors
    found = manifests(root)
    assert [manifest.backend for manifest in found] == ["python"] * 3
    assert len({(one.steps.first, one.steps.last) for one in found}) == 1
    assert len(the_record(root).ranks) == 3


def test_where_it_is_switched_off_each_serves_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``DYNPROF_AGREE=0``: no rank leads."""
    monkeypatch.setenv("DYNPROF_AGREE", "0")
    with job(tmp_path, 2, said="; profilers: "):
        code, _, errors = dynprof("arm", tmp_path / SHARED, "--active", 2, "--wait")
        assert code == 0, errors
    assert "leads" not in log(tmp_path / SHARED)
