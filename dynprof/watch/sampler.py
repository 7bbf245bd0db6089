"""The sampler: a thread that keeps the newest stacks of all threads, and times each step.

Samples come at random times, and from an alarm: each step sets it again, and it wakes the sampler
once a step takes longer than usual. So each slow step has a sample of its additional time.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import random
import resource
import select
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from dynprof.marks.open_ranges import all_open
from dynprof.runtime.threads import clock_of, native_id_of, own_thread, threads_of_others
from dynprof.watch.resources import (
    CollectionLog,
    Counters,
    RunQueue,
    Usage,
    gpu_readers,
    thread_ns,
    usage,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from dynprof.config import WatchConfig
    from dynprof.requests.inbox import Inbox
    from dynprof.runtime.error_boundary import ErrorBoundary

INTERVAL_S = 0.05
"""Mean seconds between two samples in a usual step; a sample of ten threads takes about 0.1 ms."""
OVERDUE = 2
"""A step that has run for this many times the usual time is overdue, however far the limit is."""
OVERDUE_INTERVAL_S = 0.005
"""Seconds between two samples in a step that takes longer than usual."""
MAX_SLOWDOWN = 4.0
"""Most by which the budget lengthens that: a slow step is what the samples are for."""
OVERDUE_S = 0.5
"""Seconds for which an overdue step is sampled more often: a hang must not cost more."""
UNKNOWN_SLOWDOWN = 4.0
"""By which factor it samples less until it knows what a sample of this job costs."""
AIM, MIN_AIM = 0.8, 0.4
"""Share of the budget that it aims at, and that of the samples while records use up the rest."""
SHORTEST_PAUSE_S = 0.02
"""Shortest pause in a usual step: each wake takes the GIL from the training thread."""
OVERDUE_BURST_S, OVERDUE_SHARE = 0.03, 0.15
"""CPU time in seconds of looks at overdue steps that is used at once, and the share of the
budget that covers it later: with 200 threads a sample takes milliseconds, in many slow steps. Half
of it is kept for the first sample of each step."""
UNBUDGETED_LIMITS = 4
"""A step that takes this many times the limit is sampled in any case."""
KEPT_S, KEPT_STEPS = 30.0, 10
"""The ring covers this many seconds, or this many usual steps if these take longer."""
SAMPLES_IN_STEP = 100
"""Samples in a usual step that are enough; longer steps are sampled less often."""
MAX_SAMPLES = 4000
"""Most samples in the ring; those in overdue steps count too."""
MAX_DEPTH = 100
"""Innermost frames kept of a stack."""
MAX_CODES = 50_000
"""Functions known at which the ring starts again: a job may compile new ones for ever."""
MAX_NAMES = 1000
"""Names of threads kept, also of ended ones: a job may start threads for ever."""
MAX_RECENT_STEPS, MIN_RECENT_STEPS = 400, 20
"""Newest steps whose median is the usual time, and the number from which on there is one."""
AVERAGED = 30
"""Seconds over which the share that it shows is averaged."""
MIN_EXTRA_NS = 10_000_000
"""A slow step takes at least 10 ms more than a usual one: less cannot be sampled."""
VARIATION_POWER = 7
"""A slow step takes this power of the factor by which the slowest quarter of the other steps takes
longer than their median. Times of steps are skewed: for a lognormal distribution, also a wide one,
this is 4.7 standard deviations, which one step in a million exceeds."""
READ_NS = 200_000_000
"""Shortest time between two readings of the counters in overdue steps: one costs 0.1 ms."""
MIN_STEPS_BETWEEN_EVENTS = 5
"""A slow step that comes sooner than this many steps after another one is of the same event."""
REJUDGED_STEP_OF_EVENT = 10
"""The slow step of an event that is judged again: the first one may have begun before the cause."""
GAP_NS = 20_000_000
"""A wake that is this late is a gap: the thread could not run, or could not get the GIL."""

Stack = tuple[int, ...]
"""For each frame, from the innermost: the id of its code, and the offset of its instruction."""


class Sample(NamedTuple):
    """All stacks at one moment.

    Attributes:
        at_ns: When, by the monotonic clock.
        step: The running step.
        is_regular: Whether it is one of those that come at all times, not only in overdue steps.
        stacks: The stack of each thread, by its identifier.
        phases: The phases that the script had open, outermost first.
        used: What was used so far.
    """

    at_ns: int
    step: int
    is_regular: bool
    stacks: tuple[tuple[int, Stack], ...]
    phases: tuple[str, ...]
    used: Usage


class Gap(NamedTuple):
    """A time in which the sampler wanted to run and did not.

    Attributes:
        began_ns: When it wanted to.
        ended_ns: When it did.
        is_of_lock: Whether it waited for the GIL. It did not run at all if not.
        used_ns: CPU time of the training thread since the wake before.
        queued_ns: How long the sampler itself could run since then and got no CPU.
    """

    began_ns: int
    ended_ns: int
    is_of_lock: bool
    used_ns: int
    queued_ns: int


class SlowStep(NamedTuple):
    """A step that took too long.

    Attributes:
        number: Its number.
        began_ns: Its start, by the monotonic clock.
        ended_ns: Its end.
        usual_ns: The median of the steps before it; 0 if there were too few.
        thread: The identifier of the thread that ended it.
        overdue_ns: After which time it was overdue: halfway from usual to slow, or twice the usual
            time if that is less; 0 if unknown.
    """

    number: int
    began_ns: int
    ended_ns: int
    usual_ns: int
    thread: int
    overdue_ns: int = 0


class Alarm:
    """Wakes a thread once a time has passed since another one set it; a timer of Linux.

    Setting it wakes no thread and holds the GIL; it takes 1 us.

    Attributes:
        after_ns: The time; 0 for never.
    """

    def __init__(self) -> None:
        self._file = _timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        self._read = ctypes.create_string_buffer(8)
        self._times = (ctypes.c_long * 4)()  # interval and time, each in seconds and ns
        self._poll = select.poll()
        if self._file >= 0:
            self._poll.register(self._file, select.POLLIN)
        self.after_ns = 0

    def set_after(self, after_ns: int) -> None:
        """Use another time from the next step on."""
        self.after_ns = after_ns
        self._times[2], self._times[3] = divmod(after_ns, 1_000_000_000)

    def setter(self) -> Callable[[], object]:
        """Return what a step calls to set it."""
        return functools.partial(
            _timerfd_settime, self._file, 0, ctypes.addressof(self._times), None
        )

    def wait(self, at_most_s: float) -> None:
        """Wait until it goes off, or for a time."""
        if self._poll.poll(at_most_s * 1e3):  # nothing to read if another step has set it now
            _read(self._file, self._read, 8)

    def close(self) -> None:
        """Close the timer."""
        if self._file >= 0:
            self._poll.unregister(self._file)
            os.close(self._file)
            self._file = -1


_libc = ctypes.PyDLL(None)  # a PyDLL holds the GIL
_read, _timerfd_create, _timerfd_settime = _libc.read, _libc.timerfd_create, _libc.timerfd_settime
_timerfd_settime.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p


class Sampler:
    """Samples all stacks, and reports slow steps, on a thread of its own.

    Args:
        inbox: Counts the steps, and has each one noted.
        settings: When a step is slow, and what sampling may cost.
        boundary: Keeps failures from ending the thread.
        is_busy: Returns whether dynprof itself records or saves, which makes steps slower.
        on_slow: Called with each slow step, on this thread; must be fast.
        on_raised: Called once varying step times make the limit longer than the setting.
        now_ns: The monotonic clock.

    Attributes:
        ring: The newest samples.
        gaps: The newest gaps.
        counters: The newest readings of the counters, each with its time in ns.
        gpus: The newest readings of the GPUs, each with its time in ns.
        collections: The garbage collections.
        codes: The functions in the stacks, by their ids.
        names: The names of the script's threads, by identifier.
        excluded: Slow steps in the ring, by their times in ns; they are not usual.
        usual_ns: The median of the newest steps; 0 if there are too few.
        limit_ns: The longest time that a step may take; 0 if the usual time is not known yet.
        is_limit_raised: Whether varying step times make that longer than the setting.
        share_percent: Its recent share of one CPU, in percent.
        slowdown: By which factor it samples less, because of that share.
    """

    def __init__(
        self,
        inbox: Inbox,
        settings: WatchConfig,
        boundary: ErrorBoundary,
        *,
        is_busy: Callable[[], bool],
        on_slow: Callable[[SlowStep], None],
        on_raised: Callable[[Sampler], None] = lambda _: None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._inbox, self._settings, self._boundary = inbox, settings, boundary
        self._is_busy, self._on_slow, self._on_raised = is_busy, on_slow, on_raised
        self.ring: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.gaps: deque[Gap] = deque(maxlen=100)
        self.counters: deque[tuple[int, dict[str, float]]] = deque(maxlen=64)
        self.gpus: deque[tuple[int, list[dict[str, Any]]]] = deque(maxlen=64)
        self.collections = CollectionLog()
        self.codes: dict[int, CodeType] = {}
        self.names: dict[int, str] = {}
        self.excluded: deque[tuple[int, int]] = deque(maxlen=1000)
        self.usual_ns = self.limit_ns = 0
        self.is_limit_raised = False
        self.share_percent, self.slowdown = 0.0, UNKNOWN_SLOWDOWN
        self.spent_s = 0.0  # by other threads, for records
        self._extra_percent = 0.0  # of records, and of samples in overdue steps
        self._own_s = self._overdue_s = self._overdue_debt_s = 0.0
        self._notes: deque[tuple[int, int, int]] = deque(maxlen=65_536)
        self._recent: deque[int] = deque(maxlen=MAX_RECENT_STEPS)
        self._even: deque[int] = deque(maxlen=MAX_RECENT_STEPS)  # those that were not slow
        self._step, self._began_ns, self._thread = -1, 0, 0
        self._slow_before, self._in_event = -MIN_STEPS_BETWEEN_EVENTS, 0
        self._slow: list[SlowStep] = []
        self._overdue_ns = 0  # when a step is overdue: between usual and slow; 0 if unknown
        self._alarm = Alarm()  # goes off then
        self._own: set[int] = set()
        self._clock: int | None = None
        self._native_id = 0
        self._sources, self._gpus = Counters(), gpu_readers()
        self._run_queue = self._own_queue = RunQueue(0)
        self._random = random.Random()  # noqa: S311 - not the job's, whose numbers must not change
        self._now_ns = now_ns
        self._planned_ns = self._sample_ns = self._second_ns = self._now_ns()
        self._sampling_s = self._all_s = math.inf  # until the first second of the thread
        self._seconds = 0
        self._overdue_since_ns = self._waits = self._used_ns = self._queued_ns = 0
        self._looked_ns = self._planned_ns
        self._over = False
        self._set_usual()
        self.thread = own_thread(self._run, "dynprof-sampler")

    @property
    def interval_s(self) -> float:
        """The mean time between two samples in a usual step."""
        return max(INTERVAL_S, self.usual_ns / 1e9 / SAMPLES_IN_STEP) * self.slowdown

    @property
    def is_over_budget(self) -> bool:
        """Whether the budget allows no sample in a step that becomes overdue now."""
        return self._overdue_debt_s >= OVERDUE_BURST_S

    def start(self) -> None:
        """Start sampling."""
        inbox, note, now_ns, thread = (
            self._inbox, self._notes.append, self._now_ns, threading.get_ident,
        )  # fmt: skip
        self.collections.start()
        set_alarm = self._alarm.setter()

        def note_step() -> None:
            note((inbox.step, now_ns(), thread()))
            set_alarm()

        self._inbox.time_steps(note_step)
        self.thread.start()

    def stop(self) -> None:
        """Stop sampling, without waiting for the thread; takes no lock of Python's."""
        self._over = True
        self.collections.stop()

    def leave_out(self, thread: threading.Thread) -> None:
        """Leave a new thread of dynprof's own out of the samples; called on this thread."""
        if thread.ident:
            self._own.add(thread.ident)

    def _run(self) -> None:
        self._own_queue = RunQueue(threading.get_native_id())
        while not self._over:
            self._alarm.wait(max(0.0, (self._planned_ns - self._now_ns()) / 1e9))
            if not self._over:
                self._boundary.attempt("watching for slow steps", self.look)
                self._planned_ns = max(self._planned_ns, self._now_ns() + 1_000_000)
        for one in (self._sources, self._run_queue, self._own_queue, self._alarm):
            one.close()

    def look(self) -> None:
        """Count the steps that have ended, and sample if it is time.

        This runs many times a second, each time with cold caches, so most looks do little.
        """
        now_ns = self._now_ns()
        if self._is_busy():
            self._notes.clear()
            self._began_ns = 0
            self._planned_ns = now_ns + int(INTERVAL_S * 1e9)
            return
        self._note_gaps(self._end_steps(now_ns), now_ns)
        is_overdue = 0 < self._began_ns < now_ns - self._overdue_ns < now_ns
        is_regular = self._sample_if_due(now_ns, is_overdue=is_overdue)
        for one in self._slow:
            self._on_slow(one)
        self._slow.clear()
        if now_ns >= self._second_ns:
            self._each_second(now_ns)
            is_regular = True
        self._count_cost(is_regular=is_regular)
        self._plan(now_ns, is_overdue=is_overdue)
        ended_ns = self._now_ns()
        self._note_gap(now_ns, ended_ns)  # a system call had to wait for the lock
        self._looked_ns = ended_ns
        self._waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        self._used_ns = thread_ns(self._clock)
        self._queued_ns = self._own_queue.waited_ns()

    def _count_cost(self, *, is_regular: bool) -> None:
        """Count the CPU time since the last look; an alarm costs it in addition."""
        own_s = time.thread_time()
        spent_s, self._own_s = own_s - self._own_s, own_s
        if not is_regular:
            self._overdue_s += spent_s
            self._overdue_debt_s += spent_s
        unbudgeted_ns = UNBUDGETED_LIMITS * self.limit_ns
        self._alarm.set_after(unbudgeted_ns if self.is_over_budget else self._overdue_ns)

    def _sample_if_due(self, now_ns: int, *, is_overdue: bool) -> bool:
        """Sample if it is time; return whether that is a regular sample."""
        began_ns, has_slow = self._began_ns, bool(self._slow)
        is_first = is_overdue and self._overdue_since_ns < began_ns
        is_regular = now_ns >= self._sample_ns and began_ns > 0  # what precedes steps is not usual
        if is_regular:
            self._sample(now_ns, is_regular=True)
            self._sample_ns = now_ns + int(self.interval_s * (0.5 + self._random.random()) * 1e9)
        elif (is_overdue or has_slow) and self._may_sample_overdue(now_ns, is_first=is_first):
            self._sample(now_ns, is_regular=False)
        if is_first:
            self._overdue_since_ns = now_ns
            has_slow |= not self.counters or now_ns - self.counters[-1][0] > READ_NS
        if has_slow:
            self._read_counters(self._now_ns())
        return is_regular

    def _may_sample_overdue(self, now_ns: int, *, is_first: bool = False) -> bool:
        """Return whether the budget allows a sample, or the step is one of the slowest."""
        took_ns = [now_ns - self._began_ns, *(one.ended_ns - one.began_ns for one in self._slow)]
        is_far_over = max(took_ns) > UNBUDGETED_LIMITS * self.limit_ns
        if is_first:
            return is_far_over or not self.is_over_budget
        return is_far_over or self._overdue_debt_s < OVERDUE_BURST_S / 2

    def _note_gaps(self, alarms: list[tuple[int, int]], now_ns: int) -> None:
        """Note the time since the planned wake, and those between alarms and the ends of steps."""
        planned_ns = self._planned_ns
        for began_ns, ended_ns in alarms:
            if began_ns < planned_ns:
                self._note_gap(began_ns, ended_ns, alarms=len(alarms))
                planned_ns = max(planned_ns, ended_ns)
        self._note_gap(planned_ns, now_ns, alarms=len(alarms))

    def _note_gap(self, began_ns: int, ended_ns: int, *, alarms: int = 0) -> None:
        if ended_ns - began_ns < GAP_NS:
            return
        waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - self._waits
        waits -= 1 + alarms  # for the sleep before; an alarm that ends with its step wakes, too
        wakes = (ended_ns - began_ns) / 1e9 / sys.getswitchinterval()
        is_of_lock = waits > wakes / 8  # a thread that waits for the lock wakes this often
        used_ns = thread_ns(self._clock) - self._used_ns
        queued_ns = self._own_queue.waited_ns() - self._queued_ns
        self.gaps.append(Gap(began_ns, ended_ns, is_of_lock, used_ns, queued_ns))

    def _end_steps(self, now_ns: int) -> list[tuple[int, int]]:
        """Judge the steps that have ended; return the alarms since the last look.

        Each has the time until its step ended, or until now.
        """
        after_ns, alarms = self._alarm.after_ns, list[tuple[int, int]]()
        while self._notes:
            step, at_ns, thread = self._notes.popleft()
            began_ns, before = self._began_ns, self._step
            if thread != self._thread:
                self._follow(thread)
            self._step, self._began_ns = step, at_ns
            if began_ns:
                alarms.append((began_ns + after_ns, at_ns))
            if began_ns and step == before + 1:  # else the steps were renumbered
                self._judge(before, began_ns, at_ns)
        if self._began_ns:
            alarms.append((self._began_ns + after_ns, now_ns))
        return [one for one in alarms if after_ns and self._looked_ns < one[0] < one[1]]

    def _judge(self, number: int, began_ns: int, ended_ns: int) -> None:
        took_ns, limit_ns = ended_ns - began_ns, self.limit_ns
        self._recent.append(took_ns)
        if not limit_ns or took_ns <= limit_ns:
            self._even.append(took_ns)
        if len(self._recent) == MIN_RECENT_STEPS and not self.usual_ns:
            self._set_usual()
        if limit_ns and took_ns > limit_ns:
            self.excluded.append((began_ns, ended_ns))
            is_of_event = number - self._slow_before < MIN_STEPS_BETWEEN_EVENTS
            self._in_event = self._in_event + 1 if is_of_event else 1
            self._slow_before = number
            if self._in_event == 1:
                self._longest_ns = 0
            if self._in_event == REJUDGED_STEP_OF_EVENT or took_ns >= 2 * self._longest_ns:
                self._longest_ns = max(self._longest_ns, took_ns)
                overdue_ns = min(self._overdue_ns, OVERDUE * self.usual_ns)
                times = began_ns, ended_ns, self.usual_ns, self._thread, overdue_ns
                self._slow.append(SlowStep(number, *times))

    def _set_usual(self) -> None:
        varied_ns = least_ns = 0
        if len(self._recent) >= MIN_RECENT_STEPS:
            self.usual_ns = sorted(self._recent)[len(self._recent) // 2]
            if 0 < self.limit_ns < self.usual_ns:  # the slow steps have become usual
                self._even.clear()
            # A fault that lasts is no variation.
            even = sorted(self._even if len(self._even) >= MIN_RECENT_STEPS else self._recent)
            factor = even[len(even) * 3 // 4] / max(1, even[len(even) // 2])
            varied_ns = int(self.usual_ns * factor**VARIATION_POWER)
        limits = []
        if self._settings.slower_than and self.usual_ns:
            slower_ns = int(self._settings.slower_than * self.usual_ns)
            least_ns = max(slower_ns, self.usual_ns + MIN_EXTRA_NS)
            limits.append(max(least_ns, varied_ns))
        if self._settings.longer_than_ms:
            limits.append(int(self._settings.longer_than_ms * 1e6))
        if limits:
            self.limit_ns = min(limits)
            self._overdue_ns = (self.usual_ns + self.limit_ns) // 2
            self.is_limit_raised = self.limit_ns == varied_ns > least_ns
            is_warm = len(self._recent) >= MAX_RECENT_STEPS // 2
            if self.is_limit_raised and is_warm:
                self._on_raised(self)
                self._on_raised = lambda _: None

    def _follow(self, thread: int) -> None:
        """Read the clock and the waits of the thread that ends the steps."""
        self._thread = thread
        found = {one.ident: native_id_of(one) for one in threading.enumerate()}
        self._native_id = found.get(thread, 0)
        self._clock = clock_of(self._native_id) if self._native_id else None
        self._used_ns = thread_ns(self._clock)
        self._run_queue.close()
        self._run_queue = RunQueue(self._native_id)

    def _sample(self, now_ns: int, *, is_regular: bool) -> None:
        codes, own, stacks = self.codes, self._own, []
        before = dict(self.ring[-1].stacks) if self.ring else {}
        frame: Any = None  # at the end, too: a frame kept would keep the variables in it
        for thread, frame in sys._current_frames().items():
            if thread in own:
                continue
            found: list[int] = []
            while frame is not None and len(found) < 2 * MAX_DEPTH:
                code = frame.f_code
                key = id(code)
                if key not in codes:
                    codes[key] = code
                found += (key, frame.f_lasti)
                frame = frame.f_back
            stack = tuple(found)
            known = before.get(thread)
            stacks.append((thread, known if known == stack else stack))
        marked = tuple(
            one.message
            for one in all_open()
            if one.domain == "phases" and one.thread == self._native_id
        )
        used = usage(self._clock, self._run_queue)
        step = self._inbox.step
        self.ring.append(Sample(now_ns, step, is_regular, tuple(stacks), marked, used))

    def _read_counters(self, now_ns: int) -> None:
        self.counters.append((now_ns, self._sources.read()))
        if self._gpus:
            self.gpus.append((now_ns, [gpu() for gpu in self._gpus]))

    def _each_second(self, now_ns: int) -> None:
        passed_s = (now_ns - self._second_ns) / 1e9 + 1.0
        self._second_ns = now_ns + 1_000_000_000
        self._set_usual()
        self._read_counters(now_ns)
        names = {one.ident: one.name for one in threads_of_others() if one.ident}
        self.names = {**(self.names if len(self.names) < MAX_NAMES else {}), **names}
        self._own = {one.ident for one in threading.enumerate() if one.ident} - names.keys()
        self._forget(now_ns)
        self._limit_cost(passed_s)

    def _forget(self, now_ns: int) -> None:
        kept_ns = int(max(KEPT_S * 1e9, KEPT_STEPS * self.usual_ns))
        while self.ring and self.ring[0].at_ns < now_ns - kept_ns:
            self.ring.popleft()
        if len(self.codes) > MAX_CODES:
            self.ring.clear()
            self.codes.clear()

    def _limit_cost(self, passed_s: float) -> None:
        """Sample less while samples and records use more than the budget."""
        own_s = time.thread_time()
        sampling_s, all_s = own_s - self._overdue_s, own_s + self.spent_s
        sampling = max(0.0, 100 * (sampling_s - self._sampling_s) / passed_s)
        share = max(0.0, 100 * (all_s - self._all_s) / passed_s)
        self._sampling_s, self._all_s = sampling_s, all_s
        self._seconds = min(self._seconds + 1, AVERAGED)
        self.share_percent += (share - self.share_percent) / self._seconds
        self._extra_percent += (share - sampling - self._extra_percent) / self._seconds
        budget = self._settings.budget_percent
        covered_s = passed_s * OVERDUE_SHARE * budget / 100
        self._overdue_debt_s = max(0.0, self._overdue_debt_s - covered_s)
        aim = max(AIM * budget - self._extra_percent, MIN_AIM * budget)
        change = min(max(sampling / aim, 0.9), 1.5)
        self.slowdown = min(max(self.slowdown * change, 1.0), 100.0)

    def _plan(self, now_ns: int, *, is_overdue: bool) -> None:
        """Set the time of the next wake."""
        may_sample = is_overdue and self._may_sample_overdue(now_ns)
        if may_sample and now_ns - self._overdue_since_ns < OVERDUE_S * 1e9:
            pause_s = OVERDUE_INTERVAL_S * min(self.slowdown, MAX_SLOWDOWN)
            self._planned_ns = now_ns + int(pause_s * 1e9)
        else:
            next_ns = min(self._sample_ns, self._second_ns)
            self._planned_ns = max(next_ns, now_ns + int(SHORTEST_PAUSE_S * 1e9))
