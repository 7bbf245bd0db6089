"""Small files in places where other users may write."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynprof.config.file_reading import read_source
from dynprof.runtime.safe_open import (
    NotRegularError,
    descriptor_inside,
    open_inside,
    open_regular,
    read_inside,
    read_regular,
)
from tests.users import ALICE, MALLORY, as_root

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("read", [lambda path: read_regular(path, 16 << 20), read_source])
def test_a_small_file_takes_little_memory(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """The limit's size does not matter: a training job reads such files repeatedly."""
    path = tmp_path / "small"
    path.write_text("{}")
    read(path)
    tracemalloc.start()
    read(path)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 100_000


def test_a_small_file_is_read_to_its_end(tmp_path: Path) -> None:
    """The file may have grown since its size was read, as those of /proc do."""
    path = tmp_path / "small"
    path.write_bytes(b"x" * 100)
    assert read_regular(path, 100) == b"x" * 100
    with pytest.raises(OSError, match="File too large"):
        read_regular(path, 99)
    assert read_regular(Path("/proc/self/status"), 1 << 20).startswith(b"Name:")


def test_no_link_leads_to_a_file_inside_a_folder(tmp_path: Path) -> None:
    """Neither the file nor its folder may be a link, unless a job may have one there."""
    folder = tmp_path / "info"
    folder.mkdir()
    (folder / "file").write_bytes(b"x")
    (folder / "link").symlink_to("file")
    (tmp_path / "linked").symlink_to(folder)
    assert read_inside(folder / "file", 9) == b"x"
    assert read_inside(tmp_path / "linked/file", 9, linked_folder=True) == b"x"
    for path in (folder / "link", tmp_path / "linked/file"):
        with pytest.raises(NotRegularError, match="symbolic link") as error:
            read_inside(path, 9)
        assert error.value.filename in (str(path), str(path.parent))


@as_root
def test_a_file_of_an_unrelated_user_is_not_read(tmp_path: Path) -> None:
    """The owner of the open file counts."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    for user, readable in ((ALICE, True), (MALLORY, False)):
        ALICE.own(tmp_path)
        user.own(path)
        if readable:
            assert read_inside(path, 9) == b"x"
        else:
            with pytest.raises(NotRegularError, match=f"belongs to uid {user.uid}"):
                read_inside(path, 9)


def test_a_folder_need_not_be_listed_to_read_a_file_in_it(tmp_path: Path) -> None:
    """Others may only pass through some homes; the folder is opened for that alone."""
    (tmp_path / "file").write_bytes(b"x")
    tmp_path.chmod(0o311)
    try:
        os.close(descriptor_inside(tmp_path / "file")[0])
    finally:
        tmp_path.chmod(0o755)


@as_root
def test_a_trace_is_not_read_through_a_folder_that_was_exchanged(tmp_path: Path) -> None:
    """Another user replaced its folder, or a parent one, by a link after the search."""
    (tmp_path / "private" / "step_1").mkdir(parents=True)
    (tmp_path / "private" / "step_1" / "a.trace.json").write_text("secret")
    (tmp_path / "shared").mkdir()
    for name, target in (("step_1", "private/step_1"), ("job", "private")):
        (tmp_path / "shared" / name).symlink_to(tmp_path / target)
        MALLORY.own(tmp_path / "shared" / name)
    for found in ("step_1/a.trace.json", "job/step_1/a.trace.json"):
        for read in (open_regular, open_inside):
            with pytest.raises(OSError, match="is a symbolic link"):
                read(tmp_path / "shared" / found)
