"""Turns at libkineto's session outside windows: one at a time, and visible before the check."""

from __future__ import annotations

import threading

from dynprof.backends.torch.kineto import ActiveCollections


def test_a_turn_is_visible_before_the_session_is_checked() -> None:
    """Two threads that check at the same time do not both find the session free."""
    collecting, seen = ActiveCollections(), list[bool]()

    def taken() -> bool:
        seen.append(bool(collecting))
        return False

    assert collecting.begin_exclusive(1, taken)
    assert seen == [True]
    collecting.end(1)
    assert not collecting


def test_a_turn_does_not_begin_during_another_or_a_session() -> None:
    """The earlier turn or session continues."""
    collecting = ActiveCollections()
    assert not collecting.begin_exclusive(2, lambda: True)
    assert not collecting
    collecting.begin(1)
    collecting.begin(1)
    assert not collecting.begin_exclusive(2, lambda: False)
    assert collecting
    collecting.end(1)
    assert collecting.begin_exclusive(2, lambda: False)


def test_one_of_many_threads_has_the_turn() -> None:
    """A thread with a turn finds no other in it."""
    collecting, inside, turns = ActiveCollections(), list[int](), list[int]()

    def come(number: int) -> None:
        for _ in range(200):
            if collecting.begin_exclusive(number, lambda: False):
                inside.append(number)
                assert inside == [number]
                turns.append(inside.pop())
                collecting.end(number)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turns
    assert not collecting


def test_waiting_ends_with_the_turn_or_in_time() -> None:
    """Without a turn the wait returns at once."""
    collecting = ActiveCollections()
    collecting.wait()
    collecting.begin(1)
    collecting.wait(0.01)
    assert collecting
    threading.Timer(0.01, collecting.end, [1]).start()
    collecting.wait(30)
    assert not collecting
