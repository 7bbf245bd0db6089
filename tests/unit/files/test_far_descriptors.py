"""Descriptors out of the way of a script that closes by number and opens its own."""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING

import pytest

from dynprof.files import far_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WRITES = os.O_WRONLY | os.O_CREAT


def _number_of_the_next() -> int:
    number = os.open(os.devnull, os.O_RDONLY)
    os.close(number)
    return number


def test_what_is_opened_takes_no_low_number(tmp_path: Path) -> None:
    """The script's next file gets the number that it would get without, and the file is the one."""
    before = _number_of_the_next()
    descriptor = far_descriptors.opened(tmp_path / "log", WRITES, 0o600)
    try:
        assert descriptor > before + 100
        assert _number_of_the_next() == before
        assert not os.get_inheritable(descriptor)
        os.write(descriptor, b"line")
    finally:
        os.close(descriptor)
    assert (tmp_path / "log").read_bytes() == b"line"


@pytest.mark.parametrize("allowed", [64, 140, 256, 1024, 1 << 20, resource.RLIM_INFINITY])
def test_however_few_a_process_may_have(
    allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that the process may have, and none of the standard streams."""
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (allowed, allowed))
    descriptor = far_descriptors.opened(tmp_path / "log", WRITES, 0o600)
    os.close(descriptor)
    assert descriptor > far_descriptors.LAST_STREAM
    assert descriptor < (allowed if allowed > 0 else 4096)


def test_what_a_library_opens_has_numbers_of_its_own(tmp_path: Path) -> None:
    """Closed by the script, it is no file of ours that the library goes on to read."""
    moved = [far_descriptors.moved_far(os.open(os.devnull, os.O_RDONLY)) for _ in range(3)]
    for number in moved:
        os.close(number)
    opened = [far_descriptors.opened(tmp_path / "log", WRITES, 0o600) for _ in range(8)]
    for number in opened:
        os.close(number)
    assert not set(moved) & set(opened)
    assert min(moved) > 100


@pytest.mark.parametrize("before", [False, True])
def test_a_script_that_takes_the_number_meanwhile(
    *, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has opened there is neither closed nor written to."""
    far_from: Callable[[int, int], int] = far_descriptors._far_from
    checkpoint = os.open(tmp_path / "checkpoint", WRITES, 0o600)

    def taken(near: int, room: int) -> int:
        if before:
            os.dup2(checkpoint, near)
        far = far_from(near, room)
        os.dup2(checkpoint, near)
        numbers.append(near)
        return far

    numbers: list[int] = []
    monkeypatch.setattr(far_descriptors, "_far_from", taken)
    try:
        if before:
            with pytest.raises(OSError, match="log") as raised:
                far_descriptors.opened(tmp_path / "log", WRITES, 0o600)
            assert raised.value.errno == errno.EBADF
        else:
            descriptor = far_descriptors.opened(tmp_path / "log", WRITES, 0o600)
            os.write(descriptor, b"line")
            os.close(descriptor)
            assert (tmp_path / "log").read_bytes() == b"line"
        os.write(numbers[0], b"weights")
        assert (tmp_path / "checkpoint").read_bytes() == b"weights"
    finally:
        for number in (checkpoint, *numbers):
            os.close(number)
