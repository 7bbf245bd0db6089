"""Frequent thread switching is undone, whichever thread leaves last."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.runtime.threads import FAST_SWITCH_S, fast_switching

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_switching_is_frequent_inside_and_restored_after() -> None:
    """Nested or with an exception, the old interval returns when the last one leaves."""
    before = sys.getswitchinterval()

    def nested() -> None:
        with fast_switching():
            with fast_switching():
                assert sys.getswitchinterval() == pytest.approx(FAST_SWITCH_S)
            assert sys.getswitchinterval() == pytest.approx(FAST_SWITCH_S)
            raise KeyError

    with pytest.raises(KeyError):
        nested()
    assert sys.getswitchinterval() == pytest.approx(before)


def test_a_forked_child_has_the_interval_of_before(interval: float) -> None:
    """No thread of the child is inside, so none would restore it."""
    with fast_switching():
        child = os.fork()
        if not child:
            os._exit(sys.getswitchinterval() != pytest.approx(interval))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sys.getswitchinterval() == pytest.approx(FAST_SWITCH_S)


@pytest.fixture
def interval() -> Iterator[float]:
    """Return the old interval, which is restored after the test."""
    before = sys.getswitchinterval()
    yield before
    sys.setswitchinterval(before)
