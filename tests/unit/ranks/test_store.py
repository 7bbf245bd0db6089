"""The log of messages in the store: none is lost, and few are left."""

from __future__ import annotations

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


def test_only_the_newest_messages_stay_in_the_store() -> None:
    """This includes empty messages, and the messages of earlier leaders."""
    store, writer, reader = both()
    for number in range(3 * KEPT):
        if number == KEPT:
            writer.resign()
            writer = LogWriter(store)
        place = writer.send(str(number))
        writer.expect(place)
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
