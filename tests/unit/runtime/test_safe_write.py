"""Files are written through the descriptor that created them, whatever happens to their names."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dynprof.runtime import safe_write
from dynprof.runtime.safe_open import make_dir, opened
from dynprof.runtime.safe_write import (
    PrivateFolder,
    atomic_file,
    atomic_text_file,
    file_for_library,
    open_to_append,
    rename,
    take_name,
    write_atomic,
    write_if_absent,
)
from tests.users import MALLORY, as_root


def test_an_atomic_write_leaves_nothing_else(tmp_path: Path) -> None:
    """The new content is private, and no temporary file is next to it."""
    write_atomic(tmp_path / "a", "one")
    write_atomic(tmp_path / "a", "two")
    assert (tmp_path / "a").read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").stat().st_mode & 0o007 == 0


def test_one_of_many_processes_creates_the_file(tmp_path: Path) -> None:
    """Ranks that start at once agree on one template, and no edit is overwritten."""
    path = tmp_path / "config"
    with ThreadPoolExecutor(16) as pool:
        wins = list(pool.map(lambda n: write_if_absent(path, str(n)), range(64)))
    assert sum(wins) == 1
    assert path.read_text() == str(wins.index(True))
    assert [p.name for p in tmp_path.iterdir()] == ["config"]


def test_one_of_many_processes_takes_a_name(tmp_path: Path) -> None:
    """Of many files that want one name exactly one gets it; the others keep theirs."""
    files = [tmp_path / str(number) for number in range(64)]
    for file in files:
        file.write_text(file.name)
    with ThreadPoolExecutor(16) as pool:
        wins = list(pool.map(lambda file: take_name(file, tmp_path / "a", replace=False), files))
    assert sum(wins) == 1
    assert (tmp_path / "a").read_text() == files[wins.index(True)].name
    assert [file.exists() for file in files] == [not won for won in wins]


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """An exception while a file is written leaves the old content, and no other file."""
    write_atomic(tmp_path / "a", "old")
    with pytest.raises(ZeroDivisionError), atomic_file(tmp_path / "a") as file:
        file.write(b"half" * (1 // 0))
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_link_in_the_place_of_a_file_is_replaced(tmp_path: Path) -> None:
    """The file that the link names stays as it is."""
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "a").symlink_to(tmp_path / "victim")
    with atomic_text_file(tmp_path / "a") as file:
        file.write("table\r\n")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "a").read_bytes() == b"table\r\n"


@pytest.mark.parametrize("make", [False, True])
def test_swapped_temporary_file_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: bool
) -> None:
    """The content goes to the created file, not to the one with its name a moment later."""
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "victim").chmod(0o600)

    def create_and_swap(name: str, flags: int, mode: int, *, folder: int) -> int:
        created = opened(name, flags, mode, folder=folder)
        (tmp_path / name).unlink()
        if make:
            (tmp_path / name).symlink_to(tmp_path / "victim")
        else:
            os.link(tmp_path / "victim", tmp_path / name)
        return created

    monkeypatch.setattr(safe_write, "opened", create_and_swap)
    write_atomic(tmp_path / "a", "content", mode=0o644)
    assert (tmp_path / "victim").read_text() == "mine"
    assert stat.S_IMODE((tmp_path / "victim").stat().st_mode) == 0o600


def test_folder_moved_during_a_write_gets_the_file(tmp_path: Path) -> None:
    """A link that takes the folder's name during the write is not followed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "folder").mkdir()
    with atomic_file(tmp_path / "folder" / "a") as file:
        (tmp_path / "folder").rename(tmp_path / "moved")
        (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")
        file.write(b"content")
    assert (tmp_path / "moved" / "a").read_bytes() == b"content"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_own_link_on_the_way_is_followed(tmp_path: Path) -> None:
    """Only this user may write in the link's folder; the link may be relative, or a parent."""
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "absolute").symlink_to(tmp_path / "real")
    (tmp_path / "relative").symlink_to("absolute/../real/deep")
    make_dir(tmp_path / "absolute" / "deep" / "new")
    write_atomic(tmp_path / "relative" / "new" / "a", "here")
    assert (tmp_path / "real/deep/new/a").read_text() == "here"


def test_loop_of_links_is_an_error(tmp_path: Path) -> None:
    """The error names the path."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels") as caught:
        make_dir(tmp_path / "loop" / "below")
    assert caught.value.filename == str(tmp_path / "loop" / "below")


def test_link_that_others_could_have_made_is_not_followed(tmp_path: Path) -> None:
    """A link in a folder that other users may write to is not followed."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / "shared" / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="link is a symbolic link, and other users may write in its"):
        write_atomic(tmp_path / "shared" / "link" / "a", "content")
    assert not (tmp_path / "a").exists()


@as_root
def test_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    """No folder is made behind it."""
    (tmp_path / "link").symlink_to("/etc")
    MALLORY.own(tmp_path / "link")
    with pytest.raises(OSError, match=f"it belongs to uid {MALLORY.uid}; use the folder itself"):
        make_dir(tmp_path / "link" / "dynprof")


@as_root
def test_folder_made_beforehand_by_another_user_is_not_written_in(tmp_path: Path) -> None:
    """In a world-writable folder such as ``/tmp``, its group could read the new files."""
    tmp_path.chmod(0o1777)
    (tmp_path / "log").mkdir()
    make_dir(tmp_path / "log" / "mine")
    MALLORY.own(tmp_path / "log")
    with pytest.raises(PermissionError, match=f"log belongs to uid {MALLORY.uid}, in a folder"):
        make_dir(tmp_path / "log")
    tmp_path.chmod(0o770)
    make_dir(tmp_path / "log")


def test_errors_name_the_whole_path(tmp_path: Path) -> None:
    """Not only the last part, which dynprof opens by descriptor."""
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as caught:
        write_atomic(tmp_path / "file" / "a", "content")
    assert caught.value.filename == str(tmp_path / "file")
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError) as caught_too:
        write_atomic(tmp_path / "a", "content")
    assert caught_too.value.filename == str(tmp_path / "a")


def test_folder_removed_on_the_way_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that ends removes an empty folder in which another one is about to write."""
    outgoing, mkdir, gone = tmp_path / "outgoing", os.mkdir, list[str]()

    def racing(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if name == "rank1" and not gone:
            gone.append(name)
            outgoing.rmdir()
        mkdir(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", racing)
    make_dir(outgoing / "rank1")
    assert gone
    assert (outgoing / "rank1").is_dir()


def test_library_writes_in_a_private_folder(tmp_path: Path) -> None:
    """The library neither sees nor follows a file that was there before."""
    (tmp_path / "a.db").symlink_to("/etc/hostname")
    with file_for_library(tmp_path / "a.db") as made:
        assert made.name == "a.db"
        assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700
        assert not made.is_relative_to(tmp_path)
        made.write_bytes(b"tables")
    assert (tmp_path / "a.db").read_bytes() == b"tables"
    assert not made.parent.exists()


def test_private_folder_is_reached_after_a_link_took_its_name(tmp_path: Path) -> None:
    """A group member moves the folder and puts a link there: the library's file stays inside."""
    (tmp_path / "elsewhere").mkdir()
    private = PrivateFolder(tmp_path / ".saving")
    (tmp_path / ".saving").rename(tmp_path / "moved")
    (tmp_path / ".saving").symlink_to(tmp_path / "elsewhere")
    (private.path / "trace").write_text("events")
    (private.path / "trace").chmod(0o666)
    assert not list((tmp_path / "elsewhere").iterdir())
    private.move_out("trace", tmp_path / "trace")
    assert (tmp_path / "trace").read_text() == "events"
    assert stat.S_IMODE((tmp_path / "trace").stat().st_mode) == 0o660


@pytest.mark.parametrize("swapped", [0o755, 0o700])
def test_folder_put_in_the_place_of_a_private_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: int
) -> None:
    """A group member exchanges the two in between: nothing in the other one is removed."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "weights").touch()
    (tmp_path / "checkpoints").chmod(swapped)
    made = os.mkdir

    def exchange(name: str, mode: int, *, dir_fd: int) -> None:
        made(name, mode, dir_fd=dir_fd)
        if name == ".saving":
            (tmp_path / ".saving").rename(tmp_path / "private")
            (tmp_path / "checkpoints").rename(tmp_path / ".saving")

    monkeypatch.setattr(os, "mkdir", exchange)
    with pytest.raises(PermissionError, match="others may write there"):
        PrivateFolder(tmp_path / ".saving")
    assert (tmp_path / ".saving" / "weights").exists()


def test_private_folder_goes_with_all_in_it(tmp_path: Path) -> None:
    """Its removal includes folders that a library made."""
    private = PrivateFolder(tmp_path / ".saving")
    (private.path / "folder" / "deep").mkdir(parents=True)
    (private.path / "file").touch()
    private.remove()
    private.remove()
    assert not list(tmp_path.iterdir())


def test_a_librarys_files_can_be_moved_to_another_disk(tmp_path: Path) -> None:
    """They are copied where a rename is impossible."""
    private = PrivateFolder(Path("/dev/shm") / f".dynprof-test-{os.getpid()}")
    try:
        (private.path / "trace").write_text("events")
        private.move_out("trace", tmp_path / "trace")
    finally:
        private.remove()
    assert (tmp_path / "trace").read_text() == "events"


def test_rename_does_not_follow_a_link(tmp_path: Path) -> None:
    """The new name replaces the link, not the file that it names."""
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "old").write_text("content")
    (tmp_path / "new").symlink_to(tmp_path / "victim")
    rename(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "new").read_text() == "content"


def test_file_with_a_second_name_is_not_appended_to(tmp_path: Path) -> None:
    """Another user can give a file of the job a second name."""
    (tmp_path / "victim").write_text("mine")
    os.link(tmp_path / "victim", tmp_path / "log")
    os.write(descriptor := open_to_append(tmp_path / "log"), b"line")
    os.close(descriptor)
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "log").read_text() == "line"


def test_a_log_is_not_opened_in_a_folder_that_became_a_link(tmp_path: Path) -> None:
    """This includes a link of this user, who may be made to create it after the check."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="log"):
        open_to_append(tmp_path / "log" / "dp.log")
    assert list((tmp_path / "victim").iterdir()) == []


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    """A job's umask does not open its files to others."""
    before = os.umask(0)
    try:
        write_atomic(tmp_path / "usual", "")
        write_atomic(tmp_path / "mine", "", mode=0o600)
        os.umask(0o077)
        write_atomic(tmp_path / "everybodys", "", mode=0o644)
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert modes == {"usual": 0o660, "mine": 0o600, "everybodys": 0o644}
