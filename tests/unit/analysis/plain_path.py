"""The critical path as plain loops over the raw events count it, apart from the code under test.

Every begin of a launch, every end of a call that waits, every end of a work of a device is a point
in time with the reasons for which it could not be earlier, each as (when that reason was over, which
point it comes from, how long it takes from there and for whose sake). The reason that was over last
is charged with what is left. All times are whole nanoseconds.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Event = dict[str, Any]

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
CALLS = ("cuda_runtime", "cuda_driver", "runtime")
COPIES = ("gpu_memcpy", "memcpy", "gpu_memset", "memset")
COLLECTIVES = ("nccl", "gloo:", "mpi:", "hccl", "hcom", "rccl")
SETTLES = 10_000


class Point(NamedTuple):
    """Something that happened, in the order in which things can depend on each other."""

    end: int
    begin: int
    number: int


class Reason(NamedTuple):
    """Why a point was not earlier: it came some time after another one."""

    over: int
    after: Point
    host: int
    thread: Any
    kind: str


def kind_of(event: Event) -> str:
    """Return the category of an event, in lower case."""
    return str(event.get("cat")).lower()


def ns(microseconds: Any) -> int:
    """Return whole nanoseconds."""
    return round(microseconds * 1000)


def exact_events(path: Path) -> list[Event]:
    """Return the events of a trace that have a duration, with all digits of their times."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        found = json.load(file, parse_float=Decimal)["traceEvents"]
    return [event for event in found if event.get("ph") == "X"]


class PlainPath:
    """The path of a trace.

    Args:
        events: Those with a duration, as they stand in the file.
    """

    def __init__(self, events: list[Event]) -> None:
        self.events = sorted(
            (e for e in events if "ts" in e), key=lambda e: (self.start(e), -ns(e.get("dur", 0)))
        )
        labels = [e for e in self.events
                  if kind_of(e) in ("step", "user_annotation", "cpu_op", "operator")
                  and e["name"].startswith("ProfilerStep#")]  # fmt: skip
        operators = [e for e in self.events if kind_of(e) in ("cpu_op", "operator")]
        calls = [e for e in self.events if kind_of(e) in CALLS]
        self.main = next(
            (self.thread(e) for some in (labels, operators, calls) for e in some), None
        )
        whole = labels or self.events
        self.t0 = min(map(self.start, whole))
        self.done = max(map(self.end, whole))
        self.calls = [e for e in calls if self.t0 < self.end(e) <= self.done]
        self.inside = {id(call) for call in self.calls}
        self.by_correlation: dict[int, Event] = {}
        for call in calls:
            if "correlation" in call["args"]:
                self.by_correlation.setdefault(call["args"]["correlation"], call)
        self.loaders = [
            e for e in self.events
            if kind_of(e) in ("user_annotation", "cpu_op", "operator")
            and ((name := e["name"].strip("# ").lower()) == "dataloader"
                 or ("dataloader" in name and "__next__" in name))
        ]  # fmt: skip
        self.origin = Point(self.t0, self.t0, -1)
        self.points: list[tuple[Point, Event | None]] = [(self.origin, None)]
        self.works: list[dict[str, Any]] = []
        self.joints: dict[Any, list[Point]] = defaultdict(list)
        self.reasons: dict[Point, list[Reason]] = {}
        self._find_works()
        self._find_joints()
        self._find_reasons()
        self.order = sorted(self.reasons)

    def start(self, event: Event) -> int:
        return ns(event["ts"])

    def end(self, event: Event) -> int:
        return self.start(event) + ns(event.get("dur", 0))

    def thread(self, event: Event) -> Any:
        return event["pid"], event["tid"]

    def _point(self, end: int, begin: int, event: Event | None) -> Point:
        point = Point(end, begin, len(self.points))
        self.points.append((point, event))
        return point

    def blocks(self, event: Event, call: Event | None) -> bool:
        """Return whether a copy keeps its call waiting."""
        if call is None or kind_of(event) not in ("gpu_memcpy", "memcpy"):
            return False
        name = call["name"]
        return ("emcpy" in name and "Async" not in name) or "Pageable" in event["name"]

    def _find_works(self) -> None:
        found = []
        for event in self.events:
            if kind_of(event) in ON_DEVICE:
                call = self.by_correlation.get(event["args"].get("correlation", -1))
                start = self.start(event)
                launched = min(self.start(call), start) if call else start
                if self.end(event) > self.t0 and launched < self.done:
                    found.append((event, call, start, self.end(event), launched))
        for event, call, start, end, launched in list(found):
            inside = call and max(start, self.t0) < self.end(call) < end
            if inside and self.blocks(event, call):  # what the call takes part in
                found.append((event, call, start, self.end(call), launched))
        for event, call, start, end, launched in found:
            args = event["args"]
            begin = max(start, self.t0)
            self.works.append({
                "event": event, "call": call, "begin": begin, "end": end, "launched": launched,
                "stream": (args.get("device", -1), args.get("stream", -1)),
                "point": self._point(end, begin, event),
            })  # fmt: skip
        delays = [w["begin"] - w["launched"] for w in self.works if w["call"]]
        self.shortest = min(delays, default=0)
        self.streams = defaultdict(list)
        for work in sorted(self.works, key=lambda w: (w["launched"], w["point"].number)):
            self.streams[work["stream"]].append(work)

    def last_on(self, streams: list[Any], launched: int, ended: int) -> dict[str, Any] | None:
        """Return what was launched on these streams before a time and the last to end by another."""
        last = None
        for stream in streams:
            mine = None
            latest = 0
            for work in self.streams.get(stream, ()):
                latest = max(latest, work["end"])
                if work["launched"] >= launched or latest > ended:
                    break
                mine = work
            if mine and (last is None or mine["end"] > last["end"]):
                last = mine
        return last

    def _syncs(self) -> dict[int, Event]:
        return {e["args"]["correlation"]: e for e in self.events if kind_of(e) == "cuda_sync"}

    def _source_of(self, call: Event) -> dict[str, Any] | None:
        """Return what a synchronising call waited for."""
        args = self._told.get(call["args"].get("correlation"), {}).get("args", {})
        streams, launched = list(self.streams), self.start(call)
        record = self.by_correlation.get(args.get("wait_on_cuda_event_record_corr_id", -1))
        if record:
            streams, launched = [(args["device"], args["wait_on_stream"])], self.start(record)
        elif args and args["stream"] not in (-1, 4294967295):
            streams = [(args["device"], args["stream"])]
        found = self.last_on(streams, launched, self.end(call))
        return found if found and found["end"] > self.start(call) else None

    def _find_joints(self) -> None:
        self._told = self._syncs()
        rows: list[tuple[Any, ...]] = []
        for call in self.calls:
            if "Synchronize" in call["name"] and (source := self._source_of(call)):
                rows.append(
                    (self.end(call), call, self.thread(call), self.start(call), source, None)
                )
        for work in self.works:
            call = work["call"]
            if self.blocks(work["event"], call) and id(call) in self.inside:
                if work["end"] <= self.end(call):
                    row = (self.end(call), call, self.thread(call), self.start(call), work, None)
                    rows.append(row)
        for thread, since, begin, until in self._backward():
            rows.append((begin, None, thread, None, None, self.main))
            rows.append((until, None, self.main, since, None, thread))
        if self.main is not None:
            rows.append((self.done, None, self.main, self.done, None, None))
        self._rows = []
        for row in sorted(rows, key=lambda row: row[0]):
            point = self._point(row[0], row[0], row[1])
            self._rows.append((point, *row))
            self.joints[row[2]].append(point)

    def _backward(self) -> list[tuple[Any, int, int, int]]:
        def runs_backward(name: str) -> bool:
            return "Backward" in name or name.startswith("autograd")

        operators = [e for e in self.events if kind_of(e) in ("cpu_op", "operator")]
        others = {self.thread(e) for e in operators if runs_backward(e["name"])} - {self.main}
        mine = [e for e in self.events if self.thread(e) == self.main
                and (kind_of(e) in ("cpu_op", "operator", "user_annotation")
                     or id(e) in self.inside)]  # fmt: skip
        points = sorted({when for e in mine for when in (self.start(e), self.end(e))})
        found: dict[tuple[Any, int], tuple[Any, int, int, int]] = {}
        for event in operators:
            thread = self.thread(event)
            if thread not in others:
                continue
            place = bisect_right(points, self.start(event))
            if 0 < place < len(points) and self.end(event) <= points[place]:
                since, until = points[place - 1], points[place]
                found.setdefault((thread, since), (thread, since, self.start(event), until))
        return list(found.values())

    def joint(self, thread: Any, until: int, *, before: bool = False) -> Point:
        """Return the last joint of a thread up to a time, or before it."""
        mine = self.joints.get(thread, [])
        cut = bisect_left if before else bisect_right
        place = cut(mine, until, key=lambda point: point.end)
        return mine[place - 1] if place else self.origin

    def _find_reasons(self) -> None:
        waits = self._stream_waits()
        ends = {stream: sorted((w["end"], w["point"].number, w["point"]) for w in given)
                for stream, given in self.streams.items()}  # fmt: skip
        for work in self.works:
            found, begin, own = [], work["begin"], work["point"]
            if work["call"]:
                launched = max(work["launched"], self.t0)
                after = self.joint(self.thread(work["call"]), launched)
                over = max(min(work["launched"] + self.shortest, begin), launched)
                host = launched - after.end
                found.append(Reason(over, after, host, self.thread(work["call"]), "launches"))
            mine = ends[work["stream"]]
            place = bisect_left(mine, (begin + 1,)) - 1
            while place >= 0 and mine[place][1] >= own.number:
                place -= 1
            if place >= 0:
                last = mine[place][2]
                found.append(Reason(last.end, last, 0, None, "order"))
            for source, told in waits.get(own, ()):
                ready = max([reason.over for reason in found], default=self.t0)
                already = any(reason.kind == "event" for reason in found)
                if source["end"] > ready or (told and not already):
                    found = [reason for reason in found if reason.kind != "event"]
                    found.append(Reason(source["end"], source["point"], 0, None, "event"))
            self._keep(own, found)
        for point, time, call, thread, since, source, other in self._rows:
            after = self.joint(thread, time, before=True)
            until = max(after.end, after.end if since is None else since)
            found = [Reason(until, after, until - after.end, thread, "chain")]
            if other is not None:
                after = self.joint(other, time, before=True)
                found.append(Reason(time, after, time - after.end, other, "thread"))
            if source is not None:
                found.append(Reason(source["end"], source["point"], 0, None, "device"))
            self._keep(point, found)

    def _keep(self, point: Point, reasons: list[Reason]) -> None:
        good = [r for r in reasons if r.after < point and r.over <= point.begin]
        nobody = Reason(self.t0, self.origin, 0, None, "nobody")
        self.reasons[point] = good or [nobody]

    def _stream_waits(self) -> dict[Point, list[tuple[dict[str, Any], bool]]]:
        found = defaultdict(list)
        for call in self.calls:
            if "StreamWaitEvent" not in call["name"]:
                continue
            args = self._told.get(call["args"].get("correlation"), {}).get("args")
            called = self.start(call)
            record = args and self.by_correlation.get(args.get("wait_on_cuda_event_record_corr_id"))
            for stream, given in self.streams.items():
                if args and stream != (args["device"], args["stream"]):
                    continue
                later = [work for work in given if work["launched"] >= called]
                if not later:
                    continue
                waiting = later[0]
                if record:
                    source = (args["device"], args["wait_on_stream"])
                    earlier = self.last_on([source], self.start(record), waiting["begin"])
                    if earlier:
                        found[waiting["point"]].append((earlier, True))
                    continue
                if not waiting["call"] or self.thread(waiting["call"]) != self.thread(call):
                    continue
                for other in self.streams:
                    if other == stream or other[0] != stream[0]:
                        continue
                    if args and args.get("wait_on_stream", -1) not in (-1, other[1]):
                        continue
                    earlier = self.last_on([other], called, waiting["begin"])
                    if earlier:
                        found[waiting["point"]].append((earlier, False))
        return found

    def binding(self, point: Point) -> Reason:
        """Return the reason that was over last; of several, the first."""
        return max(self.reasons[point], key=lambda reason: reason.over)

    def what(self, event: Event) -> str:
        """Return what a work is: kernels, communication or copies."""
        if kind_of(event) in COPIES:
            return "copies"
        lower = event["name"].lower()
        is_collective = any(c in lower for c in COLLECTIVES) and not lower.startswith("nccl:")
        return "communication" if is_collective else "kernels"

    def parts(self) -> dict[str, int]:
        """Walk back from the last point; return how long the path is in what."""
        found: dict[str, int] = defaultdict(int)
        works = {work["point"]: work for work in self.works}
        joints = {row[0]: row for row in self._rows}
        point = max(self.reasons, key=lambda p: (p.end, p.begin, p.number), default=self.origin)
        while point != self.origin:
            reason = self.binding(point)
            at_work = reason.after.end + reason.host
            found[f"host of {reason.thread}"] += reason.host
            if point in works:
                found[self.what(works[point]["event"])] += point.end - point.begin
                free = max(works[point]["launched"] + self.shortest, at_work)
                if reason.kind == "launches":
                    free = min(max(free, self.end(works[point]["call"])), point.begin)
                    held = point.begin - free > SETTLES
                    found["launches"] += (free if held else point.begin) - at_work
                    found["unknown wait"] += point.begin - free if held else 0
                else:
                    late = point.begin - at_work
                    settled = late <= SETTLES and reason.kind != "nobody"
                    found["between kernels" if settled else "unknown wait"] += late
            else:
                named = "return to the host" if joints[point][2] else "unknown wait"
                found[named] += point.end - at_work
            point = reason.after
        return found

    def loading_in(self, begin: int, end: int) -> int:
        """Return for how long data is loaded between two times."""
        found, reached = 0, begin
        for event in self.loaders:
            since, until = max(self.start(event), reached), min(self.end(event), end)
            found += max(0, until - since)
            reached = max(reached, until)
        return found

    def length(
        self,
        *,
        host: bool = True,
        loading: bool = True,
        without: Callable[[Event], bool] = lambda _: False,
    ) -> int:
        """Return how long everything takes if the host, or some works, cost nothing."""
        works = {work["point"]: work["event"] for work in self.works}
        reached = {self.origin: 0}
        for point in self.order:
            ways, bound = [], self.binding(point)
            for reason in self.reasons[point]:
                last = reason.over if reason is not bound else point.begin
                takes, since = last - reason.after.end, reason.after.end
                takes -= 0 if host else reason.host
                takes -= 0 if loading else self.loading_in(since, since + reason.host)
                ways.append(reached[reason.after] + takes)
            free = point in works and without(works[point])
            reached[point] = max(ways) + (0 if free else point.end - point.begin)
        return max(reached.values())
