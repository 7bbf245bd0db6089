"""A closed window of a script: its trace, once or in several places, and its results."""

from __future__ import annotations

import gzip
import secrets
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.aftermath import analyse_now, arguments_for
from dynprof.errors import BackendError
from dynprof.layout import open_private
from dynprof.packing import pack
from dynprof.profiler.caution import caution

if TYPE_CHECKING:
    from dynprof.backends import Recording
    from dynprof.capture import Manifest

RESERVED = {"traceEvents", "schemaVersion", "baseTimeNanoseconds", "distributedInfo", "metadata"}
"""Members of a trace that a script's metadata may not take the place of."""


@dataclass(eq=False)
class Recorded:
    """What a window recorded.

    Attributes:
        recording: The stopped recording.
        manifest: What is known about it.
        suffix: What the names of its traces end with.
        torch_results: Torch's own object that knows the results; None where there is none.
    """

    recording: Recording
    manifest: Manifest
    suffix: str
    torch_results: Any
    _file: Path | None = None
    _handed_over: bool = False

    @property
    def results(self) -> Any:
        """Torch's own object, which knows events and averages.

        Raises:
            RuntimeError: This recording has none.
        """
        if self.torch_results is None:
            text = "only torch.profiler, closed where it ran, has results to ask for; this was"
            how = f"recorded by {self.manifest.backend} and closed {self.manifest.closing}"
            raise RuntimeError(f"{text} {how}")
        return self.torch_results

    @property
    def has_stacks(self) -> bool:
        """Whether the trace holds the Python call stacks of its operators."""
        config = self.manifest.request.config
        return bool(config.get("with_stack")) or self.manifest.backend == "python"

    def hand_over(self) -> Recording:
        """Give the recording to somebody who saves it; it can be written no more."""
        self._handed_over = True
        return self.recording

    def saved_as(self, path: Path) -> None:
        """Note where the trace lies, after it was handed over."""
        self._file = path

    def write(self, path: Path) -> None:
        """Write the trace; compressed where the name ends with ``.gz``.

        Raises:
            BackendError: It could not be written whole.
            OSError: The place cannot be written.
        """
        if path.is_symlink():
            raise BackendError(f"{path} is a symbolic link, which is not followed")
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._file and self._file.exists():
            _copy(self._file, path)
            return
        if self._handed_over:
            raise BackendError("the trace was handed to a handler that did not keep it")
        self._handed_over = True
        self._save(path)
        self._file = path if path.exists() else None
        manifest = self.manifest.model_copy(update={"trace": path.name})
        if arguments := arguments_for(manifest, analyse=False):
            analyse_now(path, arguments)

    def file(self) -> Path:
        """Return where the trace lies, writing it to a temporary place if it lies nowhere."""
        if self._file is None or not self._file.exists():
            place = tempfile.mkdtemp(prefix="dynprof-")
            weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
            self.write(Path(place, f"trace.{self.suffix}.gz"))
        return self._file or Path()

    def _save(self, path: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".dynprof-", dir=path.parent) as place:
            raw, whole = Path(place, "raw"), Path(place, "whole")
            saved = self.recording.save(raw)
            self.recording.companions.save(_stem(path))
            if saved.folder:
                folder = Path(shutil.move(raw.with_name(saved.folder), path.parent))
                text = f"what an NPU recorded is the folder {folder}; torch_npu's analyse()"
                caution(f"{text} makes traces and tables from it")
                return
            with raw.open("rb") as source, open_private(whole) as sink:
                pack(
                    source,
                    sink,
                    name=path.name,
                    first_members={**self.members, **saved.facts},
                    on_chunk=lambda: None,
                    events=self.recording.companions.events(),
                    compress=path.suffix == ".gz",
                )
            whole.replace(path)

    @property
    def members(self) -> dict[str, Any]:
        """What is added to the trace's JSON object, the script's metadata as torch adds it."""
        metadata = self.manifest.request.config.get("metadata", {})
        own = {"version": self.manifest.dynprof, "steps": self.manifest.steps.model_dump()}
        as_torch = metadata.items() if isinstance(metadata, dict) else ()
        members = {key: value for key, value in as_torch if key not in RESERVED}
        return {**members, "dynprof": own, "metadata": metadata}


def _stem(path: Path) -> Path:
    """Return what the paths of other files beside a trace begin with."""
    name = path.name
    for suffix in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return path.with_name(name)


def _copy(source: Path, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    read, write = (gzip.open if file.suffix == ".gz" else open for file in (source, path))
    with read(source, "rb") as raw, write(temporary, "wb") as copied:
        shutil.copyfileobj(raw, copied)
    temporary.replace(path)
