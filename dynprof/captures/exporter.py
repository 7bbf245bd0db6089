"""The exporter turns a stopped recording into files, on its own thread."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dynprof.backends.base import discard
from dynprof.captures.trace_packing import pack
from dynprof.errors import CaptureError, DynprofError, describe
from dynprof.runtime.layout import METADATA, VENDORS_FOLDER, free_disk_mb, own_metadata
from dynprof.runtime.memory import grown_mb, release_free_memory
from dynprof.runtime.safe_open import read_regular
from dynprof.runtime.safe_write import PrivateFolder, write_atomic, write_if_absent
from dynprof.runtime.threads import fast_switching, own_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pydantic import JsonValue

    from dynprof.backends.base import Recording, Saved
    from dynprof.captures.manifest import Manifest
    from dynprof.runtime.layout import Layout

KEPT_MB = 500.0
"""Memory that a capture may leave in the allocator for the next one, in MB (10^6 bytes)."""

Attempt = Callable[[str, Callable[[], object]], Exception | None]
POLL_S = 0.2
"""Interval between checks, in seconds; a fast disk writes some 400 MB in it."""


@dataclass(eq=False)
class Export:
    """One recording on its way to disk.

    Attributes:
        recording: The stopped recording; None if nothing was recorded.
        manifest: The manifest; it has the outcome once the recording is saved or given up.
        folder: The window's folder.
        trace_name: The trace's file name, without the compression suffix.
        layout: Names the other files.
        least_free_mb: How many MB (10^6 bytes) must stay free on the disk; None for no limit.
        on_end: Called with the manifest's path and the finished manifest, unless it is given up.
        compress: Whether the trace becomes a ``.gz``.
        members: Members to add to the trace's JSON object, next to dynprof's facts and the user's
            metadata.
        wait_s: Returns how many seconds to wait until other ranks have written; None for no wait.
        copy: Number of this capture among those of the same steps and rank; 0 until its folder is
            made.
        saving_folder: Where the trace is put together; None until that begins.
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
    copy: int = 0
    saving_folder: PrivateFolder | None = None

    @property
    def manifest_path(self) -> Path:
        """The path of its manifest."""
        return self.layout.manifest(self.folder, self.copy)

    @property
    def trace_path(self) -> Path:
        """The path of its trace; the trace may be lost."""
        return self.folder / (self.manifest.trace or self.trace_name)


class Exporter:
    """Saves one recording at a time.

    Args:
        attempt: Runs an action, logs an exception, and returns it.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._submitted: list[Export] = []
        self._saving: Export | None = None
        self._hurry = threading.Event()
        self._publishing = threading.Lock()
        self._given_up = False
        self._thread = own_thread(self._serve, "dynprof-export")

    @property
    def busy(self) -> bool:
        """Whether a submitted recording is being saved or waits for it."""
        return bool(self._submitted)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, export: Export) -> None:
        """Take over a stopped recording, and return at once."""
        self._submitted.append(export)
        self._jobs.put(functools.partial(self.save, export))

    def run(self, doing: str, job: Callable[[], object]) -> None:
        """Run another job on the thread between two exports; takes no lock."""
        self._jobs.put(functools.partial(self._attempt, doing, job))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all submitted work is done; False after ``timeout_s``.

        Without a thread, as at the end of the interpreter, the caller does the work.
        """
        done = threading.Event()
        self._jobs.put(done.set)
        if not self._thread.is_alive():
            self._serve(blocks=False)
        return done.wait(timeout_s)

    def stop_waiting_for_ranks(self) -> None:
        """Stop waiting for other ranks."""
        self._hurry.set()

    def abandon(self, reason: str) -> list[Export]:
        """Give up all unsaved recordings and return them; each manifest says why.

        Only for the end of the process: the thread may be in a call that cannot be interrupted.
        """
        with self._publishing:
            self._given_up = True
            exports = self._submitted.copy()
            if self._saving and self._saving not in exports:
                exports.append(self._saving)
            for export in exports:
                failure = f"saving was given up: {reason}"
                self._publish(export, export.manifest.finished(save_ms=0, failure=failure))
            return exports

    def stop(self) -> None:
        """End the thread after it has reported the outcome of its last save."""
        if self._thread.is_alive():
            self._jobs.put(None)
            if not self._given_up:
                self._thread.join(timeout=5)

    def save(self, export: Export) -> None:
        """Save on the calling thread; interrupts such as Ctrl-C pass, and leave no partial file."""
        self._saving = export
        if wait_s := export.wait_s:
            self._attempt("waiting for other ranks", lambda: self._hurry.wait(wait_s()))
        began_s, failure = time.monotonic(), "saving was interrupted"
        try:
            error = self._attempt("saving the capture", lambda: self._save_files(export))
            failure = f"saving failed: {describe(error)}" if error else ""
            if error and export.recording:  # the failure may have come before save() was called
                action = functools.partial(discard, export.recording)
                self._attempt("discarding the recording", action)
        finally:
            self._end(export, (time.monotonic() - began_s) * 1e3, failure)

    def _serve(self, *, blocks: bool = True) -> None:
        with contextlib.suppress(queue.Empty):
            while (job := self._jobs.get(blocks)) is not None and not self._given_up:
                before_mb = grown_mb()
                job()
                del job  # the recording holds the events of the whole window
                if grown_mb(before_mb) > KEPT_MB:
                    release_free_memory()

    def _save_files(self, export: Export) -> None:
        try:
            _write_capture(export)
        except (OSError, DynprofError):
            if not self._given_up:  # else the folder is gone, and the loss is already reported
                raise

    def _end(self, export: Export, save_ms: float, failure: str) -> None:
        with self._publishing, fast_switching():
            if self._given_up:
                return
            self._publish(export, export.manifest.finished(save_ms=save_ms, failure=failure))
        path, manifest = export.manifest_path, export.manifest
        self._attempt("ending the export", lambda: export.on_end(path, manifest))

    def _publish(self, export: Export, manifest: Manifest) -> None:
        """Move the trace to its final path, then write the manifest, which names it."""
        saving_folder = export.saving_folder
        if saving_folder and (name := manifest.trace):
            error = self._attempt(
                "moving the trace", lambda: saving_folder.move_out(name, export.folder / name)
            )
            if error:
                manifest = manifest.without_trace(f"its trace is missing: {describe(error)}")
        if saving_folder:
            saving_folder.remove(is_in_use=self._given_up)
        if error := self._attempt("writing the manifest", lambda: _save_manifest(export, manifest)):
            manifest = manifest.without_trace(f"its manifest is missing: {describe(error)}")
            _remove_empty(export)
        export.manifest, export.recording, self._saving = manifest, None, None
        if export in self._submitted:
            self._submitted.remove(export)


def _remove_empty(export: Export) -> None:
    """Remove the folders of a capture of which nothing was written; a script's folder stays."""
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


def _write_capture(export: Export) -> None:
    """Save into the hidden folder, which no reader opens, and note the trace in the manifest."""
    with fast_switching():
        _claim(export)
        metadata = _user_metadata(export.manifest)
        if metadata and export.manifest.backend != "npu":
            _write_metadata(export, json.dumps(metadata, indent=2) + "\n")
        token = secrets.token_hex(4)  # two captures may be saved at the same time
        export.saving_folder = PrivateFolder(export.layout.saving_folder(export.folder, token))
    if export.recording:
        export.manifest = save_trace(
            export.recording,
            export.manifest,
            export.saving_folder,
            export.trace_name,
            stem=export.layout.stem(export.folder, export.copy),
            members=export.members,
            compress=export.compress,
            least_free_mb=export.least_free_mb,
        )


def _write_metadata(export: Export, text: str) -> None:
    """Write the vendor's metadata file next to the trace; an NPU's capture has its own.

    All ranks of a window share one file with the metadata of the config. A capture with other
    metadata, such as one that a script sets per rank, leaves that file alone. It writes its own
    file, unless the newest one of its rank has the same content.
    """
    shared = export.folder / METADATA
    if write_if_absent(shared, text) or _is_content(shared, text):
        return
    stems = [export.layout.stem(export.folder, copy) for copy in range(export.copy, 0, -1)]
    own = [export.folder / own_metadata(stem.name) for stem in stems]
    newest = next((path for path in own if path.exists()), None)
    if newest is None or not _is_content(newest, text):
        write_atomic(own[0], text)


def _is_content(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError):
        return read_regular(path, len(text.encode())) == text.encode()
    return False


def _claim(export: Export) -> None:
    """Make the folders, and write a manifest that says saving has begun under the first free name.

    Raises:
        OSError: The folders cannot be made: a symbolic link or a file is in the way.
    """
    root = export.layout.root
    if root in export.folder.parents and not root.exists():  # the user may have moved it away
        raise FileNotFoundError(errno.ENOENT, "the directory of the config is gone", str(root))
    export.layout.make_dir(export.manifest_path.parent)
    begun, copy = export.manifest.begun().to_text(), 1
    while not write_if_absent(export.layout.manifest(export.folder, copy), begun):
        copy += 1
    export.copy = copy


def save_trace(
    recording: Recording,
    manifest: Manifest,
    folder: PrivateFolder,
    name: str,
    *,
    stem: Path,
    members: Mapping[str, object] | None = None,
    compress: bool = True,
    least_free_mb: float | None = None,
) -> Manifest:
    """Write the trace of a recording into a folder; return the manifest with the trace.

    Args:
        recording: The stopped recording.
        manifest: The manifest so far.
        folder: The folder to write to.
        name: The trace's file name, without the compression suffix.
        stem: How the paths of other files of the recording begin.
        members: Members to add to the trace's JSON object, next to dynprof's facts and the user's
            metadata.
        compress: Whether the trace becomes a ``.gz``.
        least_free_mb: How many MB (10^6 bytes) must stay free on the disk; None for no limit.

    Raises:
        DynprofError: The trace could not be written whole.
        OSError: A file cannot be written.
    """
    raw = folder.path / name
    packed = raw.with_name(f"{name}.gz" if compress else f"{name}.whole")
    guard = DiskGuard(folder.path, least_free_mb)
    with guard.watch():
        saved = recording.save(raw)
        more = recording.collectors.save(stem)
    saved = replace(saved, lost=(*saved.lost, *more))
    if saved.cut:
        manifest = manifest.with_losses(saved.cut, saved.lost_steps, saved.first_whole)
    if saved.folder:
        return _with_trace(manifest, folder.path / saved.folder, raw_bytes=None, saved=saved)
    with (
        fast_switching(),
        guard.watch(),
        raw.open("rb") as source,
        folder.create(packed.name) as sink,
    ):
        done = pack(
            source,
            sink,
            name=name,
            first_members={**(members or {}), **_facts(manifest), **saved.facts},
            on_chunk=guard.check,
            events=recording.collectors.events(),
            compress=compress,
        )
    saved = replace(saved, lost=(*saved.lost, *done.remarks()))
    if manifest.cost.events is not None and done.events:
        counted = manifest.cost.model_copy(update={"events": done.events})
        manifest = manifest.model_copy(update={"cost": counted})
    if faults := tuple(done.faults()):
        manifest = manifest.with_losses(faults, lost_steps=0, first_whole=0)
    raw_bytes = raw.stat().st_size
    if compress:
        raw.unlink()
    else:
        packed = packed.rename(raw)
    return _with_trace(manifest, packed, raw_bytes=raw_bytes, saved=saved)


def _with_trace(
    manifest: Manifest, trace: Path, *, raw_bytes: int | None, saved: Saved
) -> Manifest:
    """Return the manifest with a trace, which is a file or a folder."""
    files = [trace] if trace.is_file() else [path for path in trace.rglob("*") if path.is_file()]
    size = sum(file.stat().st_size for file in files)
    return manifest.model_copy(
        update={
            "trace": trace.name,
            "trace_bytes": size,
            "trace_bytes_raw": size if raw_bytes is None else raw_bytes,
            "lost": saved.lost,
        }
    )


def _facts(manifest: Manifest) -> dict[str, object]:
    """Return the members that say who recorded a trace, and the user's metadata."""
    return {
        "dynprof": {"version": manifest.dynprof, "steps": manifest.steps.model_dump()},
        "metadata": _user_metadata(manifest),
    }


def _user_metadata(manifest: Manifest) -> JsonValue:
    return manifest.request.config.get("metadata", {})


class DiskGuard:
    """Watches the free space of one folder.

    Args:
        folder: The folder that is written to; its files are cut if space runs out.
        least_mb: How many MB (10^6 bytes) must stay free; None for no limit.
    """

    def __init__(self, folder: Path, least_mb: float | None) -> None:
        self._folder = folder
        self._least_mb = least_mb or 0.0
        self._free_mb = math.inf  # the least that was read: cutting the files makes room again
        self._cut = False

    def check(self) -> None:
        """Raise if too little space is free.

        Raises:
            CaptureError: Too little space is free.
        """
        if self._too_little():
            raise CaptureError(self._message())

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Watch while the body, which cannot be interrupted, writes into the folder.

        Truncates its files to zero bytes whenever too little space is free.

        Raises:
            CaptureError: Files were truncated, or the body failed and the disk is full.
        """
        self.check()
        done = threading.Event()
        thread = own_thread(self._poll, "dynprof-disk", done)
        with contextlib.suppress(RuntimeError):  # the interpreter is ending: it starts no threads
            thread.start()
        try:
            yield
        except (OSError, DynprofError) as error:
            if self._cut or self._read_free_mb() < 1:
                raise CaptureError(self._message()) from error
            raise
        finally:
            done.set()
        if self._cut:
            raise CaptureError(self._message())

    def _poll(self, done: threading.Event) -> None:
        while not done.wait(POLL_S):
            if self._too_little():
                self._cut = True
                self._cut_files()

    def _cut_files(self) -> None:
        with contextlib.suppress(OSError):  # the folder may have been removed
            for path in self._folder.iterdir():
                with contextlib.suppress(OSError):
                    os.truncate(path, 0)

    def _too_little(self) -> bool:
        return self._read_free_mb() < self._least_mb

    def _read_free_mb(self) -> float:
        free_mb = free_disk_mb(self._folder)
        self._free_mb = min(self._free_mb, free_mb)
        return free_mb

    def _message(self) -> str:
        free = f"{math.floor(self._free_mb):,} MB"
        if not self._least_mb:
            return f"the disk is full: {free} are free where the capture goes"
        return (
            f"the disk filled up while the capture was saved: {free} were free there, and "
            f"limits.min_free_disk_mb keeps {self._least_mb:,.0f} for the job"
        )
