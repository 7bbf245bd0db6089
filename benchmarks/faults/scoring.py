"""Compares what dynprof said about a job with the ground truth.

A message names ranks if it says something about them that an operator would act on. Messages that
name the same ranks at the same lines, or in the same words, are one answer. The answer to a fault
is the most frequent one, or of equally frequent ones the first.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.faults.jobs import Fault

IN_TIME_S = 60.0
"""Seconds from the onset within which an answer counts."""
ONSET_STEP = 100
"""The step at which faults begin: the usual time of a step is known by then."""
_LINES = re.compile(r"\bjobs\.py:(\d+(?:, \d+)*)")
_SLOW_STEP = re.compile(r"^step (\d+) took")
_ALIKE = re.compile(r"(\d+) slow steps? like step \d+")
_NEUTRAL = ("look at the other ranks", "the pace changed", "stuck:", "no longer stuck")
"""Parts of messages that name no rank: they say that something is wrong, and where to look."""


@dataclass(frozen=True)
class Message:
    """Something that dynprof said.

    Attributes:
        after_s: When, in seconds after the onset; negative before it.
        source: The file or command that said it.
        ranks: The ranks that it is about.
        text: The words.
    """

    after_s: float
    source: str
    ranks: frozenset[int]
    text: str

    @property
    def names_ranks(self) -> bool:
        """Whether it names ranks that have a fault."""
        return not any(part in self.text for part in _NEUTRAL)

    @property
    def lines(self) -> set[int]:
        """The lines of the job that it names."""
        return {int(one) for named in _LINES.findall(self.text) for one in named.split(", ")}

    @property
    def slow_step(self) -> int | None:
        """The number of the slow step of which it is the record."""
        found = _SLOW_STEP.match(self.text)
        return int(found[1]) if found else None

    @property
    def alike(self) -> int:
        """How many slow steps are like that of the record so far; 0 for the record itself."""
        found = _ALIKE.search(self.text)
        return int(found[1]) if found else 0

    @property
    def is_before(self) -> bool:
        """Whether it is about the time before the onset; a record comes a little after its step."""
        return self.after_s < 0 or (self.slow_step or ONSET_STEP) < ONSET_STEP

    @property
    def answer(self) -> object:
        """What it says, without numbers."""
        words = re.sub(r"\d[\d.,:]*", "", self.text.partition("; ")[2] or self.text)
        return self.ranks, frozenset(self.lines) or words


@dataclass
class Score:
    """What dynprof said about a fault, compared with the ground truth.

    Attributes:
        fault: The fault.
        why_not_run: Why the job did not run here; empty if it did.
        answer: The answer; None if there was none in time.
        has_rank: Whether it names the faulty rank and no other; None in a job with one rank.
        has_line: Whether it names a marked line; None if the fault has none.
        has_cause: Whether it names the cause; None if a line is the cause.
        false_alarms: Messages before the onset that name ranks, and forbidden ones.
        occurrences: Slow steps of a fault that returns; the number that were explained, of all.
    """

    fault: Fault
    why_not_run: str = ""
    answer: Message | None = None
    has_rank: bool | None = None
    has_line: bool | None = None
    has_cause: bool | None = None
    false_alarms: list[Message] = field(default_factory=list)
    occurrences: tuple[int, int] | None = None

    @property
    def is_named(self) -> bool:
        """Whether rank, and line or cause, are right, and nothing forbidden was said."""
        right = bool(self.has_line or self.has_cause) and self.has_rank is not False
        return right and not any(not one.is_before for one in self.false_alarms)


def score(fault: Fault, messages: Sequence[Message], last_step: int) -> Score:
    """Compare.

    Args:
        fault: The ground truth.
        messages: Everything that was said.
        last_step: The last step that ended.
    """
    found = Score(fault)
    found.false_alarms = [one for one in messages if _is_false(fault, one)]
    in_time = [
        one
        for one in messages
        if one.after_s <= IN_TIME_S and one.names_ranks and not one.is_before
    ]
    if any(one.source == "dump" for one in in_time):  # the status sends the operator to it
        in_time = [one for one in in_time if one.source != "status"]
    if fault.every > 1:
        found.occurrences = _occurrences(fault, messages, last_step)
    if not in_time:
        return found
    counts = Counter(one.answer for one in in_time)
    most = counts.most_common(1)[0][0]  # of equal counts, the first
    same = [one for one in in_time if one.answer == most]
    found.answer = same[0]
    if fault.rank is not None:
        found.has_rank = same[0].ranks == {fault.rank}
    if lines := fault.lines():
        found.has_line = bool(same[0].lines & lines)
    if fault.cause:
        found.has_cause = any(re.search(fault.cause, one.text) for one in same)
    return found


def _is_false(fault: Fault, message: Message) -> bool:
    if message.is_before:
        return message.names_ranks
    return bool(fault.forbidden and re.search(fault.forbidden, message.text))


def _occurrences(fault: Fault, messages: Iterable[Message], last_step: int) -> tuple[int, int]:
    """Return how many of the slow steps were explained, and their number, a minute after the onset.

    A fault that is observed for one minute only is counted from its onset on. A line of the log
    also counts the slow steps like one with a record, as there is one line in ten seconds at most.
    """
    late = [one for one in messages if one.slow_step is not None]
    if fault.lasts_s > IN_TIME_S:
        late = [one for one in late if one.after_s > IN_TIME_S]
    steps = [one.slow_step for one in late if one.slow_step is not None]
    first = min(steps, default=ONSET_STEP)
    injected = [
        step for step in range(ONSET_STEP, last_step, fault.every) if step >= first or not steps
    ]
    lines = fault.lines()
    told = [(one.slow_step or 0, one.alike) for one in late if one.lines & lines]
    explained = {step for step, _ in told}
    for (before, few), (after, more) in itertools.pairwise(told):
        counted = [step for step in injected if before < step < after]
        if more - few > len(counted):  # each, and the later one, is counted as like the record
            explained |= set(counted)
    return len(explained & set(injected)), len(injected)


def summary(scores: Sequence[Score]) -> str:
    """Return the totals in words."""
    ran = [one for one in scores if not one.why_not_run]
    named = [one for one in ran if one.is_named]
    times = sorted(one.answer.after_s for one in named if one.answer)
    text = f"{len(named)} of {len(scores)} causes named within {IN_TIME_S:.0f} s"
    if times:
        text += f"; median {times[len(times) // 2]:.0f} s, longest {times[-1]:.0f} s"
    failed = [one.fault.name for one in scores if not one.is_named]
    return f"{text}; not named: {', '.join(failed) or 'none'}"
