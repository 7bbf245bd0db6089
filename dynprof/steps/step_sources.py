"""The source of a session's steps: the script, a framework, an optimizer, a function, a clock."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from dynprof.journal.status import NO_SOURCE
from dynprof.runtime.plural import counted
from dynprof.runtime.stacks import place_of
from dynprof.steps.functions import FunctionSteps
from dynprof.steps.optimizers import OptimizerSteps
from dynprof.steps.source import CallbackSteps, EndedSteps, PeriodSteps

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.runtime.clock import Clock
    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.steps.source import Source, StepOption

SCRIPT = "dp.step()"
SILENT_S = 30.0
"""Seconds without a step after which the log names the other sources."""
_OTHERS = {
    "dp.step()": "script",
    "a framework's callback, of dynprof.integrations": "callback",
    'steps="optimizer"': "optimizer",
    'a function, steps="package.module:function"': "function",
    "a period in seconds, steps=5.0": "period",
}


class StepSources:
    """Sets up the requested source, and gives way to a script that calls ``step()`` itself.

    A framework's callback takes precedence over the optimizer, unless another source was requested
    by name.

    Args:
        option: The requested source.
        inbox: Counts the steps, and stores their source.
        journal: Logs the source.
        boundary: Keeps failures from the training loop.
        clock: Tells the time.
        set_step: Renumbers the running step.
    """

    def __init__(
        self,
        option: StepOption,
        inbox: Inbox,
        journal: Journal,
        boundary: ErrorBoundary,
        clock: Clock,
        set_step: Callable[[int, str], None],
    ) -> None:
        self._option, self._inbox, self._journal, self._clock = option, inbox, journal, clock
        self._boundary = boundary
        self._set_step = set_step
        self._named = SCRIPT
        inbox.name_source = self._current_name
        self._steps = EndedSteps(inbox, self._on_other_source)
        self._source: Source | None = None
        self._began_s = clock.now_s()
        self._is_silent = False
        self._callback: CallbackSteps | None = None
        self._declined = False

    @property
    def is_function(self) -> bool:
        """Whether the steps are the returns of a function."""
        return self._option.kind == "function"

    def begin(self) -> None:
        """Set up the source."""
        self._source = self._make()
        self._named = self._name
        self.check()

    def _current_name(self) -> str:
        """Return the current source of steps; called on any thread, even before ``check()``."""
        return SCRIPT if self._yields else self._named

    @property
    def _yields(self) -> bool:
        """Whether the script ends the steps itself, and therefore takes precedence."""
        may_be_both = self._callback or self._option.kind == "auto"
        return bool(self._source and may_be_both and not self._steps.is_only_source)

    @property
    def _name(self) -> str:
        return self._source.name if self._source else SCRIPT

    def check(self) -> None:
        """Check for sources that were not there before; warn if no step has ended for long."""
        why = self._source.check() if self._source else f"{SCRIPT} was not called"
        if self._yields:
            self._yield_to_script(self._steps.ended)
        if self._steps.ended or not self._steps.is_only_source:
            if self._is_silent:
                self._is_silent, self._named = False, self._name
        elif not self._is_silent and self._clock.now_s() - self._began_s > SILENT_S:
            self._is_silent = True
            text = f"no step has ended in {SILENT_S:.0f} s: {why or 'the source reported none'}"
            self._named = f"{NO_SOURCE}: {text}"
            now = "callback" if self._callback else self._option.kind
            others = [text for text, kind in _OTHERS.items() if kind != now]
            where = place_of(threading.main_thread().ident or 0) or "no Python function"
            self._journal.warning(
                f"{text}; the main thread is in {where}, which may be a long first step; other "
                f"sources of steps: {', '.join(others)}"
            )

    def why_none(self) -> str:
        """Return why a source other than the script has ended no step; empty if it has."""
        if self._source is None or self._steps.ended or not self._steps.is_only_source:
            return ""
        return self._source.check() or "the source reported none"

    def end(self) -> None:
        """Stop giving steps; also called in a forked child."""
        source, self._source, self._callback = self._source, None, None
        if source:
            source.end()

    def follow(self, on_begin: Callable[[int], object]) -> None:
        """Call a function with the number of each step that dynprof itself counts."""
        self._steps.on_begin = on_begin

    def renumber(self, step: int) -> None:
        """Continue from another number."""
        self._steps.renumber(step)

    def reached(self, framework: str, step: int) -> None:
        """Process a framework's step count, which is the number of the running step.

        Args:
            framework: The framework of the callback.
            step: The count.
        """
        if self._callback and self._callback.framework == framework:
            self._callback.reached(step)
        elif not self._declined:
            self._boundary.attempt(
                "processing a callback", lambda: self._use_framework(framework, step)
            )

    def _use_framework(self, framework: str, step: int) -> None:
        """Make a framework's callback the source, unless another source takes precedence."""
        found = CallbackSteps(framework, self._steps, self._renumber_running)
        kind = self._option.kind
        if kind not in ("script", "auto") or not (self._callback or self._steps.is_only_source):
            self._declined = True
            self._journal.info(f"{found.name} ends no steps; they come from {self._name}")
            return
        self.end()
        self._source = self._callback = found
        found.begin(step)
        self._found(found.name)

    def _renumber_running(self, step: int, why: str) -> None:
        self._boundary.attempt("renumbering the step", lambda: self._set_step(step, why))

    def _make(self) -> Source | None:
        if self._option.kind in ("auto", "optimizer"):
            return OptimizerSteps(self._steps, self._found, self._boundary)
        if self._option.kind == "function":
            return FunctionSteps(self._option, self._steps, self._found)
        if self._option.kind == "period":
            return PeriodSteps(self._option.seconds, self._steps, self._clock)
        return None

    def _found(self, name: str, advice: str = "") -> None:
        """Log the source that ends the steps from now on."""
        self._is_silent, self._named = False, name
        self._journal.info(f"steps come from {name}{advice}")

    def _on_other_source(self, given: int) -> None:
        self._boundary.attempt("giving way to the script", lambda: self._yield_to_script(given))

    def _yield_to_script(self, given: int) -> None:
        """Leave the steps to the script, which turned out to end them itself."""
        if self._source is None:  # another thread has, at the same moment
            return
        name = self._named
        self._declined = True
        self.end()
        self._named = SCRIPT
        text = f"the script calls {SCRIPT} itself, so {name} ends no more steps"
        if given:
            text += f", and {counted(given, 'step')} that it had ended no longer count"
        self._set_step(self._inbox.step - given, text)
