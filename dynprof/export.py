"""The exporter: turns a stopped recording into files, on a thread of its own."""

from __future__ import annotations

import json
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.diskguard import DiskGuard
from dynprof.errors import describe
from dynprof.layout import make_dir, open_private, write_atomic
from dynprof.packing import pack
from dynprof.switching import brisk_switching

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue

    from dynprof.backends.base import Recording
    from dynprof.capture import Manifest
    from dynprof.layout import Layout

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
        least_free_mb: How many MB (10^6 bytes) must stay free on the disk; None for no limit.
        on_end: Called with the manifest's path and the finished manifest.
    """

    recording: Recording | None
    manifest: Manifest
    folder: Path
    trace_name: str
    layout: Layout
    least_free_mb: float | None
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
        manifest = manifests[-1].finished(
            save_ms=(time.monotonic() - began_s) * 1e3,
            failure=f"saving failed: {describe(error)}" if error else "",
        )
        path = export.layout.manifest(export.folder)
        error = self._attempt("writing the manifest", lambda: manifest.save(path))
        if error:
            manifest = manifest.finished(
                save_ms=0, failure=f"its manifest is missing: {describe(error)}"
            )
        self._idle.set()
        self._attempt("ending the export", lambda: export.on_end(path, manifest))


def _save_files(export: Export) -> Manifest:
    """Save in a folder of its own, where no reader looks, then move the trace out."""
    path = export.layout.manifest(export.folder)
    make_dir(path.parent)
    export.manifest.begun().save(path)
    metadata = json.dumps(_user_metadata(export.manifest), indent=2)
    write_atomic(export.layout.metadata(export.folder), metadata + "\n")
    if export.recording is None:
        return export.manifest
    workplace = export.layout.workplace(export.folder)
    shutil.rmtree(workplace, ignore_errors=True)
    make_dir(workplace)
    try:
        return _save_trace(export, export.recording, workplace)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _save_trace(export: Export, recording: Recording, workplace: Path) -> Manifest:
    raw, packed = workplace / export.trace_name, workplace / f"{export.trace_name}.gz"
    guard = DiskGuard(workplace, export.least_free_mb)
    with guard.watch():
        saved = recording.save(raw)
    with guard.watch(), raw.open("rb") as source, open_private(packed) as sink:
        facts = {**_facts(export.manifest), **saved.facts}
        pack(source, sink, name=export.trace_name, first_members=facts, on_chunk=guard.check)
    manifest = export.manifest.model_copy(
        update={
            "trace": packed.name,
            "trace_bytes": packed.stat().st_size,
            "trace_bytes_raw": raw.stat().st_size,
            "lost": saved.lost,
        }
    )
    packed.rename(export.folder / packed.name)
    return manifest


def _facts(manifest: Manifest) -> dict[str, object]:
    """Return who recorded a trace, and the user's metadata."""
    return {
        "dynprof": {"version": manifest.dynprof, "steps": manifest.steps.model_dump()},
        "metadata": _user_metadata(manifest),
    }


def _user_metadata(manifest: Manifest) -> JsonValue:
    return manifest.request.config.get("metadata", {})
