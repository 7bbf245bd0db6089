"""Marks and ranges where no window records, and what is no message."""

from __future__ import annotations

import pytest

import dynprof.mstx as mstx
from dynprof.companions.marks import MarkTrack
from dynprof.npu import mstx as vendors


@pytest.mark.parametrize(
    ("message", "domain", "words"),
    [
        ("", "default", "not empty"),
        (None, "default", "None"),
        ("é" * 79, "default", "156 bytes"),
        ("fine", "", "domain"),
    ],
)
def test_what_cannot_be_taken_is_said_and_fails(message: str, domain: str, words: str) -> None:
    """Each call warns once and returns what stands for failure."""
    with pytest.warns(UserWarning, match=words):
        assert mstx.range_start(message, domain=domain) == mstx.FAILED
    with pytest.warns(UserWarning, match=words):
        assert mstx.range_push(message, domain=domain) == -1
    with pytest.warns(UserWarning, match=words):
        mstx.mark(message, domain=domain)


def test_without_a_window_nothing_is_kept() -> None:
    """Ranges have ids, nest and end; no window sees them."""
    track = MarkTrack((), ())
    assert vendors().range_start("a") != vendors().range_start("b")
    assert (mstx.range_push("outer"), mstx.range_push("inner")) == (0, 1)
    assert (mstx.range_pop(), mstx.range_pop()) == (1, 0)
    with pytest.warns(UserWarning, match="no range is open"):
        assert mstx.range_pop() == -1
    assert list(track.events()) == []


def test_a_range_that_began_before_the_window_begins_with_it() -> None:
    """What of a nested range lies before the window is left out of it."""
    track = MarkTrack((), ())
    mstx.range_push("long")
    track.start()
    mstx.range_pop()
    track.stop()
    mstx.mark("too late")
    (event,) = track.events()
    assert event["name"] == "long"
    assert event["ts"] == track._began_ns


def test_a_decorated_function_is_a_range_under_its_name() -> None:
    """``annotate`` and ``mstx_range`` decorate; the function keeps its name and result."""
    track = MarkTrack((), ())

    @mstx.annotate()
    def load() -> int:
        return 7

    @vendors.mstx_range("named", domain="io")
    def save() -> int:
        return 8

    track.start()
    assert (load(), save(), load.__name__) == (7, 8, "load")
    track.stop()
    assert [event["name"] for event in track.events()] == ["load", "named"]
