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
from typing import TYPE_CHECKING

from dynprof.layout import make_dir, open_private, write_atomic

if TYPE_CHECKING:
    from pathlib import Path

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
            self._export(export)
            del export  # the recording holds the events of the whole window
            self._idle.set()

    def _export(self, export: Export) -> None:
        """Save what can be saved; the manifest comes last and says what is there."""
        began_s = time.monotonic()
        manifests = [export.manifest]
        error = self._attempt("saving the capture", lambda: manifests.append(_save_files(export)))
        failed = f"saving failed: {type(error).__name__}: {error}"
        manifest = manifests[-1].finished(
            save_ms=(time.monotonic() - began_s) * 1e3, failure=failed if error else ""
        )
        path = export.folder / export.layout.manifest_name
        self._attempt("writing the manifest", lambda: manifest.save(path))
        self._attempt("ending the export", lambda: export.on_end(path, manifest))


def _save_files(export: Export) -> Manifest:
    make_dir(export.folder)
    metadata = json.dumps(export.manifest.request.config.get("metadata", {}), indent=2) + "\n"
    write_atomic(export.folder / export.layout.metadata_name, metadata)
    return _save_trace(export)


def _save_trace(export: Export) -> Manifest:
    if export.recording is None:
        return export.manifest
    raw = export.folder / f".raw.{export.trace_name}"
    packed = export.folder / f".{export.trace_name}.gz"
    try:
        lost = export.recording.save(raw)
        raw_bytes = raw.stat().st_size
        with raw.open("rb") as source, open_private(packed) as sink:
            with gzip.GzipFile(export.trace_name, "wb", GZIP_LEVEL, sink, mtime=0) as file:
                shutil.copyfileobj(source, file, 1 << 20)
            packed_bytes = sink.tell()
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
