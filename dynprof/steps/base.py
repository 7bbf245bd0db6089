"""Sources of steps: the option that names one, their interface, and two that are simple.

The two are callbacks of frameworks, and periods.
"""

from __future__ import annotations

import math
import os
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.requests.inbox import Inbox
    from dynprof.runtime.clock import Clock

VARIABLE = "DYNPROF_STEPS"
"""The variable that names the source, where the script passes none."""
KNOWN = (
    '"script", "optimizer", "auto", "package.module:function", "package.module:Class.method" '
    'or a period in seconds, as 5 or "5s"'
)
_FUNCTION = re.compile(r"(?P<module>[\w.]*):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")
_PERIOD = re.compile(r"(?P<seconds>\d+(\.\d*)?|\.\d+) ?s?")
MIN_S, MAX_S = 0.01, 86_400.0
"""Limits of a period, in seconds: a hundred steps a second, and one a day."""


@dataclass(frozen=True)
class StepOption:
    """The requested source of steps.

    Attributes:
        kind: ``script``: its calls of ``step()``; ``optimizer``; ``auto``: the script, or the
            optimizer if the script calls none; ``function``; ``period``.
        module: The module of the function; empty for the script itself.
        function: Its name, with that of its class.
        seconds: The period.
    """

    kind: Literal["script", "optimizer", "auto", "function", "period"]
    module: str = ""
    function: str = ""
    seconds: float = 0.0


def step_option_of(argument: object, *, otherwise: StepOption) -> StepOption:
    """Return the source that an argument, or else the variable, requests.

    Args:
        argument: The argument; None if there is none.
        otherwise: The result if neither requests a source.

    Raises:
        ValueError: It names no source.
    """
    name = VARIABLE if argument is None else "steps"
    value = os.environ.get(VARIABLE) or None if argument is None else argument
    if value is None:
        return otherwise
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _period(name, value)
    if value in ("script", "optimizer", "auto"):
        return StepOption(value)
    if isinstance(value, str) and (found := _PERIOD.fullmatch(value.strip())):
        return _period(name, float(found["seconds"]))
    if isinstance(value, str) and (found := _FUNCTION.fullmatch(value.strip())):
        return StepOption("function", module=found["module"], function=found["name"])
    raise ValueError(f"{name}={value!r} names no source of steps; write {KNOWN}")


def _period(name: str, seconds: float) -> StepOption:
    if not math.isfinite(seconds) or not MIN_S <= seconds <= MAX_S:
        raise ValueError(
            f"{name}={seconds!r}: a period is {MIN_S} to {MAX_S:.0f} seconds; write one of those"
        )
    return StepOption("period", seconds=float(seconds))


class Source(Protocol):
    """A source of steps.

    Attributes:
        name: The source, as in "steps come from ...".
    """

    name: str

    def check(self) -> str:
        """Run once a second; return why no step can end yet, empty if one can."""

    def end(self) -> None:
        """Stop, and undo all changes; also called in a forked child."""


class EndedSteps:
    """Ends steps for one source, and detects that other code ends steps too.

    Args:
        inbox: Counts the steps.
        on_others: Called with the number of steps that this source had ended, if the script turns
            out to end steps itself.

    Attributes:
        ended: How many steps it has ended.
        on_begin: Called with the number of each step as it begins, before pending work; may
            renumber it. None for no call.
        next: The number of the step that it ends next.
    """

    def __init__(self, inbox: Inbox, on_others: Callable[[int], None]) -> None:
        self._inbox, self._on_others = inbox, on_others
        self.next = inbox.step
        self.ended = 0
        self.on_begin: Callable[[int], object] | None = None

    @property
    def is_only_source(self) -> bool:
        """Whether no other code has ended a step since this source began."""
        return self._inbox.step == self.next

    def end_step(self) -> None:
        """End a step and begin the next, as ``dynprof.step()`` does."""
        inbox = self._inbox
        if inbox.step != self.next:
            self._on_others(self.ended)
            return
        self.ended += 1
        inbox.step = self.next = self.next + 1
        if self.on_begin:
            self.on_begin(self.next)
        if inbox.due:
            inbox.on_due()

    def renumber(self, step: int) -> None:
        """Continue from another number, at once: other threads may be ending steps."""
        self._inbox.step = self.next = step


class CallbackSteps:
    """A step ends where the framework's own step count grows by one.

    If the count jumps, as from one training to the next, the numbers continue from there.

    Args:
        framework: The framework of the callback.
        steps: Ends the steps.
        set_step: Renumbers the running step, and logs the reason.
    """

    def __init__(
        self, framework: str, steps: EndedSteps, set_step: Callable[[int, str], None]
    ) -> None:
        self.framework, self.name = framework, f"{framework}'s callback"
        self._steps, self._set_step = steps, set_step

    def check(self) -> str:
        """Return the reason while no step has ended; the framework makes the calls."""
        return f"{self.name} has reported no step"

    def end(self) -> None:
        """Do nothing: nothing was changed."""

    def reached(self, step: int) -> None:
        """Process the framework's step count, which is the number of the running step."""
        ahead = step - self._steps.next
        if ahead == 1:
            self._steps.end_step()
        elif ahead:
            self.begin(step)

    def begin(self, step: int) -> None:
        """Continue from the framework's number, without ending a step."""
        if step != self._steps.next:
            self._set_step(step, f"{self.framework} is at step {step}, not at {self._steps.next}")


class PeriodSteps:
    """A step ends after each period, on its own thread.

    Args:
        seconds: The period.
        steps: Ends the steps.
        clock: Tells the time.
    """

    def __init__(self, seconds: float, steps: EndedSteps, clock: Clock) -> None:
        self._seconds, self._end_step, self._clock = seconds, steps.end_step, clock
        self._ended = threading.Event()
        self.name = f"a period of {seconds:g} s"
        own_thread(self._run, "dynprof-steps").start()

    def check(self) -> str:
        """Return nothing: time passes."""
        return ""

    def end(self) -> None:
        """Stop ending steps."""
        self._ended.set()

    def _run(self) -> None:
        due_s = self._clock.now_s() + self._seconds
        while not self._ended.wait(max(0.0, due_s - self._clock.now_s())):
            self._end_step()
            due_s = max(due_s + self._seconds, self._clock.now_s())  # missed periods are skipped
