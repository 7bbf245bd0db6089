"""The exporter: turns a stopped recording into files, on a thread of its own."""

from __future__ import annotations

import contextlib
import errno
import json
import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dynprof.backends.base import discard
from dynprof.captures.disk_guard import DiskGuard
from dynprof.captures.trace_packing import pack
from dynprof.errors import describe
from dynprof.files.layout import METADATA, VENDORS_FOLDER, own_metadata
from dynprof.files.output import PrivateFolder, write_atomic, write_if_absent
from dynprof.files.regular import read_regular
from dynprof.process.memory import give_back, grown_mb
from dynprof.process.thread_switching import brisk_switching
from dynprof.process.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic import JsonValue

    from dynprof.backends.base import Recording, Saved
    from dynprof.captures.manifest import Manifest
    from dynprof.files.layout import Layout

KEPT_MB = 500.0
"""So much a capture may leave with the allocator, for the next one."""

Attempt = Callable[[str, Callable[[], object]], Exception | None]


@dataclass(eq=False)
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
        compress: Whether the trace becomes a ``.gz``.
        members: What is added to the trace's JSON object; left out, who recorded it and the
            user's metadata.
        wait_s: Returns how long it is to wait until others have written, in seconds; None: not.
        is_taken: Whether it has come to be saved: it may be submitted again.
        copy: Tells its files from those of other captures of the same steps by the same rank;
            0 until its folder is made.
        workplace: Where the trace is put together; None until that begins.
        token: Tells that folder from those of other captures.
    """

    recording: Recording | None
    manifest: Manifest
    folder: Path
    trace_name: str
    layout: Layout
    least_free_mb: float | None
    on_end: Callable[[Path, Manifest], None]
    compress: bool = True
    members: Mapping[str, object] | None = None
    wait_s: Callable[[], float] | None = None
    is_taken: bool = False
    copy: int = 0
    workplace: PrivateFolder | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def manifest_path(self) -> Path:
        """Where its manifest lies."""
        return self.layout.manifest(self.folder, self.copy)


INTERRUPTED = "saving was interrupted"
"""The reason of a capture that a script's Ctrl-C has ended."""


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
        self._hurry = threading.Event()
        self._publishing = threading.Lock()
        self._given_up = False
        self._thread = own_thread(self._run, "dynprof-export")

    @property
    def busy(self) -> bool:
        """Whether a recording is being saved."""
        return not self._idle.is_set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, export: Export) -> None:
        """Take a stopped recording over; returns at once. A second time has no effect."""
        self._idle.clear()
        self._newest = export
        self._exports.put(export)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is being saved; False if that took longer than ``timeout_s``."""
        return self._idle.wait(timeout_s)

    def hurry(self) -> None:
        """Wait for no other rank any more."""
        self._hurry.set()

    def abandon(self, reason: str) -> Manifest | None:
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

    def save_now(self, export: Export) -> None:
        """Save on the calling thread; Ctrl-C and the like pass, and leave nothing half done."""
        self._newest, is_interrupted = export, True
        try:
            self._export(export)
            is_interrupted = False
        finally:
            if is_interrupted:
                failed = export.manifest.finished(save_ms=0, failure=INTERRUPTED)
                self._publish(export, failed)

    def _run(self) -> None:
        while (export := self._exports.get()) is not None:
            before_mb = grown_mb()
            try:
                if not export.is_taken:
                    export.is_taken = True
                    self._leave_to_others(export)
                    self._export(export)
            finally:  # also where memory is wanting for what lies around these
                self._rest(export)
            del export  # the recording holds the events of the whole window
            if grown_mb(before_mb) > KEPT_MB:
                give_back()

    def _leave_to_others(self, export: Export) -> None:
        if wait_s := export.wait_s:
            self._attempt("waiting for other ranks", lambda: self._hurry.wait(wait_s()))

    def _export(self, export: Export) -> None:
        began_s = time.monotonic()
        made = [export.manifest]
        error = self._attempt("saving the capture", lambda: made.append(_save_files(export)))
        recording = export.recording
        if error and recording:  # it may not have come to saving, and nobody else has it
            self._attempt("discarding the recording", lambda: discard(recording))
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
        workplace = export.workplace
        if workplace and (name := manifest.trace):
            error = self._attempt(
                "moving the trace", lambda: workplace.give(name, export.folder / name)
            )
            if error:
                manifest = manifest.without_trace(f"its trace is missing: {describe(error)}")
        if workplace:
            workplace.remove(is_in_use=self._given_up)
        if error := self._attempt("writing the manifest", lambda: _save_manifest(export, manifest)):
            manifest = manifest.without_trace(f"its manifest is missing: {describe(error)}")
            _remove_empty(export)
        self._rest(export)
        return manifest

    def _rest(self, export: Export) -> None:
        if self._newest is export or self._given_up:
            self._newest = None
            self._idle.set()

    def _tell(self, export: Export, manifest: Manifest) -> None:
        export.on_end(export.manifest_path, manifest)


def _remove_empty(export: Export) -> None:
    """Remove the folders of a capture of which nothing could be written; a script's own stays."""
    with contextlib.suppress(OSError):  # another rank has written there
        export.manifest_path.parent.rmdir()
        if export.folder.name.startswith("step_") or export.folder.name.endswith(VENDORS_FOLDER):
            export.folder.rmdir()


def _save_manifest(export: Export, manifest: Manifest) -> None:
    if not export.copy:
        _claim(export)
    manifest.save(export.manifest_path)
    if export.folder.name.endswith(VENDORS_FOLDER):
        manifest.save_profiler_info(export.folder)


def _save_files(export: Export) -> Manifest:
    """Save into the workplace, where no reader looks; return the manifest with the trace in it."""
    with brisk_switching():
        _write_folder_files(export)
    if export.workplace is None or export.recording is None:
        return export.manifest
    return _save_trace(export, export.recording, export.workplace)


def _write_folder_files(export: Export) -> None:
    """Make the folders, and write what is known before the trace is there."""
    _claim(export)
    if (metadata := _user_metadata(export.manifest)) and export.manifest.backend != "npu":
        _write_metadata(export, json.dumps(metadata, indent=2) + "\n")
    export.workplace = PrivateFolder(export.layout.workplace(export.folder, export.token))


def _write_metadata(export: Export, text: str) -> None:
    """Write the vendor's file next to the trace; an NPU's capture has its own.

    All ranks of a window have the metadata of its config: they share one file. A capture with
    other metadata, such as a rank's of a script, leaves it alone and writes a file of its own,
    unless the newest one of its rank has the same.
    """
    shared = export.folder / METADATA
    if write_if_absent(shared, text) or _is_content(shared, text):
        return
    own = [_own_metadata(export, copy) for copy in range(export.copy, 0, -1)]
    newest = next((path for path in own if path.exists()), None)
    if newest is None or not _is_content(newest, text):
        write_atomic(own[0], text)


def _own_metadata(export: Export, copy: int) -> Path:
    return export.folder / own_metadata(export.layout.stem(export.folder, copy).name)


def _is_content(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError):
        return read_regular(path, len(text.encode())) == text.encode()
    return False


def _look_for_root(export: Export) -> None:
    """Raise where the directory was removed or moved away, which nobody wants made anew."""
    root = export.layout.root
    if root in export.folder.parents and not root.exists():
        raise FileNotFoundError(errno.ENOENT, "the directory of the config is gone", str(root))


def _claim(export: Export) -> None:
    """Make the folders, take the first manifest's name that is free, and say there that it began.

    Raises:
        OSError: The folders cannot be had: a symbolic link is in the way, or a file.
    """
    _look_for_root(export)
    export.layout.make_dir(export.manifest_path.parent)
    begun, copy = export.manifest.begun().to_text(), 1
    while not write_if_absent(export.layout.manifest(export.folder, copy), begun):
        copy += 1
    export.copy = copy


def _save_trace(export: Export, recording: Recording, workplace: PrivateFolder) -> Manifest:
    raw = workplace.path / export.trace_name
    packed = raw.with_name(f"{export.trace_name}.gz" if export.compress else f"{raw.name}.whole")
    guard = DiskGuard(workplace.path, export.least_free_mb)
    with guard.watch():
        saved = recording.save(raw)
        more = recording.companions.save(export.layout.stem(export.folder, export.copy))
    saved = replace(saved, lost=(*saved.lost, *more))
    if saved.cut:
        export.manifest = export.manifest.saved_less(saved.cut, saved.lost_steps, saved.first_whole)
    if saved.folder:
        return _with_trace(export, workplace.path / saved.folder, raw_bytes=None, saved=saved)
    facts = {**(export.members or _facts(export.manifest)), **saved.facts}
    with (
        brisk_switching(),
        guard.watch(),
        raw.open("rb") as source,
        workplace.create(packed.name) as sink,
    ):
        done = pack(
            source,
            sink,
            name=export.trace_name,
            first_members=facts,
            on_chunk=guard.check,
            events=recording.companions.events(),
            compress=export.compress,
        )
    saved = replace(saved, lost=(*saved.lost, *done.remarks()))
    if (cost := export.manifest.cost).events is not None and done.events:
        counted = cost.model_copy(update={"events": done.events})
        export.manifest = export.manifest.model_copy(update={"cost": counted})
    if faults := tuple(done.faults()):
        export.manifest = export.manifest.saved_less(faults, lost_steps=0, first_whole=0)
    raw_bytes = raw.stat().st_size
    if not export.compress:
        packed = packed.rename(raw)
    return _with_trace(export, packed, raw_bytes=raw_bytes, saved=saved)


def _with_trace(export: Export, trace: Path, *, raw_bytes: int | None, saved: Saved) -> Manifest:
    """Return the manifest with a trace in it, a file or a folder."""
    files = [trace] if trace.is_file() else [path for path in trace.rglob("*") if path.is_file()]
    size = sum(file.stat().st_size for file in files)
    return export.manifest.model_copy(
        update={
            "trace": trace.name,
            "trace_bytes": size,
            "trace_bytes_raw": size if raw_bytes is None else raw_bytes,
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
