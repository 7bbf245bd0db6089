"""The place where a capture is written first, and its destination."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dynprof.runtime.destination import (
    OUTGOING,
    absolute_place,
    destination,
    has_secret,
    split_urls,
    why_no_destination,
)
from dynprof.runtime.layout import Layout

URL = "s3://bucket/captures"


def layout(root: Path) -> Layout:
    """Return the files of a process whose config no other user can change."""
    root.chmod(0o700)
    made = Layout(root, 3, "host", 42)
    made.config.touch(0o600)
    return made


def test_a_directory_is_written_in_directly(tmp_path: Path) -> None:
    """Without a scratch directory nothing is moved."""
    found = destination(layout(tmp_path), "captures", None)
    assert found.is_direct
    assert found.folder("step_1-2") == tmp_path / "captures" / "step_1-2"


def test_each_process_has_its_own_folder_in_a_scratch_directory(tmp_path: Path) -> None:
    """Two processes of one rank do not share folders."""
    found = destination(layout(tmp_path), "captures", "scratch")
    other = destination(replace(layout(tmp_path), pid=43), "captures", "scratch")
    assert not found.is_direct
    assert found.final == other.final == tmp_path / "captures"
    assert found.staging_dir.parent == other.staging_dir.parent == tmp_path / "scratch"
    assert found.staging_dir != other.staging_dir


def test_captures_for_a_url_are_written_next_to_the_config_first(tmp_path: Path) -> None:
    """This is the default place."""
    found = destination(layout(tmp_path), f"{URL}/", None)
    assert found.staging_dir.parent == tmp_path / OUTGOING
    assert found.folder("step_1-2") == f"{URL}/step_1-2"
    assert found.is_shared()


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("captures", ""),
        (URL, ""),
        ("hdfs://name-node:8020/user/me", ""),
        ("abfss://captures@account.dfs.core.windows.net/x", ""),
        ("abfss://me:secret@account.dfs.core.windows.net/x", "a URL with credentials"),
        ("oci://bucket@namespace/captures", ""),
        ("oci://me:secret@namespace/captures", "a URL with credentials"),
        ("s3://secret@bucket/x", "a URL with credentials or parameters"),
        ("ftp://host/path", "captures go to directories, and to s3://"),
        ("file:///tmp", "captures go to directories, and to s3://"),
        ("simplecache::s3://bucket/x", "captures go to directories, and to s3://"),
        ("s3://me:secret@bucket/x", "a URL with credentials or parameters"),
        ("s3://me:secret/with-slash@bucket/x", "a URL with credentials or parameters"),
        ("s3://arn:aws:s3:us-west-2:123456789012:accesspoint/name/x", ""),
        ("s3://bucket/x?key=secret", "a URL with credentials or parameters"),
        ("s3://bucket/x#frag", "a URL with credentials or parameters"),
        ("s3:/me:secret@bucket/x", "a URL has two slashes: write s3://bucket/path"),
        ("s3://", "this URL names no place"),
        ("s3:///", "this URL names no place"),
        ("s3://bucket/a/../b", "this URL names no place"),
        ("s3://bucket/x::s3://other", "this URL names no place"),
    ],
)
def test_errors_of_a_url_are_named(place: str, why: str) -> None:
    """The error never contains the secret."""
    said = why_no_destination(place)
    assert said.startswith(why)
    assert bool(said) == bool(why)
    assert "secret" not in said


def test_an_address_of_a_receiver_has_no_secret() -> None:
    """Ports and IPv6 addresses are none; a user or a parameter may be one."""
    plain = ("http://127.0.0.1:4318", "http://[::1]:4318/x", "http://[::1]", "host:4318")
    assert not any(map(has_secret, plain))
    assert all(map(has_secret, ("http://me@[::1]:4318", "http://[::1]:4318?key=x", "me:x@host")))


def test_a_url_must_be_allowed_if_others_may_change_the_config(tmp_path: Path) -> None:
    """A URL below an allowed one is allowed; one that only shares its first characters is not."""
    shared = layout(tmp_path)
    assert not destination(shared, URL, None).why_forbidden(shared)
    tmp_path.chmod(0o770)
    assert "is none of the URLs that init() allowed" in destination(
        shared, URL, None
    ).why_forbidden(shared)
    allowed = replace(shared, urls=(URL,))
    assert not destination(allowed, f"{URL}/mine", None).why_forbidden(allowed)
    assert not destination(allowed, f"{URL}/", None).why_forbidden(allowed)
    assert destination(allowed, f"{URL}-of-others", None).why_forbidden(allowed)
    assert destination(allowed, "s3://bucket", None).why_forbidden(allowed)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing package for this kind of URL is named before the recording."""
    for name in ("fsspec", "s3fs"):
        monkeypatch.setitem(sys.modules, name, None)
    mine = layout(tmp_path)
    why = destination(mine, URL, None).why_not(mine)
    assert why == "s3:// needs fsspec and s3fs; install it for the job's Python"


@pytest.mark.parametrize("place", ["/proc/nope", "/sys/nope/below"])
def test_a_folder_of_the_kernel_is_refused_as_such(tmp_path: Path, place: str) -> None:
    """Root may write there, and has no free disk: neither would explain it."""
    why = destination(layout(tmp_path), place, None).why_not(layout(tmp_path))
    assert why == f"/{place.split('/')[1]} is a folder of the kernel, which keeps no files"


def test_a_scratch_directory_obeys_the_rules_as_well(tmp_path: Path) -> None:
    """The error names it if it is the place that is not allowed."""
    mine = layout(tmp_path)
    (tmp_path / "file").touch()
    why = destination(mine, "captures", "file/below").why_not(mine)
    assert why == f"{tmp_path / 'file'} is not a directory"
    tmp_path.chmod(0o770)
    assert "/elsewhere" in destination(mine, "captures", "/elsewhere").why_forbidden(mine)


def test_directories_and_urls_are_distinguished() -> None:
    """``init(prof_dirs=...)`` has both in one list; a URL does not depend on the directory."""
    assert split_urls(["/a", URL, "/b"]) == (["/a", "/b"], (URL,))
    assert absolute_place(Path("/root"), URL) == URL
    assert absolute_place(Path("/root"), "captures") == "/root/captures"
