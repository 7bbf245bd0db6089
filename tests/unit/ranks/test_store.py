"""The log of messages in the store: nothing is lost, and little is left."""

from __future__ import annotations

import pytest

from dynprof.ranks.store import KEPT, NUDGE, Hearing, Keys, Saying, wait_for_bell
from tests.unit.ranks.memory_store import MemoryStore


def both() -> tuple[MemoryStore, Saying, Hearing]:
    """Return a store with a leader and a rank that hears it."""
    store = MemoryStore()
    saying = Saying(store)
    saying.begin("hello")
    return store, saying, Hearing(store, store)


def test_messages_are_heard_in_order_from_the_place_where_a_rank_came() -> None:
    """What was said before is not; the leader's first message is kept apart."""
    _, saying, hearing = both()
    assert hearing.leader() == b"hello"
    places = [saying.say(text) for text in ("one", "two")]
    assert [hearing.wait() for _ in places] == [(places[0], b"one"), (places[1], b"two")]


def test_a_nudge_ends_the_wait_and_takes_no_message_away() -> None:
    """The leader's next message has the place after it."""
    _, saying, hearing = both()
    hearing.nudge(hearing.place)
    place = saying.say("one")
    assert hearing.wait() == (place - 1, NUDGE.encode())
    assert hearing.wait() == (place, b"one")
    hearing.nudge(place)  # too late: it is not in the place of the message
    assert saying.say("two") == place + 1


def test_the_last_reply_wakes_the_leader_which_takes_each_once() -> None:
    """Late ones wake it too."""
    store, saying, hearing = both()
    place = saying.say("where?")
    saying.expect(place)
    hearing.reply(place, "1", 2)
    assert Keys.bell not in store.values
    hearing.reply(place, "2", 2)
    wait_for_bell(store)
    hearing.tell("news")
    assert saying.take() == b"1\n2\nnews\n"
    assert saying.take() == b""
    hearing.reply(place, "3", 2)
    wait_for_bell(store)
    assert saying.take() == b"3\n"


def test_old_messages_and_replies_are_deleted_but_those_that_ranks_wait_for() -> None:
    """A rank that was away goes on with the newest where its message is gone."""
    store, saying, hearing = both()
    first = hearing.place
    for number in range(5 * KEPT):
        place = saying.say(str(number))
        saying.expect(place)
        hearing.reply(place, "", 1)
        saying.take()
        saying.clean({first})
    assert len([key for key in store.values if "/say/" not in key]) < 2 * KEPT + 10
    assert hearing.wait() == (first, b"0")


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_a_rank_that_is_far_behind_goes_on_with_the_newest(
    monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Wherever it waits: it may be farther than its last reply says. Few marks are left for it."""
    monkeypatch.setattr(Saying.clean, "__defaults__", (KEPT, 4 * KEPT))
    store, saying, hearing = both()
    first = hearing.place
    for number in range(3 * KEPT):
        saying.say(str(number))
        saying.clean({first})
    hearing.place += ahead
    assert hearing.wait() == (first + ahead, None if ahead else b"0")
    if not ahead:
        assert hearing.wait() == (first + 1, None)
    assert hearing.place == saying.say("newest")
    assert hearing.wait()[1] == b"newest"
    for _ in range(9 * KEPT):
        saying.say("more")
        saying.clean(set())
    assert len(store.values) < 6 * KEPT


def test_a_message_that_is_gone_has_a_rank_go_on_with_the_next() -> None:
    """It may be deleted between the wait and the reading."""
    store, saying, hearing = both()
    saying.say("one")
    store.wait = lambda *_: store.delete_key(Keys.say(hearing.place))  # type: ignore
    assert hearing.wait()[1] is None
    assert hearing.place == saying.say("two")


def test_another_leader_goes_on_with_the_log_of_the_one_before() -> None:
    """Ranks that wait hear its first message."""
    store, saying, hearing = both()
    for text in ("one", "two", "farewell"):
        saying.say(text)
    saying.resign({hearing.place})
    assert hearing.leader() == b""
    assert [hearing.wait()[1] for _ in range(3)] == [b"one", b"two", b"farewell"]
    saying.resign(set())
    assert len(store.values) == 3  # the first message, the last, and the number of the next
    Saying(store).begin("again")
    assert hearing.wait()[1] == b"again"


def test_what_other_programs_write_is_read_past() -> None:
    """Nothing of it keeps the leader busy."""
    store, saying, hearing = both()
    store.values[Keys.news] = b"\xff\xfe"
    assert saying.take() == b"\xff\xfe"
    store.set(Keys.next, "x" * 100)
    assert Hearing(store, store).place == 0
    assert saying.take() == b""
    assert hearing.leader() == b"hello"
