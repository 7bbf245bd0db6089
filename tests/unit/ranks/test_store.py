"""The log of messages in the store: none is lost, and few are left."""

from __future__ import annotations

import pytest

from dynprof.ranks.store import KEPT, NO_MESSAGE, Keys, LogReader, LogWriter, wait_for_notice
from tests.unit.ranks.memory_store import MemoryStore


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
    place = writer.send("where?")
    writer.expect(place)
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


def test_old_messages_are_deleted_unless_ranks_wait_for_them() -> None:
    """A rank that was away continues with the newest message if its own was deleted."""
    store, writer, reader = both()
    first = reader.place
    for number in range(5 * KEPT):
        place = writer.send(str(number))
        writer.expect(place)
        reader.reply(place, "", 1)
        writer.take()
        writer.clean({first})
    assert len([key for key in store.values if "/say/" not in key]) < 2 * KEPT + 10
    assert reader.wait() == (first, b"0")


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_a_rank_that_is_far_behind_continues_with_the_newest(
    monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """The rank may be ahead of its last reply. Few marks are left for it."""
    monkeypatch.setattr(LogWriter.clean, "__defaults__", (KEPT, 4 * KEPT))
    store, writer, reader = both()
    first = reader.place
    for number in range(3 * KEPT):
        writer.send(str(number))
        writer.clean({first})
    reader.place += ahead
    assert reader.wait() == (first + ahead, None if ahead else b"0")
    if not ahead:
        assert reader.wait() == (first + 1, None)
    assert reader.place == writer.send("newest")
    assert reader.wait()[1] == b"newest"
    for _ in range(9 * KEPT):
        writer.send("more")
        writer.clean(set())
    assert len(store.values) < 6 * KEPT


def test_a_rank_continues_after_a_deleted_message() -> None:
    """The message may be deleted between the wait and the read."""
    store, writer, reader = both()
    writer.send("one")
    store.wait = lambda *_: store.delete_key(Keys.message(reader.place))  # type: ignore
    assert reader.wait()[1] is None
    assert reader.place == writer.send("two")


def test_a_new_leader_continues_the_log_of_the_last_one() -> None:
    """Waiting ranks hear its first message."""
    store, writer, reader = both()
    for text in ("one", "two", "farewell"):
        writer.send(text)
    writer.resign({reader.place})
    assert reader.leader() == b""
    assert [reader.wait()[1] for _ in range(3)] == [b"one", b"two", b"farewell"]
    writer.resign(set())
    assert len(store.values) == 3  # the first message, the last, and the number of the next
    LogWriter(store).begin("again")
    assert reader.wait()[1] == b"again"


def test_values_of_other_programs_are_skipped() -> None:
    """The leader ignores all of it."""
    store, writer, reader = both()
    store.values[Keys.news] = b"\xff\xfe"
    assert writer.take() == b"\xff\xfe"
    store.set(Keys.next, "x" * 100)
    assert LogReader(store, store).place == 0
    assert writer.take() == b""
    assert reader.leader() == b"hello"
