"""The critical path by plain loops, separate from the code under test.

A point is the end of a device's work, or a moment at which a host thread resumes after a wait. Each
point has the reasons for which it was not earlier. The reason that ended last is charged with the
remaining time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.unit.analysis.plain_trace import (
    Activity,
    Event,
    PlainTrace,
    Point,
    end,
    kind_of,
    loads_data,
    start,
    thread_of,
    what,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SETTLES = 10_000
INSIDE = ("cpu_op", "operator", "python_function", "fee")


def overlap(spans: list[tuple[int, int]], begin: int, until: int) -> int:
    """Return how long a time is covered by spans, which are in order of start."""
    found, reached = 0, begin
    for since, over in spans:
        found += max(0, min(over, until) - max(since, reached))
        reached = max(reached, min(over, until))
    return found


class Reason(NamedTuple):
    """Why a point was not earlier: another point, and the host's work after it."""

    over: int
    after: Point
    host: int
    thread: Any
    kind: str


class PlainPath(PlainTrace):
    """The path of a trace.

    Args:
        events: The events with a duration, in the file's order.
    """

    def __init__(self, events: list[Event]) -> None:
        super().__init__(events)
        self.loaders = [event for event in self.events if loads_data(event)]
        self.linked = {self.main, *(thread for thread, *_ in self.backward())}
        self.outermost = self._outermost_calls()
        self.origin = Point(self.t0, self.t0, -1)
        self.joints: dict[Any, list[Point]] = defaultdict(list)
        rows = self._joint_rows()
        self.returns = {point for point, row in rows if row[4] and row is not self.final}
        for point, row in rows:
            self.joints[row[1]].append(point)
        waits, ends = self.stream_waits(), self._ends()
        found = {work["point"]: self._of_work(work, ends, waits) for work in self.activities}
        found |= {point: self._of_joint(*row) for point, row in rows}
        nobody = Reason(self.t0, self.origin, 0, None, "nobody")
        self.reasons = {
            point: [r for r in reasons if r.after < point and r.over <= point.begin] or [nobody]
            for point, reasons in found.items()
        }
        self.order = sorted(self.reasons)

    def _joint_rows(self) -> list[tuple[Point, tuple[Any, ...]]]:
        """Return when a thread resumes: time, thread, end of work, other thread, kind."""
        rows: list[tuple[Any, ...]] = []
        self.final: tuple[Any, ...] = ()
        for call, work in self.call_waits():
            rows.append((end(call), thread_of(call), start(call), None, work))
        for thread, since, begin, until in self.backward():
            rows.append((begin, thread, self.t0, self.main, None))
            rows.append((until, self.main, since, thread, None))
        if self.main is not None:
            last = None if any(work["call"] for work in self.activities) else self._last_work()
            until = self.t0 if last else self.host_done
            self.final = (self.host_done, self.main, until, None, last)
            rows.append(self.final)
        rows.sort(key=lambda row: row[0])
        first = len(self.activities)
        times = [max(row[0], self.t0) for row in rows]  # nothing is before the path
        return [(Point(times[n], times[n], first + n), row) for n, row in enumerate(rows)]

    def _last_work(self) -> Activity | None:
        """Return the work that ended last while the host was at work."""
        done = [work for work in self.activities if work["point"].end <= self.host_done]
        return max(done, key=lambda work: work["point"].end, default=None)

    def _ends(self) -> dict[Any, list[tuple[int, int, Point]]]:
        return {
            stream: sorted((w["point"].end, w["point"].number, w["point"]) for w in given)
            for stream, given in self.streams.items()
        }

    def joint(self, thread: Any, until: int, *, before: bool = False) -> Point:
        """Return the last joint of a thread up to a time, or before it."""
        mine = self.joints.get(thread, [])
        place = (bisect_left if before else bisect_right)([point.end for point in mine], until)
        return mine[place - 1] if place else self.origin

    def _of_work(
        self, work: Activity, ends: dict[Any, Any], waits: dict[Point, list[tuple[Point, bool]]]
    ) -> list[Reason]:
        """Return why device work was not earlier: its launch, its stream, an event."""
        found, own = [], work["point"]
        if work["call"] and id(work["event"]) not in self.held:
            launched, thread = max(work["launched"], self.t0), thread_of(work["call"])
            after = self.joint(thread, launched)
            over = max(min(work["launched"] + self.shortest, own.begin), launched)
            found.append(Reason(over, after, launched - after.end, thread, "launches"))
        mine = ends[work["stream"]]
        place = bisect_left(mine, (own.begin + 1,)) - 1
        while place >= 0 and mine[place][1] >= own.number:
            place -= 1
        if place >= 0:
            found.append(Reason(mine[place][0], mine[place][2], 0, None, "order"))
        others, event = list(found), None
        for source, told in waits.get(own, ()):
            known = [reason.over for reason in (*others, *([event] if event else ()))]
            if source.end > max(known, default=self.t0) or (told and event is None):
                event = Reason(source.end, source, 0, None, "event")
        return [*others, event] if event else others

    def _of_joint(
        self, time: int, thread: Any, until: int, other: Any, work: Activity | None
    ) -> list[Reason]:
        """Return why a thread did not resume earlier: its own work, another thread, a device."""
        after = self.joint(thread, time, before=True)
        until = max(until, after.end)
        found = [Reason(until, after, until - after.end, thread, "chain")]
        if other is not None:
            after = self.joint(other, time, before=True)
            found.append(Reason(time, after, time - after.end, other, "thread"))
        if work is not None:
            found.append(Reason(work["point"].end, work["point"], 0, None, "device"))
        return found

    def binding(self, point: Point) -> Reason:
        """Return the reason that ended last; of equal ones, the first."""
        return max(self.reasons[point], key=lambda reason: reason.over)

    def parts(self, since: int | None = None) -> dict[str, int]:
        """Walk back from the last point to a time; return the path's time by kind."""
        found: dict[str, int] = defaultdict(int)
        first = self.t0 if since is None else since
        for begin, over, kind, thread in self._pieces():
            begin = max(begin, first)
            time = max(0, over - begin)
            at_work = self.at_work(thread, begin, over) if time and kind == "host" else time
            found[kind] += at_work
            found["unknown wait"] += time - at_work
        return found

    def _walk(self) -> list[tuple[Point, Reason]]:
        """Return the points of the path, the last one first, and why each was not earlier."""
        found = []
        point = self.order[-1] if self.order else self.origin
        while point != self.origin:
            found.append((point, self.binding(point)))
            point = found[-1][1].after
        return found

    def earlier_until(self) -> int:
        """Return when the path leaves work from before the recording."""
        until = self.t0
        activities = {work["point"]: id(work["event"]) for work in self.activities}
        for point, _ in self._walk():
            if activities.get(point) in self.flying:
                until = max(until, point.end)
            elif activities.get(point) in self.held:
                until = max(until, point.begin)
        return until

    def _pieces(self) -> list[tuple[int, int, str, Any]]:
        """Return the pieces of the path: begin, end, kind, and a thread of the host."""
        found = []
        activities = {work["point"]: work for work in self.activities}
        for point, reason in self._walk():
            at_work = reason.after.end + reason.host
            found.append((reason.after.end, at_work, "host", reason.thread))
            others = [(at_work, point.end, "unknown wait")]
            if point in activities:
                others = [(point.begin, point.end, self.part_of(activities[point]["event"]))]
                others += self._delay(activities[point], reason, at_work)
            elif point in self.returns:
                others = [(at_work, point.end, "return to the host")]
            found += [(*piece, None) for piece in others]
        return found

    def part_of(self, event: Event) -> str:
        """Return the part of device work: no step's, if it was launched before the recording."""
        flying = id(event) in self.flying
        if flying and any(one["name"].startswith("ProfilerStep#") for one in self.events):
            return "earlier work"
        return what(event)

    def _delay(self, work: Activity, reason: Reason, at_work: int) -> list[tuple[int, int, str]]:
        """Charge the time between the reason and the start of device work."""
        begin = work["point"].begin
        waits = "earlier work" if id(work["event"]) in self.held else "unknown wait"
        if reason.kind != "launches":
            settled = begin - at_work <= SETTLES and reason.kind != "nobody"
            return [(at_work, begin, "between kernels" if settled else waits)]
        held = late if (late := self._late(work, reason)) > SETTLES else 0
        return [(at_work, begin - held, "launches"), (begin - held, begin, "unknown wait")]

    def _late(self, work: Activity, reason: Reason) -> int:
        """Return for how long a work could have begun, after its reason and a whole call."""
        free = at_work = reason.after.end + reason.host
        if reason.kind == "launches":
            free = max(work["launched"] + self.shortest, end(work["call"]), at_work)
        return int(max(0, work["point"].begin - free))

    def _outermost_calls(self) -> dict[Any, list[tuple[int, int]]]:
        """Return start and end of the operators and frames that are in no other, by thread."""
        found: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for event in self.events:
            mine = found[thread_of(event)]
            opens = not mine or mine[-1][1] <= start(event)
            if kind_of(event) in INSIDE and end(event) > start(event) and opens:
                mine.append((start(event), end(event)))
        return found

    def at_work(self, thread: Any, begin: int, until: int) -> int:
        """Return how long a thread works between two times, as far as its waits are known."""
        if thread in self.linked:
            return until - begin
        return overlap(self.outermost[thread], begin, until)

    def loading_in(self, _: Any, begin: int, until: int) -> int:
        """Return how long any thread loads data between two times."""
        return overlap([(start(event), end(event)) for event in self.loaders], begin, until)

    def _slow_call(self, work: Activity, reason: Reason) -> tuple[int, int]:
        """Return start and end of the part of a call beyond the time of the fastest launch."""
        begin = work["point"].begin
        quick = max(max(work["launched"], self.t0), work["launched"] + self.shortest)
        lasts = int(max(0, min(end(work["call"]), begin) - quick))
        since = reason.after.end + reason.host + self.shortest
        return since, since + lasts

    def length(
        self,
        *,
        free: Callable[[Any, int, int], int] = lambda *_: 0,
        prompt: Callable[[Event], bool] = lambda _: False,
        awaited: Callable[[Activity], bool] = lambda _: True,
        without: Callable[[Event], bool] = lambda _: False,
        flying: bool = False,
        on_host: bool = False,
    ) -> int:
        """Return the total time if something cost nothing.

        Args:
            free: How long a thread does nothing between two times.
            prompt: Whether a device work begins as soon as it can.
            awaited: Whether the host waits for a device work.
            without: Whether a device work takes no time.
            flying: Whether work in flight still takes its time.
            on_host: Whether all of the device's work takes no time.
        """
        activities = {work["point"]: work["event"] for work in self.activities}
        self.by_point = {work["point"]: work for work in self.activities}
        reached, opening = {self.origin: 0}, {*self.flying, *self.held}
        for point in self.order:
            ways, bound, kept = [], self.binding(point), self._kept(point, awaited)
            stays = flying and point in activities and id(activities[point]) in self.flying
            earlier = point in activities and id(activities[point]) in opening
            for reason in self.reasons[point] if stays else kept:
                over = reason.over if reason is not bound else point.begin
                takes, since = over - reason.after.end, reason.after.end
                if stays:
                    ways.append(reached[reason.after] + takes)
                    continue
                if reason.kind == "chain" and len(kept) < len(self.reasons[point]):
                    takes = reason.host
                if reason is bound and point in activities:
                    begins = on_host if earlier else prompt(activities[point])
                    takes -= self._late(self.by_point[point], reason) if begins else 0
                if reason.thread is not None:
                    takes -= free(reason.thread, since, since + reason.host)
                    if reason is bound and reason.kind == "launches":
                        takes -= free(reason.thread, *self._slow_call(self.by_point[point], reason))
                ways.append(reached[reason.after] + takes)
            gone = on_host or (point in activities and not stays and without(activities[point]))
            reached[point] = max(ways) + (0 if gone else point.end - point.begin)
        return max(reached.values())

    def _kept(self, point: Point, awaited: Callable[[Activity], bool]) -> list[Reason]:
        """Return the reasons for which a point was not earlier, without some waits for devices."""
        kept = [reason for reason in self.reasons[point]
                if reason.kind != "device" or awaited(self.by_point[reason.after])]  # fmt: skip
        return kept if any(reason.kind == "chain" for reason in kept) else self.reasons[point]
