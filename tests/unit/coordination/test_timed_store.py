"""A store that does not answer is noticed from outside, and its late answer is none."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import SimpleNamespace

import pytest

from dynprof.coordination.job_store import value_of
from dynprof.coordination.timed_store import TimedStore
from tests.memory_store import MemoryStore
from tests.pace import patience_s


class Stopped(MemoryStore):
    """A store whose host stands still until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Answer once it goes on."""
        self.asked.set()
        assert self.go_on.wait(patience_s())
        return super().compare_set(key, expected, desired)


def test_a_call_that_does_not_come_back_is_seen() -> None:
    """Another thread looks on; given up, it fails as soon as it comes back.

    A minute in which nobody could look was no silence of the store's: this process was stopped.
    """
    now_s, stopped = [100.0], Stopped()
    store = TimedStore(lambda: stopped, lambda: now_s[0])
    errors: list[str] = []

    def ask() -> None:
        try:
            value_of(store, "a")
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
        value_of(store, "a")


class Remote(MemoryStore):
    """A store behind a prefix that is connected to by way of a socket, as a process group's is.

    Attributes:
        underlying_store: The one without the prefix, which knows where its server is.
        sockets: Its connections.
    """

    def __init__(self) -> None:
        super().__init__()
        self.underlying_store = SimpleNamespace(port=0)

    def connect(self, *servers: socket.socket) -> Remote:
        """Connect to all of them; it is at the last."""
        self.underlying_store.port = servers[-1].getsockname()[1]
        self.sockets = [socket.create_connection(one.getsockname()) for one in servers]
        return self


def test_a_store_whose_server_has_gone_is_called_no_more() -> None:
    """Torch would write a page on the job's stderr at each call."""
    there, here = Remote(), ("127.0.0.1", 0)
    with contextlib.ExitStack() as ends:
        other, server = [ends.enter_context(socket.create_server(here)) for _ in range(2)]
        store = TimedStore(lambda: there.connect(other, server))
        store.set("a", "1")
        for one in there.sockets:
            ends.enter_context(one)
        other.accept()[0].close()
        assert value_of(store, "a") == b"1"
        server.accept()[0].close()
        with pytest.raises(RuntimeError, match="the job's store is gone"):
            value_of(store, "a")
    assert there.calls == 2
