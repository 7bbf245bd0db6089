"""What counts as a capture that nobody sends any more, and by whose rules it is sent on."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.delivery.left_behind import left_behind
from dynprof.files.layout import Layout
from dynprof.files.leftovers import occupied

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue

FOLDER = "step_1-2_20260101T000000Z"
ME = os.geteuid()


def left(place: Path, trace: str = "a.json.gz", **config: JsonValue) -> Path:
    """Leave a capture of an hour ago, of process 42 on a host; return its folder."""
    folder = place / "host_42.rank0" / FOLDER
    (folder / "info").mkdir(parents=True)
    (folder / "a.json.gz").touch()
    manifest = Manifest(
        dynprof="0", backend="fake", versions={}, host="host", pid=42, rank=0, world_size=1,
        request=RequestRecord(number=1, edited_at="", sha256="", config=config),
        steps=Steps(first=1, last=2, recorded=2, warmup=0), activities=("CPU",), opened_at="",
        closed_at="", complete=True, trace=trace, cost=Cost(open_ms=0, close_ms=0),
    )  # fmt: skip
    path = folder / "info" / "rank_0.info.json"
    manifest.save(path)
    os.utime(path, (1e9, 1e9))
    return folder


def test_what_is_left_is_sent_once_to_where_it_was_to_go(tmp_path: Path) -> None:
    """All of it; the manifest says where to, and the command has it too."""
    folder = left(tmp_path / "outgoing", prof_dir="captures", storage={"retry_s": 60})
    (one,) = left_behind(tmp_path)
    order = one.order(Layout(tmp_path, 0, "host", 43))
    assert order.files == ("a.json.gz", "info/rank_0.info.json")
    assert (order.folder, order.retry_s) == (str(folder), 0)
    assert order.target == one.target == str(tmp_path / "captures" / FOLDER)
    assert one.command == f"python -m dynprof.delivery {folder} {one.target}"


def test_what_somebody_is_at_is_not_left(tmp_path: Path) -> None:
    """A job that lives, or a process that sends what a dead one has ordered."""
    folder = left(tmp_path / "outgoing", prof_dir="captures")
    for held in (folder.parent, folder / "info"):
        with occupied(held):
            assert left_behind(tmp_path) == []
    assert left_behind(tmp_path)


def test_what_may_yet_be_sent_is_not_left(tmp_path: Path) -> None:
    """It is being saved, or has just been."""
    folder = left(tmp_path / "outgoing", prof_dir="captures")
    saving = folder / "info" / ".host_42.rank0.x.saving"
    saving.mkdir()
    assert left_behind(tmp_path) == []
    saving.rmdir()
    os.utime(folder / "info" / "rank_0.info.json")
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("trace", ["gone.json.gz", "../../../secret", ".."])
def test_a_trace_that_is_not_there_is_not_sent(tmp_path: Path, trace: str) -> None:
    """It has been sent and removed; nor does a manifest reach outside of its folder."""
    left(tmp_path / "outgoing", trace, prof_dir="captures")
    (tmp_path / "secret").touch()
    assert left_behind(tmp_path) == []


def test_a_capture_that_lies_where_it_was_to_go_is_not_left(tmp_path: Path) -> None:
    """Its directory only has a name like those in which captures are put together."""
    left(tmp_path, prof_dir="host_42.rank0")
    assert left_behind(tmp_path) == []


def test_a_link_in_the_place_of_a_trace_leads_to_nothing_that_is_sent(tmp_path: Path) -> None:
    """Whoever may write in the folder has no files of the job's user sent, nor removed there."""
    folder = left(tmp_path / "outgoing", prof_dir="captures")
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").touch()
    (folder / "a.json.gz").unlink()
    (folder / "a.json.gz").symlink_to(tmp_path / "private")
    (one,) = left_behind(tmp_path)
    files = one.order(Layout(tmp_path, 0, "host", 43)).files
    assert files == ("a.json.gz", "info/rank_0.info.json")


def test_only_what_the_jobs_own_user_made_here_is_sent(tmp_path: Path) -> None:
    """Nobody has files sent in another's name; and a lock need not be known elsewhere."""
    folder = left(tmp_path / "outgoing", prof_dir="captures")
    (one,) = left_behind(tmp_path)
    assert one.is_of("host", ME)
    assert not one.is_of("host", ME + 1)
    assert not one.is_of("hos", ME)
    elsewhere = tmp_path / "elsewhere"
    for place in (folder, folder.parent):
        place.rename(elsewhere)
        place.symlink_to(elsewhere)
        assert left_behind(tmp_path) == []
        assert not one.is_of("host", ME)
        place.unlink()
        elsewhere.rename(place)


@pytest.mark.parametrize("place", ["s3://runs/job", "../elsewhere"])
def test_the_rules_of_the_job_that_sends_hold(tmp_path: Path, place: str) -> None:
    """Whoever may write the manifest does not choose where captures go."""
    root = tmp_path / "root"
    left(root / "outgoing", prof_dir=place)
    (root / "profiler_config.json").touch()
    root.chmod(0o770)
    (one,) = left_behind(root)
    with pytest.raises(PermissionError, match="others than the job's user may write"):
        one.order(Layout(root, 0, "host", 43))


@pytest.mark.parametrize("kept", [".", "info"])
def test_what_cannot_be_removed_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """Each job would send it again, as it starts and a minute later: from a disk only to read."""
    place, access = left(tmp_path / "outgoing", prof_dir="captures") / kept, os.access
    (one,) = left_behind(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: path != place and access(path, mode))
    with pytest.raises(PermissionError, match="keeps what it has"):
        one.order(Layout(tmp_path, 0, "host", 43))


def test_nothing_is_taken_from_another_job_through_a_link(tmp_path: Path) -> None:
    """Captures of a directory that nobody else may read would come to lie in one that others may.

    Where the job's owner has links followed they go only to where their config says.
    """
    root = tmp_path / "root"
    root.mkdir()
    left(tmp_path / "private" / "outgoing", prof_dir="captures")
    (root / "x").symlink_to(tmp_path / "private" / "outgoing")
    (one,) = left_behind(root)
    assert not one.target
    (root / "x").unlink()
    left(tmp_path / "linked", prof_dir=str(root / "captures"))
    (root / "x").symlink_to(tmp_path / "linked")
    (one,) = left_behind(root)
    with pytest.raises(PermissionError, match="x is a symbolic link, which is not followed"):
        one.order(Layout(root, 0, "host", 43))
    assert one.order(Layout(root, 0, "host", 43, follow_symlinks=True)).target == one.target


def test_a_scratch_directory_of_several_jobs_does_not_say_whose_it_is(tmp_path: Path) -> None:
    """Where prof_dir is relative to an unknown directory nothing is sent, but somebody told."""
    root = tmp_path / "root"
    left(tmp_path / "scratch", prof_dir="captures")
    (one,) = left_behind(root, [tmp_path / "scratch"])
    assert one.command.endswith(" URL-OR-DIRECTORY")
    with pytest.raises(PermissionError, match="not known which directory"):
        one.order(Layout(root, 0, "host", 43))


def test_names_that_make_lines_of_their_own_are_passed_over(tmp_path: Path) -> None:
    """Whoever may write there would have `dynprof status` say what it does not."""
    left(tmp_path / "outgoing\ntype rm", prof_dir="captures")
    assert left_behind(tmp_path) == []
    left(tmp_path / "outgoing", prof_dir="s3://a/b\ntype rm")
    (one,) = left_behind(tmp_path)
    assert not one.target


def test_a_manifest_that_would_hold_the_job_up_is_not_read(tmp_path: Path) -> None:
    """Others may write where captures wait, and reading one of 16 MB takes seconds."""
    left(tmp_path / "outgoing", prof_dir="captures", metadata={"padding": "x" * 90_000})
    assert left_behind(tmp_path)
    left(tmp_path / "o", prof_dir="captures", metadata={"padding": "x" * 100_000})
    assert [one.folder.parts[-3] for one in left_behind(tmp_path)] == ["outgoing"]


def test_rubbish_in_its_place_is_passed_over(tmp_path: Path) -> None:
    """A FIFO, a link to an endless device, something else than a manifest."""
    path = left(tmp_path / "outgoing", prof_dir="captures") / "info" / "rank_0.info.json"
    path.unlink()
    os.mkfifo(path)
    os.utime(path, (1e9, 1e9))
    assert left_behind(tmp_path) == []
    path.unlink()
    path.write_text(json.dumps({}))
    os.utime(path, (1e9, 1e9))
    assert left_behind(tmp_path) == []
