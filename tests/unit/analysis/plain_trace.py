"""The inputs of the critical path, found by plain loops over the raw events of a trace.

They are the launcher of each piece of device work, and all waits. Times are whole nanoseconds.
Nothing of the package is used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import Any, NamedTuple

from tests.real_traces import OWN, whole_span

Event = dict[str, Any]
Activity = dict[str, Any]

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
CALLS = ("cuda_runtime", "cuda_driver", "runtime")
OPERATORS = ("cpu_op", "operator")
LABELS = ("user_annotation", *OPERATORS)
COPIES = ("gpu_memcpy", "memcpy")
MEMSETS = ("gpu_memset", "memset")
COLLECTIVES = ("nccl", "gloo:", "mpi:", "hccl", "hcom", "rccl")
WHOLE_DEVICE = (-1, 4294967295)
HELD = 100_000


class Point(NamedTuple):
    """Something that happened, in the order of possible dependencies."""

    end: int
    begin: int
    number: int


def kind_of(event: Event) -> str:
    """Return the category of an event, in lower case."""
    return str(event.get("cat")).lower()


def ns(microseconds: float) -> int:
    """Convert to whole nanoseconds."""
    return round(microseconds * 1000)


def start(event: Event) -> int:
    """Return when an event began."""
    return ns(event["ts"])


def end(event: Event) -> int:
    """Return when an event ended."""
    return start(event) + ns(event.get("dur", 0))


def thread_of(event: Event) -> Any:
    """Return the thread of an event."""
    return event["pid"], event["tid"]


def blocks(event: Event, call: Event | None) -> bool:
    """Return whether a copy blocks its call."""
    if call is None or kind_of(event) not in COPIES:
        return False
    name = call["name"]
    return ("emcpy" in name and "Async" not in name) or "Pageable" in event["name"]


def what(event: Event) -> str:
    """Return the kind of device work: kernels, communication or copies."""
    if kind_of(event) in COPIES + MEMSETS:
        return "copies"
    lower = event["name"].lower()
    collective = any(mark in lower for mark in COLLECTIVES) and not lower.startswith("nccl:")
    return "communication" if collective else "kernels"


def stream_of(event: Event) -> tuple[int, int]:
    """Return the device and the stream of an activity."""
    return event["args"].get("device", -1), event["args"].get("stream", -1)


def in_flight(events: list[Event], launches: dict[int, Event]) -> set[int]:
    """Return the ids of the activities that come before any with a launch on their stream."""
    activities = [event for event in events if kind_of(event) in ON_DEVICE]
    known, found = set(), set()
    for event in activities:
        if launches.get(event["args"].get("correlation", -1)):
            known.add(stream_of(event))
        elif stream_of(event) not in known and event["args"].get("correlation") is not None:
            found.add(id(event))
    return found if known else set()


def held(events: list[Event], launches: dict[int, Event]) -> dict[int, tuple[int, int]]:
    """Return between which times a device ran what was launched before the recording.

    By the id of the work that began then.
    """
    flying, first = in_flight(events, launches), min(map(start, events), default=0)
    reached: dict[int, int] = {}
    seen, found, usual = set(), {}, 0
    delays: dict[int, int] = {}
    used = {e["args"].get("correlation") for e in events if kind_of(e) in ON_DEVICE}
    lost = min((start(e) for e in events if kind_of(e) in CALLS and launches_work(e)
                and e["args"].get("correlation") not in used), default=1 << 62)  # fmt: skip
    for event in events:
        if kind_of(event) not in ON_DEVICE:
            continue
        (device, _), stream = stream_of(event), stream_of(event)
        call, free = launches.get(event["args"].get("correlation", -1)), reached.get(device, first)
        waited = start(event) - max(free, end(call) if call else first)
        opens = id(event) in flying and device not in reached
        is_first = call and stream not in seen and start(call) <= lost
        if (id(event) in flying or is_first) and (opens or waited > HELD):
            found[id(event)] = free, start(event)
        if call and not is_first:
            usual = max(usual, waited)
        if is_first and id(event) in found:
            delays[id(event)] = waited
        seen.add(stream)
        reached[device] = max(reached.get(device, 0), end(event))
    return {one: when for one, when in found.items() if delays.get(one, usual + 1) > usual}


def launches_work(call: Event) -> bool:
    """Return whether a call of the runtime launches device work."""
    return any(word in call["name"] for word in ("Launch", "Memcpy", "Memset"))


def loads_data(event: Event) -> bool:
    """Return whether a label is that of a data loader."""
    name = event["name"].strip("# ").lower()
    loads = name == "dataloader" or ("dataloader" in name and "__next__" in name)
    return loads and kind_of(event) in LABELS


class PlainTrace:
    """The device work of a trace, and all waits.

    Args:
        events: The events with a duration, in the file's order.
    """

    def __init__(self, events: list[Event]) -> None:
        self.events = sorted(events, key=lambda e: (start(e), start(e) - end(e)))
        labels = [e for e in self.events if kind_of(e) in ("step", *LABELS)
                  and e["name"].startswith("ProfilerStep#")]  # fmt: skip
        operators = [e for e in self.events if kind_of(e) in OPERATORS]
        calls = [e for e in self.events if kind_of(e) in CALLS]
        does = (e for some in (labels, operators, calls) for e in some)
        self.main = next(map(thread_of, does), None)
        self.t0, self.done = whole_span(self.events)
        if labels:
            self.t0, self.done = min(map(start, labels)), max(map(end, labels))
        self.host_done = self.done
        self.calls = [call for call in calls if self.t0 < end(call) <= self.done]
        self.inside = {id(call) for call in self.calls}
        self.launches: dict[int, Event] = {}
        for call in calls:
            self.launches.setdefault(call["args"].get("correlation", -1), call)
        self.launches.pop(-1, None)
        self.told = {e["args"]["correlation"]: e["args"] for e in self.events
                     if kind_of(e) == "cuda_sync"}  # fmt: skip
        self.held = held(self.events, self.launches)
        self.flying = in_flight(self.events, self.launches)
        self.activities = [self._work(number, *one) for number, one in enumerate(self._found())]
        if self.activities and not labels:
            self.host_done = min(self.done, self._finished())
        by_delay = sorted(self.activities, key=self._delay_of)
        self.shortest = next((self._delay_of(w) for w in by_delay if self._was_free(w)), 0)
        self.streams: dict[Any, list[Activity]] = defaultdict(list)
        for work in sorted(self.activities, key=lambda w: (w["launched"], w["point"].number)):
            self.streams[work["stream"]].append(work)

    def _found(self) -> list[tuple[Event, Event | None, int]]:
        """Return device work, calls and ends; then the calls' parts of copies that outlast them."""
        found: list[tuple[Event, Event | None, int]] = []
        for event in self.events:
            if kind_of(event) in ON_DEVICE:
                call = self.launches.get(event["args"].get("correlation", -1))
                if end(event) > self.t0 and self._launched(event, call) < self.done:
                    found.append((event, call, end(event)))
        last = max([self.done, *(over for e, _, over in found if id(e) not in self.flying)])
        found = [one for one in found if id(one[0]) not in self.flying or one[2] <= last]
        self.begins, reached = dict[int, int](), defaultdict[Any, int](int)
        for event, _, over in found:
            free = reached[stream_of(event)]
            self.begins[id(event)] = max(start(event), self.t0, free if free <= over else 0)
            reached[stream_of(event)] = max(free, over)
        parts = [(event, call, end(call)) for event, call, over in found
                 if call and blocks(event, call)
                 and self.begins[id(event)] < end(call) < over]  # fmt: skip
        return found + parts

    def _launched(self, event: Event, call: Event | None) -> int:
        first = self.t0 if id(event) in self.flying else start(call or event)
        return min(first, start(event))

    def _finished(self) -> int:
        """Return when the main thread ended, without the end of the recording."""
        jobs = [event for event in self.events if kind_of(event) != "trace"]
        last, first = max(map(end, jobs)), min(map(start, jobs))
        stop = min((start(e) for e in jobs
                    if OWN.match(e["name"]) and end(e) == last and start(e) > first),
                   default=last)  # fmt: skip
        return max(min(end(e), stop if kind_of(e) == "python_function" or OWN.match(e["name"])
                       else last)
                   for e in jobs if thread_of(e) == self.main and start(e) <= stop
                   and kind_of(e) not in ON_DEVICE)  # fmt: skip

    def _delay_of(self, work: Activity) -> int:
        delay: int = work["point"].begin - work["launched"]
        return delay

    def _was_free(self, work: Activity) -> bool:
        """Return whether a work was launched, and its stream had nothing to do then."""
        if not work["call"] or id(work["event"]) in self.held:
            return False
        begin, number = work["point"].begin, work["point"].number
        earlier = [other["point"] for other in self.activities if other["stream"] == work["stream"]
                   and other["point"].end <= begin and other["point"].number < number]  # fmt: skip
        return all(point.end <= work["launched"] for point in earlier)

    def _work(self, number: int, event: Event, call: Event | None, over: int) -> Activity:
        return {
            "event": event,
            "call": call,
            "launched": self._launched(event, call),
            "stream": stream_of(event),
            "point": Point(over, self.begins[id(event)], number),
        }

    def last_on(self, streams: list[Any], launched: int, ended: int) -> Activity | None:
        """Return the last-ended work of some streams that another call launched before a time."""
        last = None
        for stream in streams:
            mine, latest = None, self.t0
            for work in self.streams.get(stream, ()):
                latest = max(latest, work["point"].end)
                if work["launched"] >= launched or latest > ended:
                    break
                mine = work
            if mine and (last is None or mine["point"].end > last["point"].end):
                last = mine
        return last

    def record_of(self, args: Event) -> Event | None:
        """Return the call that recorded the event of a wait."""
        return self.launches.get(args.get("wait_on_cuda_event_record_corr_id", -1))

    def source_of(self, call: Event) -> Activity | None:
        """Return what a synchronising call waited for."""
        args = self.told.get(call["args"].get("correlation", -1), {})
        streams, launched, record = list(self.streams), start(call), self.record_of(args)
        if record:
            streams, launched = [(args["device"], args["wait_on_stream"])], start(record)
        elif args and args["stream"] not in WHOLE_DEVICE:
            streams = [(args["device"], args["stream"])]
        found = self.last_on(streams, launched, end(call))
        return found if found and found["point"].end > start(call) else None

    def call_waits(self) -> list[tuple[Event, Activity]]:
        """Return which calls waited for which device work."""
        copies = [(work["call"], work) for work in self.activities if work["call"]
                  and blocks(work["event"], work["call"]) and id(work["call"]) in self.inside
                  and work["point"].end <= end(work["call"])]  # fmt: skip
        syncs = [(call, self.source_of(call)) for call in self.calls
                 if "Synchronize" in call["name"]]  # fmt: skip
        return [*((call, work) for call, work in syncs if work), *copies]

    def stream_waits(self) -> dict[Point, list[tuple[Point, bool]]]:
        """Return which device work waits for which other, and whether the trace records it."""
        found = defaultdict[Point, list[tuple[Point, bool]]](list)
        for call in self.calls:
            args = self.told.get(call["args"].get("correlation", -1), {})
            for stream in self.streams if "StreamWaitEvent" in call["name"] else ():
                later = [w for w in self.streams[stream] if w["launched"] >= start(call)]
                if later and (not args or stream == (args["device"], args["stream"])):
                    found[later[0]["point"]] += self._sources(call, args, later[0])
        return found

    def _sources(self, call: Event, args: Event, waiting: Activity) -> list[tuple[Point, bool]]:
        begin = waiting["point"].begin
        if record := self.record_of(args):
            source = (args["device"], args["wait_on_stream"])
            earlier = self.last_on([source], start(record), begin)
            return [(earlier["point"], True)] if earlier else []
        if not waiting["call"] or thread_of(waiting["call"]) != thread_of(call):
            return []
        device, own = waiting["stream"]
        others = [other for other in self.streams if other[0] == device and other[1] != own
                  and args.get("wait_on_stream", -1) in (-1, other[1])]  # fmt: skip
        possible = [self.last_on([other], start(call), begin) for other in others]
        return [(earlier["point"], False) for earlier in possible if earlier]

    def backward(self) -> list[tuple[Any, int, int, int]]:
        """Return thread, last moment before, start and end of each wait of the main thread."""
        operators = [e for e in self.events if kind_of(e) in OPERATORS]
        others = {thread_of(e) for e in operators
                  if "Backward" in e["name"] or e["name"].startswith("autograd")}  # fmt: skip
        mine = [e for e in self.events if thread_of(e) == self.main
                and (kind_of(e) in LABELS or id(e) in self.inside)]  # fmt: skip
        points = sorted({when for e in mine for when in (start(e), end(e))})
        found: dict[tuple[Any, int], tuple[Any, int, int, int]] = {}
        for event in operators:
            thread, place = thread_of(event), bisect_right(points, start(event))
            if thread not in others - {self.main} or not 0 < place < len(points):
                continue
            if end(event) <= points[place]:
                since, until = points[place - 1], points[place]
                found.setdefault((thread, since), (thread, since, start(event), until))
        return list(found.values())
