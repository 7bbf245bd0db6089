"""The destination of a capture, a directory or a URL, and the place where it is put together."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.runtime.file_system import is_remote, kind_of
from dynprof.runtime.permissions import may_be_emptied, why_only_listed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dynprof.runtime.layout import Layout

FILE_SYSTEMS = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "oss": "ossfs",
    "oci": "ocifs",
    "hdfs": "pyarrow",
}
"""The schemes of URLs that captures may go to, and the package that fsspec needs for each."""
_CONTAINERS = {"abfs", "abfss", "oci"}
"""Schemes with URLs like ``abfss://container@account/path`` or ``oci://bucket@namespace/path``."""
OUTGOING = "outgoing"
"""Default folder, next to the config, in which captures for a URL are put together."""

_OF_THE_KERNEL = ("/proc", "/sys")
"""Folders that keep no file of a program, though root may write there."""
MAX_PARTS = 32
"""Most names in a path of a config: real paths have about ten, and commands search no deeper."""


@dataclass(frozen=True)
class Destination:
    """The destination of a capture.

    Attributes:
        staging_dir: The directory in which the capture is put together.
        final: Where it ends up: the same directory, another one, or a URL.
    """

    staging_dir: Path
    final: Path | str

    @property
    def is_direct(self) -> bool:
        """Whether the capture is put together where it stays."""
        return self.staging_dir == self.final

    def is_shared(self) -> bool:
        """Return whether other machines may also write there."""
        return isinstance(self.final, str) or is_remote(kind_of(self.final))

    def folder(self, name: str) -> Path | str:
        """Return the final path or URL of a window's folder."""
        final = self.final
        return f"{final.rstrip('/')}/{name}" if isinstance(final, str) else final / name

    def why_not(
        self, layout: Layout, named_in: Path | None = None, *, listed_only: bool = False
    ) -> str:
        """Return why it is forbidden or cannot be used; empty if it can be used."""
        forbidden = self.why_forbidden(layout, named_in, listed_only=listed_only)
        return forbidden or self._why_no_folders()

    def why_forbidden(
        self, layout: Layout, named_in: Path | None = None, *, listed_only: bool = False
    ) -> str:
        """Return why nothing may be written there, as :meth:`Layout.why_forbidden` does.

        A URL must begin with one that ``init()`` allowed, unless only the job's own user can change
        the config.
        """
        places = {self.staging_dir, *([] if isinstance(self.final, str) else [self.final])}
        for place in sorted(places):
            if why := layout.why_forbidden(place, named_in, listed_only=listed_only):
                return why
        url = self.final
        if not isinstance(url, str) or any(_lies_below(url, allowed) for allowed in layout.urls):
            return ""
        why = why_only_listed(layout.config, named_in, listed_only=listed_only)
        return f"{url} is none of the URLs that init() allowed, and {why}" if why else ""

    def _why_no_folders(self) -> str:
        if not isinstance(self.final, str):
            return _why_no_folder(self.staging_dir) or _why_no_folder(self.final)
        scheme = self.final.partition("://")[0]
        missing = [name for name in ("fsspec", FILE_SYSTEMS[scheme]) if not _is_there(name)]
        if missing:
            return f"{scheme}:// needs {' and '.join(missing)}; install it for the job's Python"
        return _why_no_folder(self.staging_dir)


def destination(layout: Layout, prof_dir: str, scratch_dir: str | None) -> Destination:
    """Return the destination of a capture.

    Args:
        layout: The files of this process.
        prof_dir: The config's ``prof_dir``: a URL, or a directory relative to the config's.
        scratch_dir: The config's directory to put captures together in; None for none.
    """
    final = prof_dir if is_url(prof_dir) else layout.capture_dir(prof_dir)
    if scratch_dir is not None:
        return Destination(layout.own_dir(layout.capture_dir(scratch_dir)), final)
    if isinstance(final, str):
        return Destination(layout.own_dir(layout.root / OUTGOING), final)
    return Destination(final, final)


def is_url(text: str) -> bool:
    """Return whether a text names a place in one of fsspec's file systems."""
    return "://" in text


def why_too_deep(place: str) -> str:
    """Return why a path or URL has too many names; empty if it has not."""
    parts = len([part for part in place.split("/") if part not in ("", ".")])
    return f"{parts} folders deep; the limit is {MAX_PARTS}" if parts > MAX_PARTS else ""


def absolute_place(root: Path, place: str) -> str:
    """Return a URL as it is, and a path as an absolute one."""
    return place if is_url(place) else str(root / place)


def why_no_destination(prof_dir: str) -> str:
    """Return what is wrong with a URL; empty if it may be used, or is no URL.

    Credentials belong in the environment: logs and manifests show the text of a config.
    """
    if not is_url(prof_dir):
        scheme, colon, _ = prof_dir.partition(":/")
        meant = colon and scheme in FILE_SYSTEMS
        return f"a URL has two slashes: write {scheme}://bucket/path" if meant else ""
    scheme, _, rest = prof_dir.partition("://")
    if scheme not in FILE_SYSTEMS:
        known = ", ".join(f"{name}://" for name in FILE_SYSTEMS)
        return f"captures go to directories, and to {known}; write one of these"
    if has_secret(prof_dir):
        return "a URL with credentials or parameters; give these to the job in its environment"
    if not rest.strip("/") or "::" in rest or ".." in rest.split("/"):
        return "this URL names no place; write scheme://bucket/path"
    return ""


def has_secret(url: str) -> bool:
    """Return whether a URL has credentials, or parameters, which may be credentials."""
    scheme, slashes, rest = url.partition("://")
    place = rest if slashes else url
    return _has_user(scheme, place.partition("/")[0]) or "?" in place or "#" in place


def _has_user(scheme: str, authority: str) -> bool:
    """Return whether a URL has a user or a password; Azure's and Oracle's have a container there.

    A text after a colon is a password with a slash, unless it is a port or part of an ARN.
    """
    before, at, host = authority.rpartition("@")
    _, colon, port = host.rpartition("]")[2].partition(":")  # an IPv6 address is in brackets
    if colon and not port.isdecimal() and not host.startswith("arn:"):
        return True
    return bool(at) and (":" in before or scheme not in _CONTAINERS)


def _lies_below(url: str, allowed: str) -> bool:
    return f"{url.rstrip('/')}/".startswith(f"{allowed.rstrip('/')}/")


def _why_no_folder(path: Path) -> str:
    """Return why nothing can be written in a directory, which may not exist; empty if it can."""
    try:
        path.exists()
    except OSError as error:
        return f"{path} cannot be used: {error.strerror}"
    nearest = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if not nearest.is_dir():
        return f"{nearest} is not a directory"
    if any(nearest.resolve().is_relative_to(folder) for folder in _OF_THE_KERNEL):
        return f"{nearest} is a folder of the kernel, which keeps no files"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"the job may not write in {nearest}"
    if may_be_emptied(nearest.stat()):
        return f"every user may rename files in {nearest}, which lacks chmod +t"
    return ""


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def split_urls(places: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the directories and the URLs among places."""
    named = list(places)
    return [p for p in named if not is_url(p)], tuple(p for p in named if is_url(p))
