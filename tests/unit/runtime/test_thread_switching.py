"""Brisk switching is put back, whoever leaves first."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.runtime.threads import FAST_SWITCH_S, fast_switching

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_it_is_brisk_inside_and_put_back_after() -> None:
    """Nested or failing, the interval of before returns when the last one leaves."""
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
    """Nobody is inside there, so nobody would put it back."""
    with fast_switching():
        child = os.fork()
        if not child:
            os._exit(sys.getswitchinterval() != pytest.approx(interval))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sys.getswitchinterval() == pytest.approx(FAST_SWITCH_S)


@pytest.fixture
def interval() -> Iterator[float]:
    """Return the interval of before; it is put back after the test."""
    before = sys.getswitchinterval()
    yield before
    sys.setswitchinterval(before)
