"""``python -m dynprof.captures.sender < ORDER``: started by the training process, sends a capture.

Whatever keeps it from that ends it, and is the last thing that it says. A person types
``python -I -m dynprof.captures.sender FOLDER TARGET`` for captures that no job sends any more.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import sys
import tempfile
from pathlib import Path, PurePath

from dynprof.captures.deliveries import DELIVERED, remove_if_empty, try_timeout_s
from dynprof.captures.delivery_order import Order, files_of, renamed
from dynprof.captures.delivery_targets import Target, target_of
from dynprof.captures.manifest import MAX_BYTES, load_manifest
from dynprof.errors import describe
from dynprof.journal.journal import printable
from dynprof.runtime.acting_user import act_as_owner
from dynprof.runtime.destination import OUTGOING, is_url, why_no_destination
from dynprof.runtime.file_size_limit import limit_file_size, with_size_limit
from dynprof.runtime.layout import INFO_DIR, MANIFESTS, METADATA, RANK_NAME, own_metadata
from dynprof.runtime.safe_open import folder_below, open_below, read_regular
from dynprof.runtime.stale_folders import folder_lock

SPARE_S = 5
"""The job ends a try that hangs first, and says so."""
_MANIFEST = re.compile(rf"info/({RANK_NAME})(?:\.[0-9]+)?\.info\.json")


def main(text: str) -> None:
    """Send what an order names; say where its last file lies.

    Raises:
        Exception: Of whatever kind the target's file system has.
    """
    os.nice(10)
    send(Order.from_text(text))


def send_all(folder: Path, target: str) -> None:
    """Send the captures in a folder to one of the same kind: a directory, or a URL.

    Raises:
        Exception: As :func:`main` does; also where a job is about to send them.
    """
    if why := why_no_destination(target):
        raise ValueError(why)
    folder, place = folder.resolve(), target if is_url(target) else str(Path(target).resolve())
    with folder_lock(folder.parent) as acquired:
        if not acquired:
            raise BlockingIOError(f"a process that is alive sends what lies in {folder.parent}")
        for path in sorted(folder.glob(f"{INFO_DIR}/{MANIFESTS}")):
            files = files_of(path, load_manifest(path))
            send(Order(str(folder), files, place, str(folder), (place,), False, 0))
    if folder.parent.parent.name == OUTGOING:  # else somebody may want it
        remove_if_empty(folder.parent)


def send(order: Order) -> None:
    """Send what an order names, unless another process is at it."""
    with folder_lock(Path(order.folder, order.files[-1]).parent) as acquired:
        if not acquired:
            raise BlockingIOError(f"another process is sending what lies in {order.folder}")
        _send(order)


def _send(order: Order) -> None:
    if _is_same_folder(order):
        raise FileExistsError(f"what lies in {order.folder} is there already")
    target, last = target_of(order), order.files[-1]
    if _MANIFEST.fullmatch(last) and not order.keeps:
        last = _put_capture(order, target)
    else:
        for file in order.files:
            _put(order, target, file, file)
    # Its exit code may get lost. Said before anything is removed: else, where it cannot be said, it
    # would be nowhere as far as anybody knows.
    print(f"{DELIVERED}{target.where(last)}", file=sys.stderr, flush=True)
    if not order.keeps:
        with contextlib.suppress(OSError):
            _remove(Path(order.folder), order.files)


def _put_capture(order: Order, target: Target) -> str:
    """Put the files there under names that no other capture has; return that of its manifest.

    Others choose theirs once all that has this one's is there. Nobody waits for the trace, whose
    name is no other's anyway.
    """
    stem = Path(order.files[-1]).name.removesuffix(".info.json")
    own = (f"{INFO_DIR}/{stem}.", METADATA, own_metadata(stem))
    named = [file for file in order.files if file.startswith(own)]
    for file in order.files:
        if file not in named:
            _put(order, target, file, file)
    with target.locked():
        free = _free_stem(order, target)
        for file in named:
            if file == METADATA and _is_others(order, target, file):
                _put(order, target, file, own_metadata(free))
            else:
                _put(order, target, file, renamed(file, stem, free))
    return renamed(order.files[-1], stem, free)


def _is_others(order: Order, target: Target, file: str) -> bool:
    """Return whether a file of this name is there that holds something else."""
    there = target.content(file)
    return there is not None and there != read_regular(Path(order.folder, file), MAX_BYTES)


def _put(order: Order, target: Target, file: str, name: str) -> None:
    # Others may write where captures lie: none of theirs is sent in the name of the job's user.
    with open_below(Path(order.folder), PurePath(file)) as source:
        target.put(source, name)


def _is_same_folder(order: Order) -> bool:
    """Return whether both are one folder, by whatever names: it would be removed once sent."""
    with contextlib.suppress(FileNotFoundError):
        return not is_url(order.target) and Path(order.target).samefile(order.folder)
    return False


def _free_stem(order: Order, target: Target) -> str:
    """Return what the names of a capture's files begin with, where no other capture has it.

    Where this one is there already, it arrived, and nobody was told.
    """
    own = read_regular(Path(order.folder, order.files[-1]), MAX_BYTES)
    found = _MANIFEST.fullmatch(order.files[-1])
    stem = first = found[1] if found else ""
    copy = 1
    while (existing := target.content(f"info/{stem}.info.json")) is not None and existing != own:
        copy += 1
        stem = f"{first}.{copy}"
    return stem


def _remove(folder: Path, files: tuple[str, ...]) -> None:
    """Remove what has been sent, and the folders that are empty then."""
    for file in map(PurePath, files):
        with contextlib.suppress(FileNotFoundError), folder_below(folder, file.parent) as below:
            os.unlink(file.name, dir_fd=below)
    emptied = {parent for file in files for parent in Path(folder, file).parents}
    for place in sorted(emptied, key=lambda place: len(place.parts), reverse=True):
        if place.is_relative_to(folder):
            with contextlib.suppress(OSError):
                place.rmdir()


def _end_in_time(order: Order) -> None:
    """End a try that hangs, as the job does, also where that has ended meanwhile."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the job may ignore it
    signal.alarm(math.ceil(try_timeout_s(order)) + SPARE_S)


def _limit_files(order: Order) -> None:
    """Let none of its files fill the disk, though the one that it copies grow without end."""
    place = tempfile.gettempdir() if is_url(order.target) else order.target
    limit_file_size(Path(place), order.least_free_mb or 0.0)


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def _end(_: object, error: BaseException, __: object) -> None:
    """Say why it did not work, in one line: the last counts, and a store may answer anything."""
    _say(with_size_limit(error, describe(error)))
    os._exit(1)  # a cloud's package may have something to say at its end, or never come to it


if __name__ == "__main__":
    sys.excepthook = _end
    if len(sys.argv) > 2:
        folder = act_as_owner(Path(sys.argv[1]), printable, module="dynprof.captures.sender")
        send_all(folder, sys.argv[2])
    else:
        text = sys.stdin.read()
        _end_in_time(Order.from_text(text))
        _limit_files(Order.from_text(text))
        main(text)
    os._exit(0)  # as above
