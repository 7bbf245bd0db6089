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

    @property
    def workplace(self) -> Path:
        """Where the trace is put together."""
        return self.layout.workplace(self.folder)


class Exporter:
    """Saves one recording at a time.

    Args:
        attempt: Runs an action; returns the exception that it ended with, after noting it.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._exports: queue.SimpleQueue[Export | None] = queue.SimpleQueue()
        self._newest: Export | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._publishing = threading.Lock()
        self._given_up = False
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
        self._newest = export
        self._exports.put(export)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is being saved; False if that took longer than ``timeout_s``."""
        return self._idle.wait(timeout_s)

    def give_up(self, reason: str) -> Manifest | None:
        """Let go of what is being saved, if anything is; return its manifest, which says why.

        Only for the end of the process: the thread may be in a call that cannot be interrupted.
        """
        with self._publishing:
            export, self._newest = self._newest, None
            if export is None:
                return None
            self._given_up = True
            failed = export.manifest.finished(save_ms=0, failure=f"saving was given up: {reason}")
            return self._publish(export, failed)

    def stop(self) -> None:
        """End the thread, once it has told the outcome of what it saved."""
        self._exports.put(None)
        if self._thread.is_alive() and not self._given_up:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while (export := self._exports.get()) is not None:
            self._export(export)
            del export  # the recording holds the events of the whole window

    def _export(self, export: Export) -> None:
        began_s = time.monotonic()
        made = [export.manifest]
        error = self._attempt("saving the capture", lambda: made.append(_save_files(export)))
        with self._publishing, brisk_switching():
            if self._given_up:
                return
            manifest = made[-1].finished(
                save_ms=(time.monotonic() - began_s) * 1e3,
                failure=f"saving failed: {describe(error)}" if error else "",
            )
            manifest = self._publish(export, manifest)
        self._attempt("ending the export", lambda: self._tell(export, manifest))

    def _publish(self, export: Export, manifest: Manifest) -> Manifest:
        """Move the trace to its place, then write the manifest, which says what is there."""
        workplace, path = export.workplace, export.layout.manifest(export.folder)
        if name := manifest.trace:
            error = self._attempt(
                "moving the trace", lambda: (workplace / name).rename(export.folder / name)
            )
            if error:
                manifest = manifest.without_trace(f"its trace is missing: {describe(error)}")
        shutil.rmtree(workplace, ignore_errors=True)
        if error := self._attempt("writing the manifest", lambda: manifest.save(path)):
            manifest = manifest.without_trace(f"its manifest is missing: {describe(error)}")
        if self._newest is export or self._given_up:
            self._newest = None
            self._idle.set()
        return manifest

    def _tell(self, export: Export, manifest: Manifest) -> None:
        export.on_end(export.layout.manifest(export.folder), manifest)


def _save_files(export: Export) -> Manifest:
    """Save into the workplace, where no reader looks; return the manifest with the trace in it."""
    with brisk_switching():
        _furnish(export)
    if export.recording is None:
        return export.manifest
    return _save_trace(export, export.recording)


def _furnish(export: Export) -> None:
    """Make the folders, and write what is known before the trace is there."""
    path = export.layout.manifest(export.folder)
    make_dir(path.parent)
    export.manifest.begun().save(path)
    metadata = json.dumps(_user_metadata(export.manifest), indent=2)
    write_atomic(export.layout.metadata(export.folder), metadata + "\n")
    shutil.rmtree(export.workplace, ignore_errors=True)
    make_dir(export.workplace)


def _save_trace(export: Export, recording: Recording) -> Manifest:
    raw = export.workplace / export.trace_name
    packed = raw.with_name(f"{export.trace_name}.gz")
    guard = DiskGuard(export.workplace, export.least_free_mb)
    with guard.watch():
        saved = recording.save(raw)
    facts = {**_facts(export.manifest), **saved.facts}
    with brisk_switching(), guard.watch(), raw.open("rb") as source, open_private(packed) as sink:
        pack(source, sink, name=export.trace_name, first_members=facts, on_chunk=guard.check)
    return export.manifest.model_copy(
        update={
            "trace": packed.name,
            "trace_bytes": packed.stat().st_size,
            "trace_bytes_raw": raw.stat().st_size,
            "lost": saved.lost,
        }
    )


def _facts(manifest: Manifest) -> dict[str, object]:
    """Return who recorded a trace, and the user's metadata."""
    return {
        "dynprof": {"version": manifest.dynprof, "steps": manifest.steps.model_dump()},
        "metadata": _user_metadata(manifest),
    }


def _user_metadata(manifest: Manifest) -> JsonValue:
    return manifest.request.config.get("metadata", {})
