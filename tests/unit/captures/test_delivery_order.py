"""The destination of captures, and the turns of ranks."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.deliveries import Delivery, Order, delivery_of, renamed
from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.config import parse_config
from dynprof.runtime.layout import Layout
from dynprof.runtime.rank import Rank
from tests.users import ALICE, MALLORY, as_root

if TYPE_CHECKING:
    from pathlib import Path

URL = "s3://bucket/captures"
FOLDER = "step_1-2_20260101T000000Z"


def delivery(root: Path, rank: int = 0, world_size: int = 1, **config: object) -> Delivery:
    """Return the delivery of a rank's captures for a config."""
    parsed = parse_config(json.dumps(config).encode())
    layout = Layout(root, rank, "host", 42, follow_symlinks=True)
    return delivery_of(parsed.config, layout, Rank(rank, world_size, "test"))


def waits(root: Path, world_size: int, **config: object) -> list[float]:
    """Return the delay of each rank in seconds."""
    return [delivery(root, rank, world_size, **config).wait_s() for rank in range(world_size)]


def test_ranks_write_to_a_shared_place_one_after_the_other(tmp_path: Path) -> None:
    """Ranks are 20 ms apart; the first starts at once."""
    assert waits(tmp_path, 4, prof_dir=URL) == pytest.approx([0, 0.02, 0.04, 0.06])


def test_no_number_of_ranks_waits_longer_than_a_minute(tmp_path: Path) -> None:
    """With more ranks the distance shrinks; no rank waits as long as a minute."""
    last = delivery(tmp_path, 99_999, 100_000, prof_dir=URL).wait_s()
    before = delivery(tmp_path, 99_998, 100_000, prof_dir=URL).wait_s()
    assert 59.9 < last < 60
    assert last - before == pytest.approx(60 / 100_000)


def test_only_ranks_that_record_have_a_turn(tmp_path: Path) -> None:
    """Ranks 8, 16 and 24 of 32 have the delays of the first three."""
    asked = [delivery(tmp_path, rank, 32, prof_dir=URL, ranks="8,16,24") for rank in (8, 16, 24)]
    assert [one.wait_s() for one in asked] == pytest.approx([0, 0.02, 0.04])


def test_a_local_disk_needs_no_turns(tmp_path: Path) -> None:
    """A local disk needs no turns."""
    assert waits(tmp_path, 4, prof_dir="captures") == [0] * 4


def test_the_config_may_set_the_delay(tmp_path: Path) -> None:
    """This also works for a directory that is not known to be shared; 0 means at once."""
    said = waits(tmp_path, 4, prof_dir="captures", storage={"spread_s": 8})
    assert said == pytest.approx([0, 2, 4, 6])
    assert waits(tmp_path, 4, prof_dir=URL, storage={"spread_s": 0}) == [0] * 4


def test_a_single_rank_does_not_wait(tmp_path: Path) -> None:
    """This is a job without ranks, or the only requested rank."""
    assert delivery(tmp_path, prof_dir=URL).wait_s() == 0
    assert delivery(tmp_path, 5, 8, prof_dir=URL, ranks="5").wait_s() == 0


def a_manifest(trace: str | None) -> Manifest:
    """Return the manifest of a capture with this trace."""
    return Manifest(
        dynprof="0", backend="fake", versions={}, host="host", pid=42, rank=0, world_size=1,
        request=RequestRecord(number=1, edited_at="", sha256="", config={}),
        steps=Steps(first=1, last=2, recorded=2, warmup=0), activities=("CPU",), opened_at="",
        closed_at="", complete=True, trace=trace, cost=Cost(open_ms=0, close_ms=0),
    )  # fmt: skip


def write(folder: Path, *names: str) -> None:
    """Write files in a folder and its subfolders."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_the_manifest_is_sent_last(tmp_path: Path) -> None:
    """A reader of the manifest finds all files; those of other ranks and captures are not sent."""
    folder = tmp_path / "outgoing" / FOLDER
    mine = ["profiler_metadata.json", "info/rank_0.stacks", "info/rank_0.info.json"]
    others = [
        "info/rank_0.2.info.json",
        "profiler_metadata_0.2.json",
        "profiler_metadata_01.json",
    ]
    write(folder, "a.json.gz", "b.json.gz", *mine, *others)
    made = delivery(tmp_path, prof_dir=URL)
    order = made.order(folder / mine[-1], a_manifest("a.json.gz"))
    assert order.files == ("a.json.gz", *mine)
    assert order.target == f"{URL}/{FOLDER}"
    second = made.order(folder / others[0], a_manifest("b.json.gz"))
    assert second.files == ("b.json.gz", mine[0], others[1], others[0])


def test_a_trace_of_several_files_is_sent_with_all_of_them(tmp_path: Path) -> None:
    """Ascend folders are such traces."""
    folder = tmp_path / FOLDER
    write(folder, "x_ascend_pt/a/1.bin", "x_ascend_pt/b.json", "info/rank_0.info.json")
    order = delivery(tmp_path, prof_dir=URL).order(
        folder / "info/rank_0.info.json", a_manifest("x_ascend_pt")
    )
    assert order.files == ("x_ascend_pt/a/1.bin", "x_ascend_pt/b.json", "info/rank_0.info.json")


@as_root
@pytest.mark.parametrize("trace", ["a.json.gz", "x_ascend_pt"])
def test_files_that_another_user_planted_next_to_a_capture_are_not_sent(
    shared_tmp: Path, trace: str
) -> None:
    """Links are not sent either: they would make every attempt fail."""
    folder = shared_tmp / FOLDER
    traced = "x_ascend_pt/a/1.bin" if trace.endswith("pt") else trace
    mine = [traced, "info/rank_0.stacks", "info/rank_0.info.json"]
    theirs = ["info/rank_0.note.txt", "x_ascend_pt/a/2.bin", "x_ascend_pt/b/3.bin"]
    write(folder, *mine, *theirs)
    for number, place in enumerate(("info/rank_0", "x_ascend_pt/link")):
        (folder / f"{place}.{number}.link.txt").symlink_to(folder / mine[0])
    ALICE.own(shared_tmp, *folder.rglob("*"), folder)
    MALLORY.own(*(folder / name for name in theirs), folder / "x_ascend_pt/b")
    with ALICE.acting():
        order = delivery(shared_tmp, prof_dir=URL).order(folder / mine[-1], a_manifest(trace))
    assert order.files == tuple(mine)


def test_a_window_without_a_trace_sends_its_manifest(tmp_path: Path) -> None:
    """The manifest has the reason."""
    write(tmp_path / FOLDER, "info/rank_0.info.json")
    path = tmp_path / FOLDER / "info/rank_0.info.json"
    order = delivery(tmp_path, prof_dir=URL).order(path, a_manifest(None))
    assert order.files == ("info/rank_0.info.json",)


def test_an_order_reads_back_equal(tmp_path: Path) -> None:
    """The written order reads back equal."""
    folder = tmp_path / FOLDER
    write(folder, "a.json", "info/rank_0.info.json", "info/window.json")
    limits = {"min_free_disk_mb": 7.5}
    made = delivery(tmp_path, prof_dir="elsewhere", limits=limits, storage={"retry_s": 3})
    order = made.order(folder / "info/rank_0.info.json", a_manifest("a.json"))
    assert (order.least_free_mb, order.retry_s, order.follow_symlinks) == (7.5, 3, True)
    assert not order.keeps
    record = made.record_order(folder / "info/window.json")
    assert record.keeps
    assert record.least_free_mb is None
    for one in (order, record):
        assert Order.from_text(one.to_text()) == one


def test_names_of_another_capture_are_not_reused() -> None:
    """Only files named after the rank are renamed; no two get the same name."""
    files = [
        "host_1.rank0.1.json",
        "info/rank_0.info.json",
        "info/rank_0.stacks",
        "info/window.json",
    ]
    assert [renamed(file, "rank_0", "rank_0.2") for file in files] == [
        "host_1.rank0.1.json", "info/rank_0.2.info.json", "info/rank_0.2.stacks",
        "info/window.json",
    ]  # fmt: skip
    for file, other in itertools.product(files, ["rank_0", "rank_0.3"]):
        assert renamed(renamed(file, "rank_0", other), other, "rank_0") == file
