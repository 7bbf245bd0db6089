"""Whether the stack has room for what dynprof does within a step."""

from __future__ import annotations

import signal
import sys

import pytest

from dynprof.process import stack_room
from dynprof.process.stack_room import FRAMES, has_room


def deep(frames: int) -> bool:
    """Return what is said below so many frames."""
    return deep(frames - 1) if frames else has_room()


def test_a_stack_that_is_nearly_full_has_none() -> None:
    """Nor does asking raise there."""
    depth, frame = 0, sys._getframe()
    while frame.f_back:
        depth, frame = depth + 1, frame.f_back
    assert has_room()
    assert not deep(sys.getrecursionlimit() - depth - FRAMES // 2)


@pytest.mark.parametrize("kind", [RecursionError, MemoryError, TimeoutError])
def test_what_a_handler_raises_while_it_is_asked_is_the_scripts(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """Also where it is what a full stack raises."""

    def handler(*_: object) -> None:
        raise kind

    before = signal.signal(signal.SIGUSR1, handler)
    monkeypatch.setattr(sys, "getrecursionlimit", lambda: FRAMES)
    monkeypatch.setattr(stack_room, "_grow", lambda _: signal.raise_signal(signal.SIGUSR1))
    try:
        with pytest.raises(kind):
            has_room()
    finally:
        signal.signal(signal.SIGUSR1, before)
