"""Old baselines are removed; every other folder and file stays."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.captures.baselines import baselines_in, ranks_with_baselines, remove_old_baselines
from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.runtime.layout import rank_name, window_dir_name

if TYPE_CHECKING:
    from pathlib import Path

EVERY = {"minutes": 30}


def capture(
    place: Path,
    hour: int,
    *,
    rank: int = 0,
    keep: int = 2,
    directory: str = "/job",
    failed: bool = False,
    **config: Any,
) -> tuple[Path, Manifest]:
    """Write a capture, without a trace if failed; return its window's folder and its manifest."""
    folder = place / window_dir_name(hour * 10, hour * 10 + 1, hour * 3600)
    (folder / "info").mkdir(parents=True, exist_ok=True)
    trace = None if failed else f"host_1.rank{rank}.1.pt.trace.json.gz"
    if trace:
        (folder / trace).write_text("")
    at = f"1970-01-01T{hour:02}:00:00.000+00:00"
    config = {"every": EVERY, "keep": keep, **config}
    manifest = Manifest(
        dynprof="0", backend="torch", versions={}, host="host", pid=1, rank=rank, world_size=2,
        directory=directory, request=RequestRecord(
            number=hour, edited_at=at, sha256="", config=config),
        steps=Steps(first=hour * 10, last=hour * 10 + 1, recorded=2, warmup=0),
        activities=("CPU",), opened_at=at, closed_at=at, complete=True, trace=trace,
        cost=Cost(open_ms=0, close_ms=0),
    )  # fmt: skip
    manifest.save(folder / "info" / f"{rank_name('', rank)}.info.json")
    return folder, manifest


def test_the_newest_stay(tmp_path: Path) -> None:
    """The oldest are removed with all of their files, whatever the order of their steps."""
    made = [capture(tmp_path, hour) for hour in (3, 1, 2, 4)]
    (made[1][0] / "analysis").mkdir()
    (made[1][0] / "analysis" / "report.html").write_text("")
    left, removed = remove_old_baselines(tmp_path, made[-1][1])
    assert (left, [one.folder.name[:8] for one in removed]) == (2, ["step_10-", "step_20-"])
    assert sorted(path.name[:8] for path in tmp_path.iterdir()) == ["step_30-", "step_40-"]


def test_failed_baselines_remove_none_with_a_trace(tmp_path: Path) -> None:
    """They count separately, so that no more than the newest failed ones stay."""
    for hour in (1, 3):
        capture(tmp_path, hour)
    newest = [capture(tmp_path, hour, failed=True)[1] for hour in (2, 4, 5, 6)][-1]
    left, removed = remove_old_baselines(tmp_path, newest)
    assert (left, [one.folder.name[:8] for one in removed]) == (2, ["step_20-", "step_40-"])
    newest = capture(tmp_path, 7)[1]
    left, removed = remove_old_baselines(tmp_path, newest)
    assert (left, [one.folder.name[:8] for one in removed]) == (2, ["step_10-"])


def test_operators_captures_stay_when_baselines_fail(tmp_path: Path) -> None:
    """An operator's failed window stays, and so does one in the folder of a failed baseline."""
    own, _ = capture(tmp_path, 1, every=None, failed=True)
    both, _ = capture(tmp_path, 2, failed=True)
    capture(tmp_path, 2, rank=1, every=None, failed=True)
    newest = [capture(tmp_path, hour, keep=1, failed=True)[1] for hour in (3, 4)][-1]
    left, removed = remove_old_baselines(tmp_path, newest)
    assert (left, [one.folder.name[:8] for one in removed]) == (0, ["step_30-"])
    assert own.exists()
    assert both.exists()


def test_a_rank_whose_save_failed_removes_no_trace_of_another(tmp_path: Path) -> None:
    """The first rank that has a trace in the folder removes it, once its own are too many."""
    made = [
        (capture(tmp_path, hour, keep=1, failed=True)[1], capture(tmp_path, hour, rank=1, keep=1))
        for hour in (1, 2)
    ]
    assert remove_old_baselines(tmp_path, made[-1][0]) == (0, [])
    left, removed = remove_old_baselines(tmp_path, made[-1][1][1])
    assert (left, [one.folder for one in removed]) == (1, [made[0][1][0]])


def test_captures_without_an_interval_stay(tmp_path: Path) -> None:
    """An operator's window is no baseline, and neither is a folder that has one too."""
    own, _ = capture(tmp_path, 1, every=None)
    both, _ = capture(tmp_path, 2)
    capture(tmp_path, 2, rank=1, every=None)
    newest = [capture(tmp_path, hour, keep=1) for hour in (3, 4)][-1][1]
    left, removed = remove_old_baselines(tmp_path, newest)
    assert (left, [one.folder.name[:8] for one in removed]) == (2, ["step_30-"])
    assert own.exists()
    assert both.exists()


def test_what_an_operator_set_aside_stays(tmp_path: Path) -> None:
    """A renamed, moved or copied baseline has another name or another place."""
    renamed, moved = (capture(tmp_path, hour)[0] for hour in (1, 2))
    renamed = renamed.rename(f"{renamed}.good")
    (tmp_path / "kept").mkdir()
    moved = moved.rename(tmp_path / "kept" / moved.name)
    newest = [capture(tmp_path, hour, keep=1) for hour in (3, 4)][-1][1]
    assert remove_old_baselines(tmp_path, newest)[0] == 1
    assert renamed.exists()
    assert moved.exists()


def test_no_link_is_followed(tmp_path: Path) -> None:
    """A link in the place of a folder stays, and so does its target; inside, only the link goes."""
    place, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    target, _ = capture(elsewhere, 1)
    place.mkdir()
    (place / target.name).symlink_to(target)
    folder, _ = capture(place, 2)
    (folder / "out").symlink_to(elsewhere)
    newest = [capture(place, hour, keep=1) for hour in (3, 4)][-1][1]
    remove_old_baselines(place, newest)
    assert not folder.exists()
    assert (place / target.name).is_symlink()
    assert len(list(target.rglob("*.json*"))) == 2


def test_baselines_of_another_config_stay(tmp_path: Path) -> None:
    """Two jobs may write into one directory."""
    other, _ = capture(tmp_path, 1, directory="/other")
    newest = [capture(tmp_path, hour, keep=1) for hour in (2, 3)][-1][1]
    _, removed = remove_old_baselines(tmp_path, newest)
    assert [one.folder.name[:8] for one in removed] == ["step_20-"]
    assert other.exists()


def test_the_first_rank_of_a_window_removes_it(tmp_path: Path) -> None:
    """The other ranks share the folder, and leave it to that one."""
    made = [[capture(tmp_path, hour, rank=rank, keep=1)[1] for rank in (0, 1)] for hour in (1, 2)]
    assert remove_old_baselines(tmp_path, made[-1][1])[1] == []
    assert len(remove_old_baselines(tmp_path, made[-1][0])[1]) == 1
    assert ranks_with_baselines(tmp_path) == [("", 0), ("", 1)]
    assert len(baselines_in(tmp_path, "", 1)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_baselines_of_another_user_stay(tmp_path: Path) -> None:
    """The process may be able to remove them, but they are not its own."""
    other, _ = capture(tmp_path, 1)
    os.chown(other, 65534, 65534)
    newest = [capture(tmp_path, hour, keep=1) for hour in (2, 3)][-1][1]
    remove_old_baselines(tmp_path, newest)
    assert other.exists()


def test_a_manifest_names_a_trace_in_its_folder(tmp_path: Path) -> None:
    """A path that leads elsewhere is cut to its name."""
    folder, manifest = capture(tmp_path, 1)
    path = folder / "info" / "rank_0.info.json"
    manifest.model_copy(update={"trace": "../../secret.trace.json"}).save(path)
    (found,) = baselines_in(tmp_path, "", 0)
    assert found.trace == folder / "secret.trace.json"
