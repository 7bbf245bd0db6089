"""Connections to the job's store, made only where that is harmless, and the messages in it."""

from __future__ import annotations

import resource
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from dynprof.ranks.store import (
    KEPT,
    NO_MESSAGE,
    TIMEOUT,
    CannotServeError,
    JobGroup,
    Keys,
    LogReader,
    LogWriter,
    StoreLostError,
    group_to_agree_in,
    value_of,
    wait_for_notice,
)
from dynprof.runtime import rank
from dynprof.runtime.layout import Layout
from dynprof.runtime.rank import GROUP, Rank, find_rank
from dynprof.windows.process_context import ProcessContext
from tests.unit.ranks.memory_store import MemoryStore

if TYPE_CHECKING:
    import datetime


class TorchStore:
    """A fake of torch's store.

    Attributes:
        timeouts: The timeouts that were set.
    """

    def __init__(self, *, extended: bool = True) -> None:
        self._extended = extended
        self.timeouts: list[datetime.timedelta] = []

    def clone(self) -> TorchStore:
        """Return another connection."""
        return TorchStore()

    def has_extended_api(self) -> bool:
        """Return whether the store supports append()."""
        return self._extended

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Note the timeout."""
        self.timeouts.append(timeout)


def test_connections_are_separate_and_have_a_long_timeout() -> None:
    """The job's connection keeps its timeout; torch prints on stderr if a call times out."""
    of_job = TorchStore()
    mine = [connection._store for connection in JobGroup(1, 8, lambda: of_job).connect()]
    assert of_job not in mine
    assert [of_job.timeouts, *(one.timeouts for one in mine)] == [[], [TIMEOUT], [TIMEOUT]]


def test_roles_that_share_a_store_have_keys_of_their_own() -> None:
    """Each role of a shared store has its own leader and messages."""
    distributed = pytest.importorskip("torch.distributed", reason="torch is not installed")
    shared = distributed.TCPStore("127.0.0.1", 0, is_master=True)
    for role in ("", "trainer", "rollout"):
        connection = JobGroup(0, 2, lambda: shared, role).connect()[0]
        assert value_of(connection, Keys.leader) is None
        LogWriter(connection).begin(role)
    for role in ("", "trainer", "rollout"):
        calls, waits = JobGroup(1, 2, lambda: shared, role).connect()
        reader = LogReader(calls, waits)
        assert (reader.leader(), reader.place) == (role.encode(), 1)


def test_a_store_without_a_connection_is_away_without_a_call_of_torch() -> None:
    """Torch would print pages on stderr."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    store = TorchStore()
    store.host, store.port = "127.0.0.1", port  # type: ignore[attr-defined]
    with pytest.raises(StoreLostError, match=f"127.0.0.1:{port}: "):
        JobGroup(1, 8, lambda: store).connect()


def test_a_proxy_that_closes_connections_is_not_a_store() -> None:
    """A proxy accepts connections while its store is away; torch would try for half an hour."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        store = TorchStore()
        store.host, store.port = proxy.getsockname()  # type: ignore[attr-defined]
        closing = threading.Thread(target=lambda: proxy.accept()[0].close())
        closing.start()
        with pytest.raises(StoreLostError, match="it closes connections at once"):
            JobGroup(1, 8, lambda: store).connect()
        closing.join()


FILES = type("FileStore", (), {})()
WRAPPED = SimpleNamespace(underlying_store=SimpleNamespace(underlying_store=FILES))
"""A process group's store is always a PrefixStore, whose name helps no user."""


@pytest.mark.parametrize(
    ("store", "text"),
    [
        (object(), "the job's object supports no second connection"),
        (TorchStore(extended=False), "the job's TorchStore supports no second connection"),
        (WRAPPED, "the job's FileStore supports no second connection"),
        (None, "the job has left its process group"),
    ],
)
def test_a_store_that_cannot_serve_is_named(store: object, text: str) -> None:
    """A FileStore is one, and the store of a process group that no longer exists."""
    with pytest.raises(CannotServeError, match=text):
        JobGroup(1, 8, lambda: store).connect()


def test_a_store_that_may_run_out_of_files_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each rank's connection fills its limit of files, the job's own next one fails."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    JobGroup(1, 206, TorchStore).connect()
    with pytest.raises(CannotServeError, match=r"1024 files may be open here, .* 1,000 ranks"):
        JobGroup(1, 1000, TorchStore).connect()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    JobGroup(1, 100_000, TorchStore).connect()


class World:
    """A fake of torch's default group, which another thread destroys."""

    def rank(self) -> int:
        """Return rank 0."""
        return 0

    def size(self) -> int:
        """Return the number of ranks."""
        return 2

    def _get_sequence_number_for_group(self) -> int:
        raise ValueError("Default process group has not been initialized")


def torch_with_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a fake torch with such a group."""
    world, store = World(), TorchStore()
    c10d = SimpleNamespace(_get_default_store=lambda: store, _get_default_group=lambda: world)
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=world.rank,
        get_world_size=world.size,
        group=SimpleNamespace(WORLD=world),
        distributed_c10d=c10d,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.13.0+cpu"))
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)


def process(store: object = None) -> ProcessContext:
    """Return a process of a job of two ranks."""
    layout, rank = Layout(Path(), 0, "host", 42), Rank(0, 2, GROUP)
    return ProcessContext(layout, rank, (), store=store)


def test_a_group_that_is_being_destroyed_counts_no_collectives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread may destroy it at any moment."""
    torch_with_group(monkeypatch)
    group = group_to_agree_in(process())
    assert group
    assert group.collectives() is None


def test_a_child_does_not_take_part_in_its_parents_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child finds the group as if it were its own; one that it makes counts."""
    monkeypatch.setattr(rank, "_inherited", None)
    torch_with_group(monkeypatch)
    assert group_to_agree_in(process())
    assert find_rank() == Rank(0, 2, GROUP)
    rank.ignore_inherited_group()  # as in a child just after the fork
    assert group_to_agree_in(process()) is None
    assert find_rank().source != GROUP
    torch_with_group(monkeypatch)
    assert group_to_agree_in(process())
    assert find_rank() == Rank(0, 2, GROUP)


def test_no_rank_agrees_if_agreements_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``DYNPROF_AGREE=0`` each rank serves its own file."""
    torch_with_group(monkeypatch)
    processes = [process(), process(TorchStore())]
    assert all(map(group_to_agree_in, processes))
    monkeypatch.setenv("DYNPROF_AGREE", "0")
    assert not any(map(group_to_agree_in, processes))


def both() -> tuple[MemoryStore, LogWriter, LogReader]:
    """Return a store with a leader and a rank that listens."""
    store = MemoryStore()
    writer = LogWriter(store)
    writer.begin("hello")
    return store, writer, LogReader(store, store)


def test_messages_are_heard_in_order_from_the_place_of_joining() -> None:
    """Earlier messages are not heard; the leader's first message is kept separately."""
    _, writer, reader = both()
    assert reader.leader() == b"hello"
    places = [writer.send(text) for text in ("one", "two")]
    assert [reader.wait() for _ in places] == [(places[0], b"one"), (places[1], b"two")]


def test_an_empty_message_ends_the_wait_and_replaces_no_other() -> None:
    """The leader's next message has the place after it."""
    _, writer, reader = both()
    reader.end_wait(reader.place)
    place = writer.send("one")
    assert reader.wait() == (place - 1, NO_MESSAGE.encode())
    assert reader.wait() == (place, b"one")
    reader.end_wait(place)  # too late: it is not in the place of the message
    assert writer.send("two") == place + 1


def test_the_last_reply_wakes_the_leader() -> None:
    """Late replies wake it too."""
    store, writer, reader = both()
    place = writer.send("where?", has_replies=True)
    reader.reply(place, "1", 2)
    assert Keys.notice not in store.values
    reader.reply(place, "2", 2)
    wait_for_notice(store)
    reader.send_news("news")
    assert writer.take() == b"1\n2\nnews\n"
    assert writer.take() == b""
    reader.reply(place, "3", 2)
    wait_for_notice(store)
    assert writer.take() == b"3\n"


def test_only_the_newest_messages_stay_in_the_store() -> None:
    """This includes empty messages, and the messages of earlier leaders."""
    store, writer, reader = both()
    for number in range(3 * KEPT):
        if number == KEPT:
            writer.resign()
            writer = LogWriter(store)
        place = writer.send(str(number), has_replies=True)
        reader.reply(place, "", 1)
        writer.take()
        reader.end_wait(place + 1)
    assert len(store.values) < 3 * KEPT + 10


def test_a_rank_continues_after_a_deleted_message() -> None:
    """It was stopped between the wait and the read, and continues with the newest."""
    store, writer, reader = both()
    writer.send("one")
    store.wait = lambda *_: store.delete_key(Keys.message(reader.place))  # type: ignore
    assert reader.wait()[1] is None
    assert reader.place == writer.send("two")


def test_a_new_leader_continues_the_log_of_the_last_one() -> None:
    """Waiting ranks hear its first message."""
    store, writer, reader = both()
    for text in ("one", "farewell"):
        writer.send(text)
    writer.resign()
    assert reader.leader() == b""
    LogWriter(store).begin("again")
    assert [reader.wait()[1] for _ in range(3)] == [b"one", b"farewell", b"again"]


def test_values_of_other_programs_are_skipped() -> None:
    """The leader ignores all of it."""
    store, writer, reader = both()
    store.values[Keys.news] = b"\xff\xfe"
    assert writer.take() == b"\xff\xfe"
    store.set(Keys.next, "x" * 100)
    assert LogReader(store, store).place == 0
    assert writer.take() == b""
    assert reader.leader() == b"hello"
