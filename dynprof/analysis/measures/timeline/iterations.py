"""How long the iterations of an inference server take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dynprof.analysis.reading.intervals import both, clipped, covered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dynprof.analysis.measures.timeline.iteration_labels import Iteration
    from dynprof.analysis.measures.timeline.steps import MarkedStep, Step
    from dynprof.analysis.reading.intervals import Cover


class IterationTime(NamedTuple):
    """An iteration and its times, in ns.

    Attributes:
        number: Its number.
        label: What its label says.
        begin: When the host began it, since the trace's base time.
        on_host: How long the host took.
        waited: How long of that the host waited for work from before the recording.
        on_device: Time from start to end of the work that it launched, without work from before
            the recording; None without a device.
        busy: How long kernels of that work ran; None without a device.
    """

    number: int
    label: Iteration
    begin: int
    on_host: int
    waited: int
    on_device: int | None
    busy: int | None

    @property
    def time(self) -> int:
        """How long it took, without work from before the recording.

        The host may be done long before the device.
        """
        return max(self.on_host - self.waited, self.on_device or 0)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens through the model in a second; None if unknown."""
        return self.label.tokens / self.time * 1e9 if self.label.tokens and self.time else None


def by_kind(found: Iterable[IterationTime]) -> dict[str, list[IterationTime]]:
    """Return iterations by their kind, the most frequent kind first."""
    kinds: dict[str, list[IterationTime]] = {}
    for one in found:
        kinds.setdefault(one.label.kind, []).append(one)
    return dict(sorted(kinds.items(), key=lambda kind: -len(kind[1])))


def iteration_times(
    labels: Mapping[MarkedStep, Iteration],
    steps: Sequence[Step],
    device: int | None,
    earlier: Cover,
    blocking: Cover,
) -> dict[MarkedStep, IterationTime]:
    """Return the times of the iterations.

    Args:
        labels: The iterations.
        steps: The same on each device.
        device: The device whose times are wanted; None if no device worked.
        earlier: When the device ran work from before the recording.
        blocking: When the host waited for the device.
    """
    of = {(one.number, one.begin, one.length): one for one in steps if one.device == device}
    found = {}
    for key, label in labels.items():
        number, begin, length = key
        inside = [clipped(where, begin, begin + length) for where in (earlier, blocking)]
        on_device = busy = None
        if one := of.get(key):
            first = begin + one.preparing
            on_device = one.stage - covered(clipped(earlier, first, first + one.stage))
            busy = one.computing + one.communication - one.overlapped
        times = (length, both(*inside), on_device, busy)
        found[key] = IterationTime(number or 0, label, begin, *times)
    return found
