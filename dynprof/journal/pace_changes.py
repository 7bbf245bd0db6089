"""Changes of the pace of a job, found in readings of its step counter.

The newest blocks of steps are compared with the usual ones. The pace has changed if it differs by
1.5 times over a minute, or by 1.15 times over five minutes, in both halves of this time. A rank
test (Mann-Whitney) must say in addition that this is no chance. The pace of several blocks is the
mean of their middle half. So single blocks have no effect: an evaluation, a checkpoint, a
recompilation, a pause, a slow step.

The usual blocks are those of the first hour since the last change. So a slow drift is found, too,
once it has reached 1.15 times. It is dated to the middle of its way.

A process that continues a former one is also compared with that, and such a change is dated to its
first step. Its warm-up does not count: a minute for a large change, ten for a small one.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BLOCK_STEPS, BLOCK_S = 30, 30.0
"""A block has that many steps or lasts that many seconds; both limit the error of readings that
are a second or a step apart to some 3%."""
STALL = 1.6
"""A block with that many times the slower pace contains a stall, such as an evaluation; steps that
vary by 30% rarely do."""
NEAR = 10
"""Blocks before and after a change whose means date it."""
CHECK_S = 5.0
"""Seconds between two comparisons; they take some 0.1 ms each."""
USUAL_S = 3600.0
"""Seconds from the last change on in which a block is usual."""
MIN_USUAL, MAX_USUAL = 10, 256
"""Usual blocks that a comparison needs, and to which it is thinned out for speed."""
WARM_UP_S, WARM_UP_STEPS = 600.0, 100
"""Seconds and steps from the first step on; a faster pace in either is a warm-up, and no change:
caches fill, and torch.compile compiles again. Once a slower pace was found, a faster one takes it
back."""


class _Rule(NamedTuple):
    """When two sets of blocks differ.

    The blocks of a former process are compared with none of the first seconds of this one.

    Attributes:
        ratio: The ratio of the means of their middle halves.
        seconds: The time that the newer blocks span.
        blocks: The least number of newer blocks.
        most_blocks: The number of newer blocks up to which it is doubled, for jobs whose step
            times vary.
        deviations: Standard deviations of the rank test, from the value of equal sets.
        settled_s: Seconds from the first step of a process that continues another one, which are
            not compared with it.
    """

    ratio: float
    seconds: float
    blocks: int
    most_blocks: int
    deviations: float
    settled_s: float


_RULES = (_Rule(1.5, 60.0, 8, 8, 4.0, 60.0), _Rule(1.15, 300.0, 16, 64, 5.0, WARM_UP_S))
"""A large change soon, a small one later: a background upload may slow a minute of steps."""
SAME_S, SAME_STEPS = 30.0, 10
"""Seconds, or steps, by which ranks may date the same change differently."""
_KEPT_BLOCKS = 640
"""Blocks kept to date a change: twice those of five minutes, and some."""


@dataclass(frozen=True)
class PaceChange:
    """A change of the pace.

    Attributes:
        at_s: When it changed, in seconds since the epoch.
        step: The first step with the new pace.
        before_ms: Usual time of a step before it, since the change before, in milliseconds.
        after_ms: Usual time of a step since, when the change was found.
    """

    at_s: float
    step: int
    before_ms: float
    after_ms: float

    @property
    def is_slower(self) -> bool:
        """Whether steps take longer since."""
        return self.after_ms > self.before_ms

    def is_same(self, other: PaceChange) -> bool:
        """Return whether two ranks, which step together, have seen the same change."""
        slower_s = max(self.before_ms, self.after_ms) / 1e3
        near = abs(self.at_s - other.at_s) <= max(SAME_S, SAME_STEPS * slower_s)
        return near and self.is_slower == other.is_slower

    def in_words(self, now_s: float) -> str:
        """Return ``22 ms a step until 01:00:50 (step 600), 70 ms since``."""
        until = f"{moment(self.at_s, now_s)} (step {self.step:,})"
        return f"{duration(self.before_ms)} a step until {until}, {duration(self.after_ms)} since"


@dataclass(frozen=True)
class RecentPace:
    """The pace over some time.

    Attributes:
        from_s: Its start, in seconds since the epoch.
        to_s: Its end: that of the last step, or of the last reading if none has ended for long.
        means_ms: The mean time of a step in equal parts of it, in milliseconds; None for a part of
            which no step is known.
    """

    from_s: float = 0.0
    to_s: float = 0.0
    means_ms: tuple[float | None, ...] = ()


def duration(ms: float) -> str:
    """Return a step time with three digits: ``22.1 ms``, ``12.5 s``."""
    value, unit = (ms / 1e3, "s") if ms >= 999.5 else (ms, "ms")
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def moment(at_s: float, now_s: float) -> str:
    """Return a local time; with its date if it is more than half a day ago."""
    form = "%H:%M:%S" if abs(now_s - at_s) < 43_200 else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(at_s))


class Block(NamedTuple):
    """Consecutive steps.

    Attributes:
        from_s: When the first one began, in seconds.
        to_s: When the last one had ended.
        step: The number of the first one.
        steps: Their number.
        ms: The mean time of one.
    """

    from_s: float
    to_s: float
    step: int
    steps: int
    ms: float


class Blocks:
    """Makes blocks from readings of a step counter."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._moved_s: float | None = None  # of the reading that saw the current step first
        self._begun: tuple[float, int] | None = None

    def add(self, at_s: float, step: int, *, counts: bool) -> Block | None:
        """Take a reading, and return the block that it completes.

        Args:
            at_s: Seconds.
            step: The running step.
            counts: Whether the steps since the last reading are usual ones. If not, they are in no
                block, and neither is the rest of the step that runs now.
        """
        moved, self._step = self._step is not None and step != self._step, step
        if not counts:
            self._begun = None
        elif moved and (self._begun is None or step < self._begun[1]):
            self._begun = at_s, step
        elif moved and self._begun is not None:
            from_s, first = self._begun
            seconds, steps = at_s - from_s, step - first
            if steps >= BLOCK_STEPS or seconds >= BLOCK_S:
                self._begun = at_s, step
                return Block(from_s, at_s, first, steps, seconds * 1e3 / steps)
        return None


def paces_ms(readings: Iterable[tuple[float, int, bool]]) -> list[float]:
    """Return the mean time of a step in each block.

    Args:
        readings: The arguments of :meth:`Blocks.add`.
    """
    made = Blocks()
    found = (made.add(at_s, step, counts=counts) for at_s, step, counts in readings)
    return [block.ms for block in found if block]


class PaceChanges:
    """Finds changes of the pace in the readings of one process."""

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._usual: list[float] = []  # in ms; the blocks of the first hour since the last change
        self._recent: deque[Block] = deque(maxlen=_KEPT_BLOCKS)
        self._count = 0  # blocks since the last change
        self._since_s = 0.0  # when the first of them began
        self._first: Block | None = None
        self._checked_s = -math.inf
        self._former: list[float] = []  # in ms, sorted; the blocks of the process before this one
        self._has_changed = False

    def follow(self, former: Sequence[float]) -> None:
        """Also compare with a former process of the rank.

        Args:
            former: The time of a step in its newest blocks, in ms.
        """
        self._former = _thinned(former) if len(former) >= MIN_USUAL else []

    def add(self, at_s: float, step: int, *, counts: bool = True) -> PaceChange | None:
        """Take a reading, as :meth:`Blocks.add` does, and return the change that it shows."""
        block = self._blocks.add(at_s, step, counts=counts)
        if block is None:
            return None
        self._append(block)
        if block.to_s - self._checked_s < CHECK_S:
            return None
        self._checked_s = block.to_s
        change = next(filter(None, map(self._change, self._windows())), None)
        change = change or next(filter(None, map(self._change_of_process, self._windows())), None)
        if change:
            self._former, self._has_changed = [], True
        return change

    def _append(self, block: Block) -> None:
        self._first = self._first or block
        if not self._count:
            self._since_s = block.from_s
        if block.from_s - self._since_s < USUAL_S or self._count < MIN_USUAL:
            self._usual.append(block.ms)
        self._recent.append(block)
        self._count += 1

    def _windows(self) -> Iterator[tuple[int, _Rule]]:
        """Yield numbers of newest blocks to compare, each with its rule."""
        newest = list(itertools.islice(reversed(self._recent), 9))
        length_s = statistics.median(block.to_s - block.from_s for block in newest)
        for rule in _RULES:
            count = max(rule.blocks, math.ceil(rule.seconds / length_s))
            while count <= len(self._recent):
                yield count, rule
                count *= 2
                if count > rule.most_blocks:
                    break

    def _change(self, window: tuple[int, _Rule]) -> PaceChange | None:
        count, rule = window
        usual = self._usual[: max(0, self._count - count)]
        if len(usual) < MIN_USUAL:
            return None
        paces = self._compared(_thinned(usual), count, rule)
        return self._begin_again(*paces) if paces else None

    def _change_of_process(self, window: tuple[int, _Rule]) -> PaceChange | None:
        """Return the change from the former process, dated to the first step of this one."""
        count, rule = window
        first, oldest = self._first, self._recent[-count]
        if not (self._former and first and oldest.from_s - first.from_s >= rule.settled_s):
            return None
        paces = self._compared(self._former, count, rule)
        return PaceChange(first.from_s, first.step, *paces) if paces else None

    def _compared(self, usual: list[float], count: int, rule: _Rule) -> tuple[float, float] | None:
        """Return the pace of usual blocks and of the newest ones if they differ.

        Args:
            usual: The time of a step in the usual blocks, sorted.
            count: The number of newest blocks.
            rule: When they differ.
        """
        newest = [block.ms for block in itertools.islice(reversed(self._recent), count)]
        before_ms = _middle(usual)
        halves_ms = (
            statistics.median(half) for half in (newest[: count // 2], newest[count // 2 :])
        )
        ratios = [ms / before_ms for ms in halves_ms]  # of both halves: the change lasts
        if 1 / rule.ratio < max(ratios) and min(ratios) < rule.ratio:
            return None
        if abs(_deviations(usual, newest)) < rule.deviations:
            return None
        return before_ms, _middle(newest)

    def _begin_again(self, before_ms: float, after_ms: float) -> PaceChange | None:
        """Date a change, and make the blocks since then the usual ones."""
        blocks = list(self._recent)
        place = _split(blocks, before_ms, after_ms)
        after_ms = _middle([block.ms for block in blocks[place:]])
        place = _split(blocks, before_ms, after_ms)
        at_s, step = _onset(blocks, place, before_ms, after_ms)
        self._recent.clear()
        self._usual.clear()
        self._count = 0
        for block in blocks[place:]:
            self._append(block)
        if after_ms < before_ms and self._is_warm_up(at_s, step) and not self._has_changed:
            return None
        return PaceChange(at_s, step, before_ms, after_ms)

    def _is_warm_up(self, at_s: float, step: int) -> bool:
        first = self._first
        if first is None:
            return True
        return at_s - first.from_s < WARM_UP_S or step - first.step < WARM_UP_STEPS


def _thinned(values: Sequence[float]) -> list[float]:
    """Return some of the values, sorted; a comparison of more is slower."""
    return sorted(values[:: 1 + len(values) // MAX_USUAL])


def _middle(values: Sequence[float]) -> float:
    """Return the mean of the middle half, which is finer than a median of values in whole steps."""
    outside = len(values) // 4
    return statistics.fmean(sorted(values)[outside : len(values) - outside])


def _deviations(usual: Sequence[float], newest: Sequence[float]) -> float:
    """Return the standard deviations by which ``newest`` ranks above ``usual``, a sorted list.

    This is the Mann-Whitney test in its normal approximation.
    """
    below = sum(bisect.bisect_left(usual, one) + bisect.bisect_right(usual, one) for one in newest)
    product = len(usual) * len(newest)
    return (below - product) / 2 / math.sqrt(product * (len(usual) + len(newest) + 1) / 12)


def _split(blocks: Sequence[Block], before_ms: float, after_ms: float) -> int:
    """Return the place of the first block that belongs to the new pace."""
    stall_ms = STALL * max(before_ms, after_ms)
    nearer_before = (
        abs(math.log(block.ms / after_ms)) - abs(math.log(block.ms / before_ms))
        if block.ms < stall_ms
        else 0.0
        for block in blocks
    )
    sums = list(itertools.accumulate(nearer_before, initial=0.0))
    return min(len(blocks) - 1, max(range(len(sums)), key=lambda place: sums[place]))


def _onset(
    blocks: Sequence[Block], place: int, before_ms: float, after_ms: float
) -> tuple[float, int]:
    """Return when and at which step the pace changed, from the length of the blocks around it.

    Args:
        blocks: The newest blocks.
        place: The place of the first one with the new pace.
        before_ms: The old pace.
        after_ms: The new pace.
    """
    stall_ms = STALL * max(before_ms, after_ms)
    before_ms = _mean_ms(blocks[max(0, place - NEAR) : max(0, place - 1)], stall_ms) or before_ms
    after_ms = _mean_ms(blocks[place + 1 : place + NEAR], stall_ms) or after_ms
    around = blocks[max(0, place - 1) : place + 1]
    even = [block for block in around if block.ms < stall_ms]
    first, steps = (even or around[-1:])[0], sum(block.steps for block in even)
    old = 0.0  # steps with the old pace
    if before_ms != after_ms:
        took_ms = sum(block.steps * block.ms for block in even)
        old = (took_ms - steps * after_ms) / (before_ms - after_ms)
    old = min(max(0.0, old), float(steps))
    return first.from_s + old * before_ms / 1e3, first.step + round(old)


def _mean_ms(blocks: Sequence[Block], stall_ms: float) -> float | None:
    """Return the mean time of a step, without blocks that contain a stall."""
    even = [block for block in blocks if block.ms < stall_ms]
    steps = sum(block.steps for block in even)
    return sum(block.steps * block.ms for block in even) / steps if steps else None
