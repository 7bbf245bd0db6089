"""Reading of the config without trust in the file."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from dynprof.config import read_source
from dynprof.errors import ConfigError
from tests.users import ALICE, MALLORY, as_root

if TYPE_CHECKING:
    from pathlib import Path


def refusal(path: Path) -> str:
    """Return the reason why ``path`` is not read."""
    with pytest.raises(ConfigError) as caught:
        read_source(path)
    return str(caught.value)


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    """Content, inode and modification time come from the same open file."""
    path = tmp_path / "c.json"
    path.write_bytes(b"{}")
    source = read_source(path)
    facts = path.stat()
    assert (source.raw, source.inode, source.mtime_ns) == (b"{}", facts.st_ino, facts.st_mtime_ns)
    assert source.owner == facts.st_uid


def test_a_missing_file_is_not_a_refused_one(tmp_path: Path) -> None:
    """A missing file differs from a refused one."""
    with pytest.raises(FileNotFoundError):
        read_source(tmp_path / "c.json")


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    """A symbolic link in place of the file is refused."""
    (tmp_path / "real").write_text("{}")
    (tmp_path / "c.json").symlink_to(tmp_path / "real")
    assert "symbolic link" in refusal(tmp_path / "c.json")


@as_root
@pytest.mark.parametrize(
    ("group", "how"),
    [(61100, "run chmod g+r on it"), (61101, f"run chgrp with a group of uid {ALICE.uid}, then")],
)
def test_a_config_that_its_owner_keeps_private_is_named_with_its_mode(
    shared_tmp: Path, group: int, how: str
) -> None:
    """An editor of a group member with umask 077 leaves such a file."""
    path = shared_tmp / "c.json"
    path.write_text("{}")
    path.chmod(0o600)
    os.chown(path, MALLORY.uid, group)
    with ALICE.acting(61100):
        said = refusal(path)
    assert f"belongs to uid {MALLORY.uid}, gid {group}, and has mode 0600; {how}" in said


def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    """A directory in place of the file is refused."""
    assert "a directory is in" in refusal(tmp_path)


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    """A named pipe without a writer is refused at once."""
    os.mkfifo(tmp_path / "c.json")
    assert "named pipe" in refusal(tmp_path / "c.json")


def test_a_socket_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    """A socket in place of the file is refused."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "c.json"))
        assert "socket" in refusal(tmp_path / "c.json")


def test_a_world_writable_file_is_refused(tmp_path: Path) -> None:
    """A world-writable file is refused with the command that corrects it."""
    path = tmp_path / "c.json"
    path.write_text("{}")
    path.chmod(0o666)
    assert "chmod o-w" in refusal(path)


def test_a_file_over_the_limit(tmp_path: Path) -> None:
    """A file over 1 MiB is refused unread, also a sparse one of 2 GB."""
    path = tmp_path / "c.json"
    with path.open("wb") as file:
        file.truncate(2_000_000_000)
    assert "larger than 1 MiB" in refusal(path)


def read_by_the_job(path: Path) -> str:
    """Return why a job of Alice's does not read a file; empty if it does."""
    with ALICE.acting():
        try:
            read_source(path, as_job=True)
        except ConfigError as error:
            return str(error)
    return ""


@pytest.fixture
def config(shared_tmp: Path) -> Path:
    """Return a config of Alice's in her directory."""
    path = shared_tmp / "prof_config" / "profiler_config.json"
    path.parent.mkdir()
    path.write_text("{}")
    path.chmod(0o644)
    ALICE.own(path, path.parent)
    return path


@as_root
@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o3777])
def test_a_file_of_another_user_is_refused(config: Path, mode: int) -> None:
    """Any user may rename a file into a world-writable directory; root's files are read."""
    config.parent.chmod(mode)
    MALLORY.own(config)
    assert "the file belongs to uid 61002, which may not request captures" in read_by_the_job(
        config
    )
    os.chown(config, 0, 0)
    assert read_by_the_job(config) == ""


@as_root
@pytest.mark.parametrize("mode", [0o770, 0o2775, 0o3770])
def test_a_file_of_a_member_is_read_where_a_group_may_write(config: Path, mode: int) -> None:
    """The directory's owner has chosen the group."""
    config.parent.chmod(mode)
    MALLORY.own(config)
    assert read_by_the_job(config) == ""


@as_root
def test_a_file_in_a_directory_of_another_user_is_refused(config: Path) -> None:
    """The directory could have been put in place of the job's; Alice's commands still read it."""
    MALLORY.own(config.parent)
    config.parent.chmod(0o775)
    assert f"{config.parent}, which belongs to uid 61002" in read_by_the_job(config)
    with ALICE.acting():
        assert read_source(config).raw == b"{}"


@as_root
def test_a_link_into_a_directory_of_another_user_is_refused(config: Path) -> None:
    """A link may only lead to places that only the job's user or root may write."""
    apart = config.parent.parent / "apart"
    apart.mkdir()
    apart.chmod(0o775)
    MALLORY.own(apart)
    (apart / "evil.json").write_text("{}")
    MALLORY.own(apart / "evil.json")
    config.unlink()
    config.symlink_to(apart / "evil.json")
    with ALICE.acting(), pytest.raises(ConfigError, match="apart, which belongs to uid 61002"):
        read_source(config, follow_symlinks=True, as_job=True)


@as_root
def test_a_members_command_reads_the_config_that_the_job_reads(config: Path) -> None:
    """The group may have only read access: the directory's owner counts as the job's user."""
    with MALLORY.acting():
        assert read_source(config).raw == b"{}"
