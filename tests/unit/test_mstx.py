"""Marks and ranges: a valid message, an invalid one, and the receivers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import dynprof.mstx as mstx
from dynprof.backends.collectors.marks import (
    BEGAN_BEFORE,
    ENDS_AFTER,
    Domains,
    MarkTracks,
    _on_tracks,
)
from dynprof.marks import open_ranges
from dynprof.npu import mstx as vendors
from tests import warm_interpreter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator
    from pathlib import Path

    from dynprof.marks.subscription import Marker


def recorded(action: Callable[[], object], **domains: list[str]) -> list[dict[str, Any]]:
    """Return a window's records of the marks during an action, without names of tracks."""
    track = MarkTracks(Domains(domains.get("include", ()), domains.get("exclude", ())))
    track.start()
    action()
    track.stop()
    return [event for event in track.events() if event["ph"] != "M"]


def names(events: list[dict[str, Any]]) -> list[str]:
    """Return the names of events, in order."""
    return [event["name"] for event in events]


@pytest.mark.parametrize(
    ("message", "domain", "words"),
    [
        ("", "default", "not empty"),
        (None, "default", "None"),
        ("é" * 79, "default", "156 bytes"),
        ("fine", "", "domain"),
    ],
)
def test_an_invalid_message_fails_with_a_warning(message: Any, domain: str, words: str) -> None:
    """An empty, missing or too long message gives one warning and fails."""
    with pytest.warns(UserWarning, match=words):
        assert mstx.range_start(message, domain=domain) == mstx.FAILED
    with pytest.warns(UserWarning, match=words):
        assert mstx.range_push(message, domain=domain) == -1
    with pytest.warns(UserWarning, match=words):
        mstx.mark(message, domain=domain)
    assert not open_ranges.all_open()


@pytest.mark.parametrize("stream", [object(), "stream", 1.5])
def test_an_invalid_stream_is_refused_with_a_warning(stream: object) -> None:
    """A call without a real stream warns, fails and sets no mark."""

    def set_all_kinds() -> None:
        with pytest.warns(UserWarning, match=r"it must be a torch\.Stream or its handle"):
            assert mstx.range_start("message", stream) == 0
        with pytest.warns(UserWarning, match=f"the stream is a {type(stream).__name__}"):
            assert mstx.range_push("message", stream) == -1
        with pytest.warns(UserWarning, match="stream"):
            mstx.mark("message", stream)

    assert recorded(set_all_kinds) == []


def test_the_message_may_be_left_out() -> None:
    """A call without a message fails with 0 and a warning, and raises nothing."""
    with pytest.warns(UserWarning, match="None"):
        assert mstx.range_start() == 0
    with pytest.warns(UserWarning, match="None"):
        mstx.mark()
    mstx.range_end(0)


def test_marks_without_a_window_are_not_kept() -> None:
    """Ranges have ids, nest and end; a later window sees none of them."""
    numbers = [vendors().range_start("a"), vendors().range_start("b")]
    assert numbers[0] != numbers[1]
    for number in numbers:
        mstx.range_end(number)
    assert (mstx.range_push("outer"), mstx.range_push("inner")) == (0, 1)
    assert (mstx.range_pop(), mstx.range_pop()) == (1, 0)
    with pytest.warns(UserWarning, match="no range is open"):
        assert mstx.range_pop() == -1
    assert recorded(lambda: None) == []


def test_ranges_that_are_never_ended_do_not_fill_the_memory() -> None:
    """The oldest range is dropped; the others end as usual."""
    first = mstx.range_start("first")
    for _ in range(open_ranges.MAX_STARTED):
        last = mstx.range_start("more")
    assert len(open_ranges.all_open()) == open_ranges.MAX_STARTED
    assert not open_ranges.end(first)
    assert open_ranges.end(last)


def test_ranges_that_are_never_popped_do_not_fill_the_memory() -> None:
    """An exception may skip the pop at every step."""
    for _ in range(open_ranges.MAX_PUSHED + 3):
        mstx.range_push("lost", domain="lost")
    assert len(open_ranges.all_open()) == open_ranges.MAX_PUSHED
    while mstx.is_open("lost"):
        mstx.range_pop("lost")


def test_an_invalid_domain_has_no_ranges() -> None:
    """A warning says so, and no exception is raised."""
    wrong: Any = ["io"]
    assert not mstx.is_open(wrong)
    with pytest.warns(UserWarning, match="no range is open"):
        assert mstx.range_pop(wrong) == -1


def test_an_error_in_code_without_a_name_is_not_raised() -> None:
    """In a namespace whose name is None, Python cannot warn; only the mark is lost."""
    exec("mark('')", {"__name__": None, "mark": mstx.mark})  # noqa: S102


@pytest.mark.parametrize("ends_inside", [True, False])
@pytest.mark.parametrize("begins_inside", [True, False])
@pytest.mark.parametrize("kind", ["push/pop", "start/end"])
def test_a_range_across_the_borders_of_a_window_is_cut(
    kind: str, begins_inside: bool, ends_inside: bool
) -> None:
    """The inner part is recorded, and says on which side it is cut."""
    pushed, number = kind == "push/pop", 0

    def begin() -> None:
        nonlocal number
        number = mstx.range_start("long") if not pushed else mstx.range_push("long")

    def end() -> None:
        mstx.range_pop() if pushed else mstx.range_end(number)

    track = MarkTracks(Domains())
    if not begins_inside:
        begin()
    before_ns = time.time_ns()
    track.start()
    after_ns = time.time_ns()
    if begins_inside:
        begin()
    if ends_inside:
        end()
    track.stop()
    (event,) = (event for event in track.events() if event["ph"] == "X")
    if not ends_inside:
        end()
    said = [BEGAN_BEFORE] * (not begins_inside) + [ENDS_AFTER] * (not ends_inside)
    assert event["args"].get("cut", "") == " and ".join(said)
    assert event["args"]["kind"] == kind
    assert event["args"].get("range", 0) == (0 if pushed else number)
    assert before_ns <= event["ts"]
    assert begins_inside or event["ts"] <= after_ns
    assert event["dur"] >= 0


def test_pushed_ranges_of_other_threads_are_cut_too() -> None:
    """A window that ends inside the ranges of threads has their parts so far."""
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        mstx.range_push("elsewhere")
        inside.set()
        leave.wait()
        mstx.range_pop()

    def until_inside() -> None:
        thread.start()
        inside.wait()

    thread = threading.Thread(target=work)
    (event,) = recorded(until_inside)
    assert event["args"]["thread"] == thread.native_id != threading.get_native_id()
    leave.set()
    thread.join()
    gc.collect()
    assert not open_ranges.all_open()


def test_each_domain_has_tracks_on_which_ranges_nest() -> None:
    """Crossing ranges are on two tracks of the same name; ranges of a track never cross."""

    def work() -> None:
        one = mstx.range_start("one", domain="io")
        mstx.range_push("outer")
        two = mstx.range_start("two", domain="io")
        mstx.range_end(one)
        mstx.mark("here", domain="io")
        mstx.range_push("inner")
        mstx.range_pop()
        mstx.range_end(two)
        mstx.range_pop()

    track = MarkTracks(Domains())
    track.start()
    work()
    track.stop()
    events = list(track.events())
    called = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    found = {
        (called[e["tid"]], e["name"]): e["tid"] for e in events if e["ph"] != "M"
    }  # fmt: skip
    assert set(found) == {
        ("marks: default", "outer"), ("marks: default", "inner"),
        ("marks: io", "one"), ("marks: io", "two"), ("marks: io", "here"),
    }  # fmt: skip
    assert sorted(called.values()) == ["marks: default", "marks: io", "marks: io"]
    assert found["marks: io", "one"] != found["marks: io", "two"]


@pytest.mark.parametrize("seed", range(8))
def test_random_ranges_on_one_track_nest(seed: int) -> None:
    """Random ranges are all there once; those of a track are nested or apart."""
    choose = Random(seed)  # noqa: S311
    begun: list[int] = []

    def work() -> None:
        for number in range(60):
            if begun and choose.random() < 0.5:
                mstx.range_end(begun.pop(choose.randrange(len(begun))))
            else:
                begun.append(mstx.range_start(f"range {number}"))

    events = recorded(work)
    assert len(set(names(events))) == len(events)
    for one in events:
        for other in events:
            if one["tid"] == other["tid"] and one["ts"] <= other["ts"]:
                apart = one["ts"] + one["dur"] <= other["ts"]
                around = one["ts"] + one["dur"] >= other["ts"] + other["dur"]
                assert apart or around or one["ts"] == other["ts"]


class Instant(int):
    """A time that counts its comparisons."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Instant.compared += 1
        return int(self) < other

    def __le__(self, other: float) -> bool:
        Instant.compared += 1
        return int(self) <= other

    __hash__ = int.__hash__

    def __add__(self, other: int) -> Instant:
        return Instant(int(self) + other)


def test_thousands_of_crossing_ranges_need_no_search() -> None:
    """In a server's requests, each is compared with a few of the open ones, not with all."""
    crossing = [{"ts": Instant(at), "dur": 1000} for at in range(3000)]
    Instant.compared = 0
    events = list(_on_tracks({"requests": crossing}))
    assert len({event["tid"] for event in events}) == 1000
    assert Instant.compared < 100 * len(crossing)


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    """Not all readers of JSON accept it; whole characters stay unchanged."""
    track = MarkTracks(Domains())
    track.start()
    mstx.mark("\ud800 half, \U0001f600 whole", domain="of \udfff")
    track.stop()
    event, name = track.events()
    assert event["name"] == "\ufffd half, \U0001f600 whole"
    assert event["args"]["domain"] == "of \ufffd"
    assert name["args"]["name"] == "marks: of \ufffd"


def test_included_domains_win_over_excluded() -> None:
    """The include list takes precedence over the exclude list."""

    def work() -> None:
        mstx.mark("a", domain="one")
        mstx.mark("b", domain="two")

    assert names(recorded(work)) == ["a", "b"]
    assert names(recorded(work, include=["one"])) == ["a"]
    assert names(recorded(work, exclude=["one"])) == ["b"]
    assert names(recorded(work, include=["one"], exclude=["one"])) == ["a"]


def test_a_decorated_function_is_a_range_under_its_name() -> None:
    """``annotate`` and ``mstx_range`` decorate; the function keeps its name and result."""

    @mstx.annotate()
    def load() -> int:
        return 7

    @vendors.mstx_range("named", domain="io")
    def save() -> int:
        return 8

    results: list[object] = []
    events = recorded(lambda: results.extend([load(), save(), load.__name__]))
    assert results == [7, 8, "load"]
    assert names(events) == ["load", "named"]


def test_a_decorated_function_that_raises_ends_its_range() -> None:
    """The exception reaches the script, including StopIteration."""

    @mstx.annotate("failing")
    def fail() -> None:
        raise StopIteration(7)

    def work() -> None:
        with pytest.raises(StopIteration):
            fail()

    (event,) = recorded(work)
    assert "cut" not in event["args"]


def test_threads_that_share_an_annotation_end_their_own_ranges() -> None:
    """Any order of exits works; a block may also end on another thread than it began on."""
    shared, begun, first_left = mstx.annotate("both"), threading.Event(), threading.Event()

    def second() -> None:
        with shared:
            begun.set()
            first_left.wait()

    def work() -> None:
        with shared:
            thread = threading.Thread(target=second)
            thread.start()
            begun.wait()
        first_left.set()
        thread.join()

    one, other = recorded(work)
    assert one["args"]["thread"] == threading.get_native_id()
    assert one["ts"] + one["dur"] < other["ts"] + other["dur"]

    def block() -> Generator[None]:
        with shared:
            yield

    def moved() -> None:
        generator = block()
        next(generator)
        thread = threading.Thread(target=generator.close)
        thread.start()
        thread.join()

    (event,) = recorded(moved)
    assert "cut" not in event["args"]
    assert not open_ranges.all_open()


def test_coroutines_that_take_turns_have_ranges_of_their_own() -> None:
    """Each range lasts as long as its coroutine, also if they cross on one thread."""
    order: list[str] = []

    @mstx.annotate()
    async def first(other: asyncio.Event, own: asyncio.Event) -> None:
        own.set()
        await other.wait()
        order.append("first")

    @mstx.annotate()
    async def second(other: asyncio.Event, own: asyncio.Event) -> None:
        await own.wait()
        other.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        order.append("second")

    async def both() -> None:
        one, two = asyncio.Event(), asyncio.Event()
        await asyncio.gather(first(one, two), second(one, two))

    events = {event["name"]: event for event in recorded(lambda: asyncio.run(both()))}
    assert order == ["first", "second"]
    early, late = events["first"], events["second"]
    assert early["ts"] < late["ts"] < early["ts"] + early["dur"] < late["ts"] + late["dur"]
    assert "cut" not in early["args"]


def test_a_generator_is_a_range_from_its_first_item_to_its_end() -> None:
    """Values sent into it and returned by it are passed through."""

    @mstx.annotate()
    def numbers() -> Generator[Any, Any, int]:
        got = yield 1
        with pytest.raises(KeyError):
            yield got
        return 7

    def work() -> None:
        made: Any = numbers()
        mstx.mark("before")
        assert next(made) == 1
        assert made.send(5) == 5
        with pytest.raises(StopIteration) as ended:
            made.throw(KeyError())
        assert ended.value.value == 7
        mstx.mark("after")

    before, event, after = recorded(work)
    assert names([before, event, after]) == ["before", "numbers", "after"]
    assert before["ts"] <= event["ts"] <= event["ts"] + event["dur"] <= after["ts"]


def test_an_asynchronous_generator_is_a_range() -> None:
    """Sent values and thrown exceptions are passed through; an early exit ends its range."""

    @mstx.annotate()
    async def numbers() -> AsyncIterator[Any]:
        got = yield 1
        with pytest.raises(KeyError):
            yield got
        yield 3

    @mstx.annotate("left early")
    async def endless() -> AsyncIterator[int]:
        while True:
            yield 0

    async def use() -> None:
        made: Any = numbers()
        assert await made.asend(None) == 1
        assert await made.asend(5) == 5
        assert await made.athrow(KeyError()) == 3
        assert [item async for item in made] == []
        early: Any = endless()
        assert await anext(early) == 0
        await early.aclose()

    events = recorded(lambda: asyncio.run(use()))
    assert sorted(names(events)) == ["left early", "numbers"]
    assert not any("cut" in event["args"] for event in events)


def test_a_cancelled_task_reaches_an_asynchronous_context_manager() -> None:
    """The exception is thrown into the inner generator, as without the decorator."""
    caught: list[str] = []

    @mstx.annotate()
    async def connection() -> AsyncIterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            caught.append("cancelled")
            raise

    async def use() -> None:
        async with contextlib.asynccontextmanager(connection)():
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(use())
    assert caught == ["cancelled"]


def test_a_subscriber_has_marks_at_once_and_longer_ones() -> None:
    """A subscriber gets each mark at once, up to 255 bytes; no trace has the long ones."""
    found: list[Marker] = []
    long = "x" * 255
    with mstx.subscribe(found.append):
        mstx.mark("here", domain="io")
        number = mstx.range_start(long)
        assert recorded(lambda: mstx.mark(long)) == []
        mstx.range_end(number)
        with pytest.warns(UserWarning, match="255 bytes"):
            mstx.mark(long + "x")
    with pytest.warns(UserWarning, match="156 bytes"):
        mstx.mark(long)
    assert [(one.message, one.domain) for one in found] == [
        ("here", "io"), (long, "default"), (long, "default"),
    ]  # fmt: skip
    assert found[0].began_ns == found[0].ended_ns <= found[2].began_ns < found[2].ended_ns


def test_a_subscriber_does_not_get_its_own_marks() -> None:
    """A mark of a subscriber does not cause another one, forever."""
    heard: list[str] = []

    def answer(marker: Marker) -> None:
        heard.append(marker.message)
        mstx.mark(f"heard {marker.message}")

    with mstx.subscribe(answer):
        mstx.mark("one")
        mstx.mark("two")
    assert heard == ["one", "two"]


def test_a_failing_subscriber_gets_no_more_marks(capfd: pytest.CaptureFixture[str]) -> None:
    """The script continues, with one warning."""
    heard: list[object] = []

    def fail(marker: object) -> None:
        heard.append(marker)
        raise ValueError("not today")

    with mstx.subscribe(fail):
        mstx.mark("one")
        mstx.mark("two")
    assert len(heard) == 1
    assert "the subscriber failed: ValueError: not today" in capfd.readouterr().err


FORKED = """
import os, threading
import dynprof.mstx as mstx
mstx.range_push("before")
if child := os.fork():
    os.waitpid(child, 0)
else:
    threads = []
    mstx.subscribe(lambda marker: threads.append(marker.thread))
    mstx.range_end(mstx.range_start("a"))
    mstx.range_push("b")
    mstx.range_pop()
    print(set(threads) == {threading.get_native_id()}, flush=True)
    os._exit(0)
"""


def printed(script: str, folder: Path) -> str:
    """Run a script in its own process, which must succeed; return its output."""
    needs = warm_interpreter.WITHOUT_TORCH
    done = warm_interpreter.run(script, folder, os.environ, needs=needs)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ranges_of_a_forked_child_belong_to_its_own_thread(tmp_path: Path) -> None:
    """The thread's number does not come from the parent."""
    assert printed(FORKED, tmp_path) == "True\n"


INSTALLED = """
import dynprof.mstx
dynprof.mstx.install()
import mstx
print(mstx.range_start("aaa"), mstx.__name__)
"""


def test_the_vendors_import_works_without_the_real_module(tmp_path: Path) -> None:
    """``import mstx`` finds dynprof's module; a real module stays."""
    assert printed(INSTALLED, tmp_path) == "1 dynprof.mstx\n"
    (tmp_path / "mstx.py").write_text("range_start = len")
    assert printed(INSTALLED, tmp_path) == "3 mstx\n"
    stub = 'import sys, types\nsys.modules["mstx"] = types.SimpleNamespace(range_start=len, '
    stub += f'__name__="stub")\n{INSTALLED}'
    assert printed(stub, tmp_path) == "3 stub\n"
