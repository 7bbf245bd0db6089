"""Brisk switching is put back, whoever leaves first."""

from __future__ import annotations

import sys

import pytest

from dynprof.switching import BRISK_S, brisk_switching


def test_it_is_brisk_inside_and_put_back_after() -> None:
    """Nested or failing, the interval of before returns when the last one leaves."""
    before = sys.getswitchinterval()

    def nested() -> None:
        with brisk_switching():
            with brisk_switching():
                assert sys.getswitchinterval() == pytest.approx(BRISK_S)
            assert sys.getswitchinterval() == pytest.approx(BRISK_S)
            raise KeyError

    with pytest.raises(KeyError):
        nested()
    assert sys.getswitchinterval() == pytest.approx(before)
