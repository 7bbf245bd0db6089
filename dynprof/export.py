"""The exporter: turns a stopped recording into files, on a thread of its own."""

from __future__ import annotations

import gzip
import json
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from dynprof.errors import BackendError
from dynprof.layout import make_dir, open_private, write_atomic
from dynprof.switching import brisk_switching

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue

    from dynprof.backends.base import Recording
    from dynprof.capture import Manifest
    from dynprof.layout import Layout

GZIP_LEVEL = 1
"""Writes about 200 MB/s; higher levels save little on traces."""

Attempt = Callable[[str, Callable[[], object]], Exception | None]


@dataclass(frozen=True)
class Export:
    """One recording on its way to disk.

    Attributes:
        recording: The stopped recording; None where nothing was recorded.
        manifest: What is known about it before saving.
        folder: The window's folder.
        trace_name: The trace's file name, without compression.
        layout: Names the other files.
        on_end: Called with the manifest's path and the finished manifest.
    """

    recording: Recording | None
    manifest: Manifest
    folder: Path
    trace_name: str
    layout: Layout
    on_end: Callable[[Path, Manifest], None]


class Exporter:
    """Saves one recording at a time.

    Args:
        attempt: Runs an action; returns the exception that it ended with, after noting it.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._exports: queue.SimpleQueue[Export | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="dynprof-export", daemon=True)

    @property
    def busy(self) -> bool:
        """Whether a recording is being saved."""
        return not self._idle.is_set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, export: Export) -> None:
        """Take a stopped recording over; returns at once."""
        self._idle.clear()
        self._exports.put(export)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is being saved; False if that took longer than ``timeout_s``."""
        return self._idle.wait(timeout_s)

    def stop(self) -> None:
        """End the thread once it has saved what it was given."""
        self._exports.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while (export := self._exports.get()) is not None:
            with brisk_switching():
                self._export(export)
            del export  # the recording holds the events of the whole window

    def _export(self, export: Export) -> None:
        """Save what can be saved; the manifest comes last and says what is there."""
        began_s = time.monotonic()
        manifests = [export.manifest]
        error = self._attempt("saving the capture", lambda: manifests.append(_save_files(export)))
        failed = f"saving failed: {type(error).__name__}: {error}"
        manifest = manifests[-1].finished(
            save_ms=(time.monotonic() - began_s) * 1e3, failure=failed if error else ""
        )
        path = export.layout.manifest(export.folder)
        error = self._attempt("writing the manifest", lambda: manifest.save(path))
        if error:
            manifest = manifest.finished(save_ms=0, failure=f"its manifest is missing: {error}")
        self._idle.set()
        self._attempt("ending the export", lambda: export.on_end(path, manifest))


def _save_files(export: Export) -> Manifest:
    metadata = export.layout.metadata(export.folder)
    make_dir(metadata.parent)
    write_atomic(metadata, json.dumps(_user_metadata(export.manifest), indent=2) + "\n")
    if export.recording is None:
        return export.manifest
    return _save_trace(export, export.recording, metadata.parent)


def _save_trace(export: Export, recording: Recording, workplace: Path) -> Manifest:
    """Save and compress in ``workplace``, where no reader looks, then move the trace out."""
    raw = workplace / f".{export.trace_name}"
    packed = workplace / f".{export.trace_name}.gz.tmp"
    try:
        lost = recording.save(raw)
        with raw.open("rb") as source, open_private(packed) as sink:
            with gzip.GzipFile(export.trace_name, "wb", GZIP_LEVEL, sink, mtime=0) as file:
                _copy_with_facts(source, file, export.manifest)
            packed_bytes = sink.tell()
        raw_bytes = raw.stat().st_size
        packed.rename(export.folder / f"{export.trace_name}.gz")
    finally:
        raw.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)
    return export.manifest.model_copy(
        update={
            "trace": f"{export.trace_name}.gz",
            "trace_bytes": packed_bytes,
            "trace_bytes_raw": raw_bytes,
            "lost": lost,
        }
    )


def _copy_with_facts(source: BinaryIO, sink: gzip.GzipFile, manifest: Manifest) -> None:
    """Copy a trace, adding who recorded it and the user's metadata as its first members.

    Not through the profiler: Kineto does not escape what it is given. Without spaces, so that
    HolisticTraceAnalysis, which searches for ``"rank": ``, finds the one in distributedInfo.
    """
    facts: dict[str, object] = {
        "dynprof": {"version": manifest.dynprof, "steps": manifest.steps.model_dump()},
        "metadata": _user_metadata(manifest),
    }
    head, brace, rest = source.read(64).partition(b"{")
    if head.strip() or not brace:
        raise BackendError("the profiler did not write a JSON object")
    sink.write(brace + json.dumps(facts, separators=(",", ":")).encode()[1:-1] + b"," + rest)
    shutil.copyfileobj(source, sink, 1 << 20)


def _user_metadata(manifest: Manifest) -> JsonValue:
    return manifest.request.config.get("metadata", {})
