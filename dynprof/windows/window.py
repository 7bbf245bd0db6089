"""The window engine: drives one recording through warm-up and steps, by a schedule of actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from dynprof.runtime.plural import spanned
from dynprof.runtime.standard_streams import warn_script

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.backends.base import Load, Recording


class ProfilerAction(Enum):
    """What a profiler does during one step."""

    NONE = 0
    """Nothing."""
    WARMUP = 1
    """It is on, but its data are not kept."""
    RECORD = 2
    """Its data are kept."""
    RECORD_AND_SAVE = 3
    """As ``RECORD``, and the window closes at the end of this step."""


RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
"""The actions that keep data."""


@dataclass(eq=False)
class Schedule:
    """Returns the action of each step, like the function from ``torch.profiler.schedule``.

    An unusable number is replaced by the least valid one, with a warning, as in torch_npu.

    Args:
        wait: Steps to do nothing, at the start of each cycle.
        active: Steps to record.
        warmup: Steps to warm up.
        repeat: The number of cycles; 0 for no end.
        skip_first: Steps to do nothing, once, before the first cycle.
        skip_first_wait: If not 0, the first cycle has no ``wait``.

    Attributes:
        wait: The number in use; the other arguments are attributes too.
    """

    wait: int
    active: int
    warmup: int = 0
    repeat: int = 0
    skip_first: int = 0
    skip_first_wait: int = 0

    def __post_init__(self) -> None:
        self.wait, self.active = _usable("wait", self.wait), _usable("active", self.active, least=1)
        self.warmup, self.repeat = _usable("warmup", self.warmup), _usable("repeat", self.repeat)
        self.skip_first = _usable("skip_first", self.skip_first)
        if not isinstance(self.skip_first_wait, int):
            self.skip_first_wait = _usable("skip_first_wait", self.skip_first_wait)

    def __call__(self, step: int) -> ProfilerAction:
        """Return the action of a step, counted from 0.

        Raises:
            ValueError: The step is negative.
        """
        if step < 0:
            raise ValueError(f"step is {step}; it must be 0 or more")
        if step < self.skip_first:
            return ProfilerAction.NONE
        cycle = self.wait + self.warmup + self.active
        since = step - self.skip_first + (self.wait if self.skip_first_wait else 0)
        if self.repeat and since >= self.repeat * cycle:
            return ProfilerAction.NONE
        within = since % cycle
        if within < self.wait:
            return ProfilerAction.NONE
        if within < self.wait + self.warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if within < cycle - 1 else ProfilerAction.RECORD_AND_SAVE


def _usable(name: str, number: object, least: int = 0) -> int:
    """Return the number, or the least valid one with a warning."""
    if isinstance(number, int) and number >= least:
        return number
    wanted = f"a whole number of {least} or more"
    warn_script(f"schedule(): {name}={number!r} is not {wanted}; {least} is used")
    return least


@dataclass
class Window:
    """One window: some steps of warm-up, then the steps to record.

    ``open`` begins its first step. Then ``end_step`` and ``begin_step`` alternate until ``close``.
    A step that was not recorded from its start to its end is not counted.

    Attributes:
        warmup: Steps to warm up; if no number was requested, the warm-up steps so far.
        active: Steps to record; None for no limit.
        asked_first: The job's number of the first requested step.
        action_at: Returns the action of the n-th step, from 0; called once for each, in order.
            Without it, warm-up and recording follow from the numbers.
        marks_steps: Whether the trace has a mark for each step.
        numbers: The job's numbers of the steps that began while recording.
        recorded: Whole steps recorded so far.
        durations_s: Duration of each, in seconds, without dynprof's own time between them.
        recording: The recording; None before it is open, and after another owner took it.
    """

    warmup: int
    active: int | None
    asked_first: int
    action_at: Callable[[int], ProfilerAction] | None = None
    marks_steps: bool = True
    numbers: list[int] = field(default_factory=list)
    recorded: int = 0
    durations_s: list[float] = field(default_factory=list)
    recording: Recording | None = None
    _done: int = 0
    _action: ProfilerAction = ProfilerAction.NONE
    _step_began_s: float = 0.0

    def __post_init__(self) -> None:
        self._action_at = self.action_at or Schedule(
            wait=0, warmup=self.warmup, active=self.active or 1, repeat=1
        )

    @property
    def first(self) -> int:
        """The job's number of the first step recorded, or to record."""
        return self.numbers[0] if self.numbers else self.asked_first

    @property
    def last(self) -> int:
        """The job's number of the last step recorded, or to record."""
        asked = self.first + (self.active or max(self.recorded, 1)) - 1
        return max([asked, *self.numbers[: self.recorded][-1:]])

    @property
    def asked(self) -> str:
        """The requested steps: ``step 7`` or ``steps 7-9 after 2 of warm-up``."""
        text = spanned(self.first, self.last, between="-")
        return f"{text} after {self.warmup} of warm-up" if self.warmup else text

    @property
    def kept(self) -> str:
        """The job's numbers of the whole steps recorded so far, such as ``7-9``."""
        last = self.numbers[: self.recorded][-1:]
        return f"{self.first}-{last[0]}" if self.recorded > 1 else str(self.first)

    @property
    def state(self) -> str:
        """``warmup`` or ``recording``."""
        return "recording" if self._action in RECORDING else "warmup"

    @property
    def progress(self) -> tuple[int, int]:
        """Steps done and steps requested, including warm-up."""
        return self._done, self.warmup + (self.active or 0)

    @property
    def results(self) -> Any:
        """The profiler's own object; None if it has none."""
        return self.recording.results if self.recording else None

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Slower or lesser ways in which it is recorded."""
        return self.recording.fallbacks if self.recording else ()

    @property
    def bound_to_thread(self) -> bool:
        """Whether only the thread that opened it may close it."""
        return self.recording is not None and self.recording.bound_to_thread

    def blocked_by(self) -> str | None:
        """Return why it can be neither moved nor closed now; None if it can."""
        return self.recording.blocked_by() if self.recording else None

    def load(self, *, inside_step: bool) -> Load | None:
        """Return the load so far; None before the recording begins, or if it is unknown."""
        recording = self.recording if self._action in RECORDING else None
        return recording.load(inside_step=inside_step) if recording else None

    def open(
        self,
        prepare: Callable[[], Recording],
        step: int,
        close_for_other: Callable[[], None] | None = None,
    ) -> None:
        """Prepare the recording, and begin its first step.

        Args:
            prepare: Makes the recording.
            step: The job's number of the step that begins.
            close_for_other: Called when another profiler is about to begin.
        """
        self.recording = prepare()
        if close_for_other:
            self.recording.before_another_profiler(close_for_other)
        self.begin_step(step)

    def end_step(self, now_s: float) -> bool:
        """Count the step that ends; return whether it was the last."""
        self._done += 1
        if self._action in RECORDING:
            self.recorded += 1
            self.durations_s.append(now_s - self._step_began_s)
        return self._action is ProfilerAction.RECORD_AND_SAVE

    def begin_step(self, step: int) -> None:
        """Begin the job's step ``step``; the first step to keep starts the recording."""
        if self.recording is None:
            raise RuntimeError("the window is not open")
        before, self._action = self._action, self._action_at(self._done)
        if self._action in RECORDING:
            if before not in RECORDING:
                self._begin_recording(self.recording)
            self.numbers.append(step)
            self.recording.begin_step(step if self.marks_steps else None)

    @property
    def takes_steps_later(self) -> bool:
        """Whether :meth:`count_noted` can begin the next steps, except the last."""
        recording = self.recording
        return bool(recording and recording.note_step and self._action in RECORDING)

    def count_noted(self, step: int, now_s: float, at_ns: int) -> None:
        """Begin a step from its note, and end the step before it.

        Args:
            step: The job's number of the noted step.
            now_s: Monotonic time at which it began.
            at_ns: Time at which it began, nanoseconds since the epoch.
        """
        self.end_step(now_s)
        self._action = self._action_at(self._done)
        self.numbers.append(step)
        if self.recording and self.recording.note_step:
            self.recording.note_step(step if self.marks_steps else None, at_ns)
        self.resume(now_s)

    def _begin_recording(self, recording: Recording) -> None:
        if self.active is None:
            self.warmup = self._done
        recording.start()
        recording.collectors.start()

    def resume(self, now_s: float) -> None:
        """Note when the step began, as the last action before training continues."""
        self._step_began_s = now_s

    def close(self) -> Recording | None:
        """Stop; return the recording, or None if no step began that it could keep."""
        if self.recording is None or self._action not in RECORDING:
            return None
        self.recording.close()
        self.recording.collectors.stop()
        return self.recording
