"""Captures on this machine, or on any of fsspec's file systems.

Remote captures are downloaded for the analysis, and the results are uploaded.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dynprof.analysis.measures.timeline.read_trace import find_manifest
from dynprof.errors import CaptureError, describe
from dynprof.extras import install
from dynprof.runtime.destination import has_secret
from dynprof.runtime.error_boundary import ErrorBoundary
from dynprof.runtime.job_files import files_below
from dynprof.runtime.layout import ANALYSIS_DIR

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTEMPTS = 2
"""Attempts of a request; by default s3fs makes five, each with botocore's five."""
S3_LIMITS = {
    "connect_timeout": 10,
    "read_timeout": 20,
    "retries": {"total_max_attempts": ATTEMPTS},
}
"""Limits of a request to S3, in botocore's names, times in seconds: a store may never answer."""


def located(text: str) -> Path:
    """Return the path that a text names: of this machine, or of one of fsspec's file systems.

    A remote path has the methods of :class:`pathlib.Path` too.

    Raises:
        CaptureError: The text names a path that cannot be reached, or has credentials.
    """
    if "://" not in text:
        return Path(text)
    if has_secret(text):
        why = "a URL with credentials or parameters is not read: logs and other users would see it"
        raise CaptureError(f"{why}; give credentials in the environment")
    if "::" in text:
        raise CaptureError(f"{text} is a chain of file systems; name one of them")
    found = _opened(text)
    if isinstance(found, Path):
        return Path(found)
    if failed := ErrorBoundary(_NoNotes()).attempt("reaching it", found.exists):
        raise CaptureError(f"{text} cannot be reached: {describe(failed)}") from failed
    return cast("Path", found)


def _opened(text: str) -> Any:
    """Return the path of a URL, with its file system's own package imported."""
    try:
        from upath import UPath
    except ImportError as error:
        extra = "s3" if text.startswith("s3") else "dask"
        raise CaptureError(install(text, "universal-pathlib", extra)) from error
    try:
        found: Any = UPath(text, **_options(text))
        files = found.fs  # imports the file system's own package
    except (ImportError, ValueError) as error:
        raise CaptureError(f"{text} cannot be reached: {error}") from error
    if _is_s3(text):
        files.retries = ATTEMPTS  # s3fs repeats what botocore has repeated
    return found


def _is_s3(url: str) -> bool:
    return url.startswith(("s3://", "s3a://"))


def _options(url: str) -> dict[str, Any]:
    """Return the options of fsspec's file system; what the user's configuration has counts."""
    if not _is_s3(url):
        return {}
    from fsspec.config import conf

    theirs = {key: value for kind in ("s3", "s3a") for key, value in conf.get(kind, {}).items()}
    return {"config_kwargs": {**S3_LIMITS, **theirs.get("config_kwargs", {})}}


class _NoNotes:
    """Logs nothing: the caller raises the error, whose class each file system chooses."""

    def set_status(self, *, last_error: str) -> None:
        """Do nothing."""

    def error(self, text: str) -> None:
        """Do nothing."""


class Workspace:
    """A folder of this machine, used directly.

    Args:
        folder: The folder.

    Attributes:
        folder: The folder.
        base: The local folder to work in.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Any = folder
        self.base = folder

    def fetch(self, path: Path) -> Path:
        """Return the local path of a file of the folder."""
        return path

    def fetch_capture(self, trace: Path) -> Path:
        """Return the local path of a trace of the folder, with its manifest next to it."""
        return trace

    def upload(self, made: Path) -> Path:
        """Return the final path of a file that was written below :attr:`base`."""
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
            raise CaptureError(f"{path} has .. in its name; it is not downloaded")
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
def downloaded(url: str) -> Iterator[Path]:
    """Yield where a trace, or all that the newest window at a URL has recorded, is here for now.

    Args:
        url: The URL of a trace, of the folder of a window, or of a folder above some.

    Raises:
        CaptureError: There is no trace, or the URL cannot be reached.
        OSError: A file cannot be downloaded.
    """
    from dynprof.analysis.runs.one_trace import newest_in

    there: Any = located(url)
    newest = newest_in(there)
    window: Any = newest.parent
    with tempfile.TemporaryDirectory(prefix="dynprof-") as base:
        folder = Path(base) / (window.name.strip(".") or "window")
        workspace = _RemoteWorkspace(window, folder)
        if newest == there:
            yield workspace.fetch_capture(newest)
            return
        for file in files_below(window):
            if file.relative_to(window).parts[0] != ANALYSIS_DIR:
                workspace.fetch(file)
        yield folder


@contextlib.contextmanager
def workspace_of(folder: Path) -> Iterator[Workspace]:
    """Yield the workspace for a folder's files."""
    if isinstance(folder, Path):
        yield Workspace(folder)
        return
    with tempfile.TemporaryDirectory(prefix="dynprof") as base:
        yield _RemoteWorkspace(folder, Path(base))
