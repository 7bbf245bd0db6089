"""The symbolic links that a script's output path may have, and the files that exports replace."""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path

import pytest

from dynprof.errors import CaptureError
from dynprof.profiler.output_paths import output_path, write_file
from dynprof.runtime.layout import host_name
from dynprof.runtime.safe_write import write_atomic
from tests.users import ALICE, as_root


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a folder, a file and a link to each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "linked").symlink_to("real")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link.json").symlink_to("file")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("link.json", "file"),
        ("linked", "real"),
        ("linked/a.json", "real/a.json"),
        ("linked/deep/a.json", "real/deep/a.json"),
        ("real/../linked/new/a.json", "real/new/a.json"),
        ("linked/../a.json", "a.json"),
    ],
)
@pytest.mark.parametrize("absolute", [False, True])
def test_a_link_in_a_scripts_path_is_refused(
    place: Path, path: str, real: str, absolute: bool
) -> None:
    """A link in any part of the path is refused; the error names the real path."""
    with pytest.raises(CaptureError, match=f"symbolic link.*; write to {place / real} instead"):
        output_path(place / path if absolute else path)


def test_the_name_of_a_folder_is_no_place_for_a_file(place: Path) -> None:
    """A path that ends with a slash is refused."""
    with pytest.raises(CaptureError, match="new/ is not written: it is the name of a folder"):
        write_file("new/", lambda file: file.write_text("trace"))
    assert not (place / "new").exists()


def test_a_path_without_links_is_made_absolute(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path without links begins at the working directory, and ``~`` at the user's home."""
    monkeypatch.setenv("HOME", str(place / "real"))
    assert output_path("real/./deep/../a.json") == place / "real" / "a.json"
    assert output_path("~/a.json") == place / "real" / "a.json"


def test_a_link_directly_in_the_root_folder_is_followed() -> None:
    """Root's links in ``/`` are followed."""
    link = next((path for path in Path("/").iterdir() if path.is_symlink()), None)
    if link is None:
        pytest.skip("this machine has no link in /")
    assert output_path(link / "a.json") == link / "a.json"


@as_root
def test_a_link_of_roots_is_followed_where_only_root_can_make_one(place: Path) -> None:
    """Root's link in root's folder is followed; other links are not."""
    for folder in place.parents:  # pytest's folders, which other users may not enter
        if folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o755)
    (home := place / "home").mkdir(mode=0o755)
    (own := place / "own").mkdir()
    place.chmod(0o755)
    for folder in (home, own):
        (folder / "scratch").symlink_to(place / "real")
    ALICE.own(own, place / "real")
    with ALICE.acting():
        write_file(home / "scratch" / "a.json", lambda file: file.write_text("hers"))
        assert (place / "real" / "a.json").read_text() == "hers"
        with pytest.raises(CaptureError, match="own/scratch is a symbolic link"):
            output_path(own / "scratch" / "a.json")
    ALICE.own(home / "scratch")
    with ALICE.acting(), pytest.raises(CaptureError, match="home/scratch is a symbolic link"):
        output_path(home / "scratch" / "a.json")


def test_an_export_replaces_its_own_file_and_an_empty_one(place: Path) -> None:
    """An export replaces this process's file, or an empty one, without a warning."""
    (place / "empty.json").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in ("new.json", "empty.json"):
            for text in ("one", "two"):
                made = write_file(path, functools.partial(Path.write_text, data=text))
                assert made == place / path
            assert Path(path).read_text() == "two"


def test_a_file_of_another_process_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process gets its own names, including a forked child of the writer."""
    write_file("a.json.gz", lambda file: file.write_text("parent"))
    monkeypatch.setattr(os, "getpid", lambda: 4242)
    (place / f"a_{host_name()}_4242.json.gz").write_text("an earlier process with the same id")
    for text in ("child", "child again"):
        with pytest.warns(UserWarning, match="a.json.gz; use a different name for each process"):
            made = write_file("a.json.gz", functools.partial(Path.write_text, data=text))
        assert made == place / f"a_{host_name()}_4242_2.json.gz"
        assert made.read_text() == text
    assert Path("a.json.gz").read_text() == "parent"


def test_a_failed_export_leaves_nothing(place: Path) -> None:
    """A failed export keeps the old file, and leaves no hidden file."""
    before = sorted(place.rglob("*"))

    def fail(file: Path) -> None:
        file.write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_file("file", fail)
    assert sorted(place.rglob("*")) == before
    assert Path("file").read_text() == "mine"


@as_root
def test_a_folder_that_cannot_be_written_is_named(place: Path) -> None:
    """An export into a read-only folder names that folder, and no temporary file."""
    for folder in place.parents:  # pytest's folders, which other users may not enter
        if folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o755)
    place.chmod(0o755)
    said = f"real/a.json is not written: {place}/real cannot be written by this user$"
    with ALICE.acting(), pytest.raises(CaptureError, match=said):
        write_file("real/a.json", lambda file: write_atomic(file, "x"))


def test_a_folder_in_place_of_a_file_is_not_replaced() -> None:
    """A folder in place of a file is named, and nothing is written."""
    with pytest.raises(CaptureError, match="real exists and is not a regular file"):
        write_file("real", lambda file: file.write_text("x"))
