"""Where captures lie: on this machine, or behind any of fsspec's file systems.

What is behind one is fetched to be worked on, and what was made of it is sent back.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dynprof.analysis.measures.timeline.read_trace import find_manifest
from dynprof.errors import CaptureError
from dynprof.extras import install

if TYPE_CHECKING:
    from collections.abc import Iterator


def located(text: str) -> Path:
    """Return the path that a text names: of this machine, or behind one of fsspec's file systems.

    A path of the latter kind has the methods of :class:`pathlib.Path`.

    Raises:
        CaptureError: What the text names cannot be had here.
    """
    if "://" not in text:
        return Path(text)
    if "::" in text:
        raise CaptureError(f"{text} is a chain of file systems; name one of them")
    try:
        from upath import UPath
    except ImportError as error:
        raise CaptureError(install(text, "fsspec", "dask")) from error
    try:
        found: Any = UPath(text)
        found.fs  # noqa: B018 - the file system's own package is looked for here
    except (ImportError, ValueError) as error:
        raise CaptureError(f"{text} cannot be reached: {error}") from error
    return found if not isinstance(found, Path) else Path(found)


class Workspace:
    """A folder of this machine, worked on as it is.

    Args:
        folder: The folder.

    Attributes:
        folder: The folder.
        base: Where to work.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Any = folder
        self.base = folder

    def fetch(self, path: Path) -> Path:
        """Return a file of the folder as one of this machine."""
        return path

    def fetch_capture(self, trace: Path) -> Path:
        """Return a trace of the folder as one of this machine, with its manifest beside it."""
        return trace

    def upload(self, made: Path) -> Path:
        """Return where a file that was made below :attr:`base` lies in the end."""
        return made


class _RemoteWorkspace(Workspace):
    """A folder of another machine, and a temporary one to work in."""

    def __init__(self, folder: Path, base: Path) -> None:
        super().__init__(folder)
        self.base = base

    def fetch(self, path: Path) -> Path:
        remote: Any = path
        below = remote.path[len(self.folder.path) :].lstrip("/")
        if ".." in below.split("/"):
            raise CaptureError(f"{path} has .. in its name, and is not fetched")
        copy: Path = self.base / below
        copy.parent.mkdir(parents=True, exist_ok=True)
        remote.fs.get_file(remote.path, str(copy))
        return copy

    def fetch_capture(self, trace: Path) -> Path:
        manifest, _ = find_manifest(trace)
        if manifest:
            self.fetch(manifest)
        return self.fetch(trace)

    def upload(self, made: Path) -> Path:
        target: Any = self.folder.joinpath(*made.relative_to(self.base).parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.fs.put_file(str(made), target.path)
        return cast("Path", target)


@contextlib.contextmanager
def workspace_of(folder: Path) -> Iterator[Workspace]:
    """Give the place to work on a folder's files."""
    if isinstance(folder, Path):
        yield Workspace(folder)
        return
    with tempfile.TemporaryDirectory(prefix="dynprof") as base:
        yield _RemoteWorkspace(folder, Path(base))
