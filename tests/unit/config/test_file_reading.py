"""Reading the file without trusting what lies in its place."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from dynprof.config import read_source
from dynprof.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def refusal(path: Path) -> str:
    """Return why ``path`` is not read."""
    with pytest.raises(ConfigError) as caught:
        read_source(path)
    return str(caught.value)


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    """The bytes, the inode and the time of writing come from the same open file."""
    path = tmp_path / "c.json"
    path.write_bytes(b"{}")
    source = read_source(path)
    facts = path.stat()
    assert (source.raw, source.inode, source.mtime_ns) == (b"{}", facts.st_ino, facts.st_mtime_ns)
    assert source.owner == facts.st_uid


def test_nothing_there(tmp_path: Path) -> None:
    """A missing file is told apart from one that is refused."""
    with pytest.raises(FileNotFoundError):
        read_source(tmp_path / "c.json")


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    """A symbolic link in the place of the file is refused."""
    (tmp_path / "real").write_text("{}")
    (tmp_path / "c.json").symlink_to(tmp_path / "real")
    assert "symbolic link" in refusal(tmp_path / "c.json")


def test_a_directory(tmp_path: Path) -> None:
    """A directory in the place of the file is refused."""
    assert "a directory stands" in refusal(tmp_path)


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    """A named pipe that nobody writes to is refused at once."""
    os.mkfifo(tmp_path / "c.json")
    assert "named pipe" in refusal(tmp_path / "c.json")


def test_a_socket(tmp_path: Path) -> None:
    """A socket in the place of the file is refused."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "c.json"))
        assert "socket" in refusal(tmp_path / "c.json")


def test_a_file_that_everybody_may_write(tmp_path: Path) -> None:
    """A world-writable file is refused, with the command that mends it."""
    path = tmp_path / "c.json"
    path.write_text("{}")
    path.chmod(0o666)
    assert "chmod o-w" in refusal(path)


def test_a_file_over_the_limit(tmp_path: Path) -> None:
    """A file over 1 MiB is refused without being read, a sparse one of 2 GB as well."""
    path = tmp_path / "c.json"
    with path.open("wb") as file:
        file.truncate(2_000_000_000)
    assert "larger than 1 MiB" in refusal(path)
