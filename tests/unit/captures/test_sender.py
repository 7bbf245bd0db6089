"""One attempt of the sending process."""

from __future__ import annotations

import errno
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from dynprof.captures import sender
from dynprof.captures.deliveries import DELIVERED, Order
from dynprof.captures.sender import main, send_all

FILES = ("trace.json", "info/rank_0.stacks", "info/rank_0.info.json")


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Order:
    """Return an order of three files, from a scratch directory to one below the config's."""
    monkeypatch.setattr(os, "nice", lambda _: None)
    folder = tmp_path / "scratch" / "step_1"
    made = Order(
        folder=str(folder),
        files=FILES,
        target=str(tmp_path / "captures" / "step_1"),
        root=str(tmp_path),
        prof_dirs=(),
        follow_symlinks=False,
        retry_s=0,
    )
    fill(folder, "one")
    return made


def fill(folder: Path, content: str) -> None:
    """Write the three files."""
    (folder / "info").mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).write_text(f"{content} {name}")


def contents(folder: Path) -> dict[str, str]:
    """Return all files below a folder."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def arrived(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the path that the sender reports for the last file."""
    said = capsys.readouterr().err.strip()
    assert said.startswith(DELIVERED)
    return said.removeprefix(DELIVERED)


def test_a_sent_capture_is_moved(
    order: Order, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The capture arrives whole under its names, and its empty folders are removed."""
    main(order.to_text())
    assert arrived(capsys) == f"{order.target}/{FILES[-1]}"
    assert contents(tmp_path / "captures" / "step_1") == {name: f"one {name}" for name in FILES}
    assert not (tmp_path / "scratch" / "step_1").exists()


def test_other_files_in_the_folder_stay(order: Order, tmp_path: Path) -> None:
    """Only sent files are removed."""
    (tmp_path / "scratch/step_1/info/rank_1.info.json").write_text("another's")
    main(order.to_text())
    assert contents(tmp_path / "scratch") == {"step_1/info/rank_1.info.json": "another's"}


def test_a_second_capture_of_the_steps_gets_names_of_its_own(
    order: Order, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first is unchanged; only files named after the rank are renamed."""
    main(order.to_text())
    fill(tmp_path / "scratch/step_1", "two")
    again = replace(order, files=FILES[1:])
    capsys.readouterr()
    main(again.to_text())
    assert arrived(capsys).endswith("info/rank_0.2.info.json")
    found = contents(tmp_path / "captures" / "step_1")
    assert found["info/rank_0.info.json"] == f"one {FILES[2]}"
    assert found["info/rank_0.2.info.json"] == f"two {FILES[2]}"
    assert found["info/rank_0.2.stacks"] == f"two {FILES[1]}"


def test_existing_metadata_stays(order: Order, tmp_path: Path) -> None:
    """Captures with the same metadata share the target's file; others add their own."""
    name = "profiler_metadata.json"
    with_metadata = replace(order, files=(name, *FILES))
    for content, run in (("one", 7), ("two", 7), ("three", 8)):
        fill(Path(order.folder), content)
        Path(order.folder, name).write_text(f"run {run}")
        main(with_metadata.to_text())
    found = contents(Path(order.target))
    told = {name: text for name, text in found.items() if name.startswith("profiler")}
    assert told == {name: "run 7", "profiler_metadata_0.3.json": "run 8"}


def test_senders_choose_names_one_after_the_other(
    order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs of one rank send captures of the same steps at once: both arrive, whole."""
    other = replace(order, folder=str(tmp_path / "others" / "step_1"))
    fill(Path(other.folder), "two")
    put = sender._Directory.put
    tried: list[str] = []

    def put_beside_the_other(self: sender._Directory, source: BinaryIO, name: str) -> None:
        if name == FILES[1] and not tried:
            tried.append(name)
            with pytest.raises(BlockingIOError, match="have locked"):
                main(other.to_text())
        put(self, source, name)

    monkeypatch.setattr(sender, "LOCK_TIMEOUT_S", 0.0)
    monkeypatch.setattr(sender._Directory, "put", put_beside_the_other)
    main(order.to_text())
    main(other.to_text())
    found = contents(Path(order.target))
    assert {name: found[name] for name in FILES[1:]} == {name: f"one {name}" for name in FILES[1:]}
    assert found["info/rank_0.2.stacks"] == f"two {FILES[1]}"
    assert found["info/rank_0.2.info.json"] == f"two {FILES[2]}"
    assert len(found) == 5  # both traces have one name here, and no lock is left


def test_an_arrived_capture_gets_no_second_name(
    order: Order, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sender died after its last file, before its report: the next attempt finds the files."""
    main(order.to_text())
    fill(tmp_path / "scratch/step_1", "one")
    capsys.readouterr()
    main(order.to_text())
    assert arrived(capsys).endswith("info/rank_0.info.json")
    assert len(contents(tmp_path / "captures" / "step_1")) == 3


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, _: str) -> int:
        """Fail."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nothing_is_removed_if_the_arrival_cannot_be_reported(
    order: Order,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If stderr is on a full disk, the next attempt reports it, and recognises its own names."""
    with monkeypatch.context() as full:
        full.setattr("sys.stderr", Full())
        with pytest.raises(OSError, match="No space left"):
            main(order.to_text())
    assert len(contents(tmp_path / "scratch")) == 3
    main(order.to_text())
    assert arrived(capsys).endswith("info/rank_0.info.json")
    assert not contents(tmp_path / "scratch")
    assert len(contents(tmp_path / "captures")) == 3


def test_a_window_record_replaces_the_last_one_and_stays_here(order: Order, tmp_path: Path) -> None:
    """The record is written repeatedly during a window."""
    record = replace(order, files=("info/window.json",), keeps=True)
    for content in ("first", "second"):
        (tmp_path / "scratch/step_1/info/window.json").write_text(content)
        main(record.to_text())
        assert contents(tmp_path / "captures") == {"step_1/info/window.json": content}
        assert contents(tmp_path / "scratch")["step_1/info/window.json"] == content


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_place_of_a_file_is_not_sent(order: Order, tmp_path: Path, name: str) -> None:
    """A link to a private file of the job's user; its content is not sent."""
    secret = tmp_path / "secret"
    secret.write_text("nobody may read this")
    path = tmp_path / "scratch/step_1" / name
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(OSError, match="symbolic link"):
        main(order.to_text())
    assert secret.read_text() not in contents(tmp_path / "captures").values()
    assert path.is_symlink()


def test_a_capture_at_its_destination_is_not_removed(order: Order, tmp_path: Path) -> None:
    """A source that is also the destination under another name must not be lost."""
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    before = contents(tmp_path / "scratch")
    for place in ("scratch", "link"):
        with pytest.raises(FileExistsError, match="is the target itself"):
            main(replace(order, target=str(tmp_path / place / "step_1")).to_text())
    assert contents(tmp_path / "scratch") == before


def test_a_destination_in_memory_is_refused(order: Order, tmp_path: Path) -> None:
    """The in-memory file system of fsspec would be lost with the process."""
    before = contents(tmp_path / "scratch")
    with pytest.raises(ValueError, match="captures go to directories"):
        send_all(Path(order.folder), "memory://runs/job")
    assert contents(tmp_path / "scratch") == before


@pytest.mark.parametrize("file", ["trace/key", "../../private/key"])
def test_nothing_elsewhere_is_sent_or_removed(order: Order, tmp_path: Path, file: str) -> None:
    """A folder on the way may be a link that another user has just created."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").write_text("nobody may read this")
    (tmp_path / "scratch/step_1/trace").symlink_to(private)
    with pytest.raises(OSError, match=r"trace|out of the folder"):
        main(replace(order, files=(file, *FILES)).to_text())
    assert (private / "key").read_text() not in contents(tmp_path / "captures").values()
    assert contents(private)


def test_sending_leaves_the_reserved_disk_space(
    order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check comes before any write; all files stay here."""
    monkeypatch.setattr("dynprof.captures.sender.free_disk_mb", lambda _: 100.0)
    with pytest.raises(OSError, match=r"100 MB are free in .*keeps 200 for the job"):
        main(replace(order, least_free_mb=200.0).to_text())
    assert not contents(tmp_path / "captures")
    assert len(contents(tmp_path / "scratch")) == 3


def test_a_target_outside_what_the_owner_allows_is_not_written(
    order: Order, tmp_path: Path
) -> None:
    """The sending process checks the rules itself: a link may be new."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "captures").symlink_to(outside)
    with pytest.raises(OSError, match="captures"):
        main(order.to_text())
    assert not contents(outside)
    assert len(contents(tmp_path / "scratch")) == 3
