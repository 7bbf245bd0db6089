"""A store that does not answer is noticed from outside, and its late answer is none."""

from __future__ import annotations

import threading

import pytest

from dynprof.coordination.timed_store import TimedStore
from tests.memory_store import MemoryStore
from tests.pace import patience_s


class Stopped(MemoryStore):
    """A store whose host stands still until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()

    def check(self, keys: list[str]) -> bool:
        """Answer once it goes on."""
        self.asked.set()
        assert self.go_on.wait(patience_s())
        return super().check(keys)


def test_a_call_that_does_not_come_back_is_seen() -> None:
    """Another thread looks on; given up, it fails as soon as it comes back.

    A minute in which nobody could look was no silence of the store's: this process was stopped.
    """
    now_s, stopped = [100.0], Stopped()
    store = TimedStore(lambda: stopped, lambda: now_s[0])
    errors: list[str] = []

    def ask() -> None:
        try:
            store.check(["a"])
        except RuntimeError as error:
            errors.append(str(error))

    store.set("a", "1")
    assert store.look() == 0.0
    thread = threading.Thread(target=ask)
    thread.start()
    assert stopped.asked.wait(patience_s())
    seen = []
    for gap_s in (1.0, 1.0, 60.0, 1.0):
        now_s[0] += gap_s
        seen.append(store.look())
    assert seen == [0.0, 1.0, 3.0, 4.0]
    store.give_up()
    stopped.go_on.set()
    thread.join(patience_s())
    assert errors == ["the store answers too late"]
    assert store.look() == 0.0
    with pytest.raises(RuntimeError, match="too late"):
        store.get("a")
