"""The sampler, driven by hand: which steps are slow, what a sample keeps, and what it costs."""

from __future__ import annotations

import gc
import random
import resource
import threading
import time
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from dynprof.config import WatchConfig
from dynprof.mstx import range_end, range_start
from dynprof.phases import DOMAIN, phase
from dynprof.requests.inbox import Inbox
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.watch.sampler import MIN_RECENT_STEPS, OVERDUE_BURST_S, Alarm, Sampler, SlowStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Watched:
    """A job whose steps and samples are made by the test."""

    def __init__(self, **settings: float) -> None:
        self.now_ns, self.is_busy, self.slow = 10**9, False, list[SlowStep]()
        self.inbox = Inbox(lambda: None)
        self.sampler = Sampler(
            self.inbox,
            WatchConfig(**settings),  # type: ignore[arg-type]
            ErrorBoundary(StderrNotes()),
            is_busy=lambda: self.is_busy,
            on_slow=self.slow.append,
            now_ns=lambda: self.now_ns,
        )
        self.raised: list[int] = []
        self.sampler._on_raised = lambda sampler: self.raised.append(sampler.limit_ns)
        self.sampler.thread = threading.Thread(target=int)  # instead of its own
        self.sampler.start()

    def steps(self, *times_ms: float) -> None:
        """End steps that take these times; the sampler looks after each."""
        for time_ms in times_ms:
            self.now_ns += int(time_ms * 1e6)
            self.inbox.step += 1
            assert self.inbox.due
            self.inbox.on_due()
            self.sampler.look()


@pytest.fixture
def watched() -> Iterator[Callable[..., Watched]]:
    """Return a function that makes a job; its callbacks are removed afterwards."""
    made: list[Watched] = []

    def make(**settings: float) -> Watched:
        made.append(Watched(**settings))
        return made[-1]

    yield make
    for one in made:
        one.sampler.stop()


def test_a_step_is_slow_by_the_median_of_the_steps_before_it(
    watched: Callable[..., Watched],
) -> None:
    """There must be enough of them, and a run of slow steps is one event."""
    job = watched(slower_than=1.5)
    job.steps(20, 100, *[20] * MIN_RECENT_STEPS)
    assert job.slow == []
    job.steps(29, 31, 40, 20, 20, 20, 20, 20, 300)
    assert [(one.number, one.ended_ns - one.began_ns) for one in job.slow] == [
        (MIN_RECENT_STEPS + 3, 31_000_000),
        (MIN_RECENT_STEPS + 10, 300_000_000),
    ]
    assert {one.usual_ns for one in job.slow} == {20_000_000}


def test_an_absolute_limit_needs_no_median(watched: Callable[..., Watched]) -> None:
    """The first step may exceed it already; the shorter of two limits counts."""
    job = watched(longer_than_ms=50, slower_than=10)
    job.steps(20, 60)
    assert [one.number for one in job.slow] == [1]


def test_a_step_is_overdue_long_before_a_distant_limit(watched: Callable[..., Watched]) -> None:
    """Its samples since then show the additional time; all do if no usual time is known."""
    job = watched(longer_than_ms=1000)
    job.steps(20, 1100)
    assert job.slow[-1].overdue_ns == 0
    job.steps(*[20] * 30, 1100)
    assert job.slow[-1].overdue_ns == 40_000_000


def test_short_steps_must_take_10_ms_more(watched: Callable[..., Watched]) -> None:
    """The jitter of a step of 1 ms is no event."""
    job = watched(slower_than=1.5)
    job.steps(*[1] * (MIN_RECENT_STEPS + 2), 10, 1, 1, 1, 1, 1, 1, 12)
    assert [one.ended_ns - one.began_ns for one in job.slow] == [12_000_000]


def test_steps_that_vary_are_not_slow(watched: Callable[..., Watched]) -> None:
    """A job whose steps take 20 to 60 ms in any order has no slow step of 65 ms."""
    job, even = watched(slower_than=1.5), watched(slower_than=1.5)
    job.steps(*[20, 30, 40, 50, 60] * 8)
    job.steps(65, 20, 30, 40, 50, 60, 400, 1000)
    assert [one.ended_ns - one.began_ns for one in job.slow] == [400_000_000, 1_000_000_000]
    even.steps(*[20] * 60)
    job.steps(*[20, 30, 40, 50, 60] * 100)
    assert (job.sampler.is_limit_raised, even.sampler.is_limit_raised) == (True, False)
    assert (job.raised, even.raised) == ([job.sampler.limit_ns], [])


def test_steps_whose_times_are_skewed_are_not_slow(watched: Callable[..., Watched]) -> None:
    """Of 20,000 steps with batches of any length, none is slow, and one that hangs is."""
    job = watched(slower_than=1.5)
    chance = random.Random(3)  # noqa: S311 - nothing is secret here
    job.steps(*[20 * chance.lognormvariate(0, 0.3) for _ in range(20_000)])
    assert job.slow == []
    job.steps(200)
    assert [one.number for one in job.slow] == [20_000]


def test_a_fault_of_every_fifth_step_is_an_event_each_time(
    watched: Callable[..., Watched],
) -> None:
    """The slow steps are a fifth of all, and do not become usual."""
    job = watched(slower_than=1.5)
    job.steps(*[20, 20, 20, 20, 200] * 10)
    assert [one.number for one in job.slow] == [24, 29, 34, 39, 44, 49]


def test_a_fault_that_lasts_is_judged_twice(watched: Callable[..., Watched]) -> None:
    """The first slow step may have begun before the cause."""
    job = watched(slower_than=1.5)
    job.steps(*[20] * 200, *[70] * 40)
    assert [one.number for one in job.slow] == [200, 209]


def test_a_fault_that_lasts_is_no_variation(watched: Callable[..., Watched]) -> None:
    """It does not hide a much slower step, neither before nor after it has become usual."""
    job = watched(slower_than=1.5)
    job.steps(*[20] * 200, *[70] * 120, 300)
    assert [one.number for one in job.slow] == [200, 209, 320]
    job.steps(*[70] * 200)
    assert not job.sampler.is_limit_raised
    job.steps(150)
    assert [one.number for one in job.slow][3:] == [521]


def test_a_much_slower_step_soon_after_a_slow_one_is_judged(
    watched: Callable[..., Watched],
) -> None:
    """Noise a few steps before a fault must not hide it; a step like the judged one is left out."""
    job = watched(slower_than=1.5)
    job.steps(*[20] * 200, 35, 20, 150, 20, 140)
    assert [one.number for one in job.slow] == [200, 202]


def test_steps_in_a_window_and_renumbered_steps_are_not_judged(
    watched: Callable[..., Watched],
) -> None:
    """Recording and saving make steps slower."""
    job = watched(longer_than_ms=50)
    job.is_busy = True
    job.steps(100, 100)
    job.is_busy = False
    job.steps(100)  # its start was not noted
    job.inbox.step = 1000
    job.steps(100)
    assert job.slow == []
    job.steps(100)
    assert [one.number for one in job.slow] == [1001]


def test_it_samples_less_above_its_budget(watched: Callable[..., Watched]) -> None:
    """The interval grows while the share is above the budget, and shrinks below it."""
    thrifty, rich = (
        watched(slower_than=2, budget_percent=1e-9),
        watched(slower_than=2, budget_percent=100),
    )
    for job in (thrifty, rich):
        for _ in range(20):
            job.steps(1000)
    assert thrifty.sampler.slowdown > 40
    assert rich.sampler.slowdown == 1
    assert thrifty.sampler.interval_s > 10 * rich.sampler.interval_s


def test_records_count_in_the_budget(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples that use three quarters of it become fewer while records use the rest."""
    used_s = 0.0
    monkeypatch.setattr(time, "thread_time", lambda: used_s)
    slowdowns = []
    for record_s in (0.0, 0.002):
        job = watched(slower_than=2, budget_percent=0.4)
        for _ in range(30):
            used_s += 0.003
            job.sampler.spent_s += record_s
            job.steps(1000)
        slowdowns.append(job.sampler.slowdown)
    assert slowdowns[0] == 1
    assert slowdowns[1] > 10


def test_samples_in_slow_steps_are_limited(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many threads and many slow steps would need most of the budget; a very slow step has it."""
    job, used_s = watched(slower_than=1.5, budget_percent=0.4), 0.0

    def clock() -> float:
        nonlocal used_s
        used_s += 0.01  # each sample reads it twice
        return used_s

    job.steps(*[20] * 60)
    monkeypatch.setattr(time, "thread_time", clock)
    job.sampler._sample_ns = 10**15  # no regular sample
    for _ in range(10):
        job.steps(*[20] * 9, 35)
    assert len(job.slow) == 10
    assert 0 < sum(not one.is_regular for one in job.sampler.ring) < 10
    before = len(job.sampler.ring)
    job.now_ns += 500_000_000
    job.sampler.look()
    assert len(job.sampler.ring) == before + 1


def test_each_overdue_step_is_sampled_once_while_others_use_the_budget(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the budget is kept for first samples; then only very slow steps wake it."""
    job, used_s = watched(slower_than=1.5, budget_percent=0.4), time.thread_time()

    def clock() -> float:
        nonlocal used_s
        used_s += 0.0005  # each look reads it once
        return used_s

    job.steps(*[20] * 60)
    monkeypatch.setattr(time, "thread_time", clock)
    job.sampler._own_s = used_s
    job.sampler._sample_ns = job.sampler._second_ns = 10**15  # no regular sample
    job.sampler._overdue_debt_s = OVERDUE_BURST_S / 2
    sampled, alarms = [], []
    for _ in range(6):
        before = len(job.sampler.ring)
        for pause_ms in (26, 2, 2):  # three looks at an overdue step
            job.now_ns += pause_ms * 1_000_000
            job.sampler.look()
        sampled.append(len(job.sampler.ring) - before)
        job.steps(2, *[20] * 5)
        alarms.append(job.sampler._alarm.after_ns)
    assert sampled == [1, 1, 1, 1, 0, 0]
    assert alarms == [25_000_000] * 3 + [4 * 30_000_000] * 3


def test_an_alarm_goes_off_in_the_step_that_takes_too_long() -> None:
    """Each step sets it again; without a time, and once it has gone off, it is silent."""
    alarm = Alarm()
    begin_step = alarm.setter()
    begin_step()
    assert _waits(alarm, 0.01)
    alarm.set_after(5_000_000)
    begin_step()
    assert not _waits(alarm, 60.0)
    assert _waits(alarm, 0.01)
    alarm.set_after(60_000_000_000)
    begin_step()
    assert _waits(alarm, 0.01)
    alarm.close()
    begin_step()  # of a step that ends while the watch is switched off


def _waits(alarm: Alarm, most_s: float) -> bool:
    """Return whether a wait takes the whole time."""
    began_s = time.monotonic()
    alarm.wait(most_s)
    return time.monotonic() - began_s >= most_s


def test_each_step_sets_the_alarm(watched: Callable[..., Watched]) -> None:
    """It goes off a time after the newest one has begun."""
    job = watched(slower_than=1.5)
    job.steps(20, 20)
    alarm = job.sampler._alarm
    alarm.set_after(1_000_000)
    assert _waits(alarm, 0.01)
    job.inbox.on_due()
    assert not _waits(alarm, 10.0)


def test_a_step_in_which_the_alarm_woke_nothing_has_a_gap(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that holds the GIL may end with its step; what follows is no gap."""
    job = watched(slower_than=1.5)
    job.steps(*[20] * 60)
    job.sampler.gaps.clear()
    job.sampler._planned_ns = 10**15  # no random sample
    began_ns = job.now_ns
    switches = job.sampler._waits + 3  # for the sleep, and for two alarms whose steps have ended
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_nvcsw=switches))
    for step_ms in (60, *[20] * 30, 26):
        job.now_ns += step_ms * 1_000_000
        job.inbox.step += 1
        job.inbox.on_due()
    job.sampler._note_gaps(job.sampler._end_steps(job.now_ns), job.now_ns)
    (gap,) = job.sampler.gaps
    assert (gap.began_ns - began_ns, gap.ended_ns - began_ns) == (25_000_000, 60_000_000)
    assert not gap.is_of_lock
    assert [one.overdue_ns for one in job.sampler._slow] == [25_000_000]


def test_a_sample_keeps_no_variable_of_the_script(watched: Callable[..., Watched]) -> None:
    """A stack has functions and lines, so a tensor is freed when its function returns."""
    job = watched(slower_than=2)

    class Tensor:
        pass

    def train() -> weakref.ref[Tensor]:
        tensor = Tensor()
        job.steps(20, 20)
        return weakref.ref(tensor)

    kept = train()
    names = {code.co_name for code in job.sampler.codes.values()}
    assert "train" in names
    gc.collect()
    assert kept() is None


def test_a_sample_has_the_open_phases_of_the_training_thread(
    watched: Callable[..., Watched],
) -> None:
    """Those of other threads, such as a loader's, are not phases of the step."""
    job = watched(slower_than=2)
    job.steps(20)
    begun: list[int] = []
    other = threading.Thread(target=lambda: begun.append(range_start("prefetch", domain=DOMAIN)))
    other.start()
    other.join()
    with phase("forward"):
        job.steps(2000)
    range_end(begun[0])
    assert job.sampler.ring[-1].phases == ("forward",)


def test_an_idle_step_pays_nothing_once_the_watch_is_off(watched: Callable[..., Watched]) -> None:
    """Nothing is due, and the next turn is an ordinary one."""
    job = watched(slower_than=2)
    job.steps(20)
    job.inbox.time_steps(None)
    assert not job.inbox.due
    assert job.inbox.on_due == job.inbox.turn
