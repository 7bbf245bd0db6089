"""Causes of a device's idle time, counted gap by gap with plain loops over the raw events."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.real_traces import OWN, raw_events, whole_span
from tests.unit.analysis.plain_trace import held, in_flight

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Event = dict[str, Any]
Thread = tuple[Any, Any]

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
CALLS = ("cuda_runtime", "cuda_driver", "runtime")
WORKING = (*CALLS, "cpu_op", "operator", "python_function")
FIRST_USE = "first use of the device or a library"
ALLOCATES = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost", "hipMalloc", "hipFree")
FAST = 100_000


def category(event: Event) -> str:
    """Return an event's category in lower case."""
    return str(event.get("cat")).lower()


class Spans:
    """Spans that can be searched for those around a moment."""

    def __init__(self, spans: list[tuple[int, int, Any]]) -> None:
        self._of = defaultdict[int, list[tuple[int, int, Any]]](list)
        self._first = min((s for s, _, _ in spans), default=0)
        self._last = max((e for _, e, _ in spans), default=0)
        self._width = max(1, (self._last - self._first) // (len(spans) + 1))
        for span in spans:
            for bucket in range(span[0] // self._width, span[1] // self._width + 1):
                self._of[bucket].append(span)

    def at(self, moment: int) -> Any:
        """Return the key of a span that is open at a moment; None if there is none."""
        for start, end, what in self._of[moment // self._width]:
            if start <= moment < end:
                return what
        return None

    def edges(self, begin: int, end: int) -> set[int]:
        """Return where spans begin or end between two moments."""
        first, last = max(begin, self._first), min(end, self._last)
        return {
            time
            for bucket in range(first // self._width, last // self._width + 1)
            for span in self._of[bucket]
            for time in span[:2]
            if begin < time < end
        }


class Oracle:
    """A trace's events, searched by their names alone."""

    def __init__(self, path: Path) -> None:
        events = raw_events(path, Decimal)
        self.events = sorted(events, key=lambda e: (self.begin(e), -self.length(e)))
        self.work = [e for e in self.events if category(e) in ON_DEVICE]
        self.calls: dict[Any, Event] = {}
        for event in self.events:
            correlation = event.get("args", {}).get("correlation", -1)
            if category(event) in CALLS and correlation >= 0:
                self.calls.setdefault(correlation, event)
        self.behind = held(self.events, self.calls)
        self.flying = in_flight(self.events, self.calls)
        self.copied = {id(c): w["name"] for w in self.work if "mem" in category(w)
                       if (c := self.launch(w))}  # fmt: skip
        labels = [e for e in self.events if self.is_step(e)]
        labels = labels or [e for e in self.events if e["name"].startswith("execute_")]
        counted = defaultdict[Thread, int](int)
        for label in labels:
            counted[self.thread(label)] += 1
        self.main = max(counted, key=lambda thread: counted[thread], default=None)
        self.steps = sorted({(self.begin(e), self.end(e)) for e in labels})
        self.recorded = self.steps
        self.steps = self.steps or [whole_span(self.events)]
        calls = [event for event in self.events if self.is_first_call(event)]
        self.first_calls = [(call, self.inner(call)) for call in calls]
        self.known = {name: self.by_thread(test) for name, test in self.tests().items()}
        self.everywhere = {
            "compiling": Spans(
                [self.span(e) for e in self.events if "(dynamo_timed)" in e["name"]]
            ),
            "collecting garbage": Spans([self.span(e) for e in self.events if category(e) == "gc"]),
        }
        requests = [e for e in self.events if e["name"] == "Activity Buffer Request"]
        self.requests = Spans([self.span(e, self.span(e)) for e in requests])
        self.launchers = defaultdict[Thread, list[int]](list)
        for call in {id(c): c for w in self.work if (c := self.launch(w))}.values():
            self.launchers[self.thread(call)].append(self.begin(call))
        for begins in self.launchers.values():
            begins.sort()

    def begin(self, event: Event) -> int:
        """Return when an event begins, in ns."""
        return int(event["ts"] * 1000)

    def length(self, event: Event) -> int:
        """Return how long it lasts."""
        lasts: int = round(event["dur"] * 1000)
        return lasts

    def end(self, event: Event) -> int:
        """Return when it ends."""
        return self.begin(event) + self.length(event)

    def span(self, event: Event, what: Any = True) -> tuple[int, int, Any]:
        """Return an event's times and an identifying key."""
        return self.begin(event), self.end(event), what

    def spans(self, test: Callable[[Event], bool]) -> Spans:
        """Return the spans of all threads that pass a test."""
        return Spans([self.span(event) for event in self.events if test(event)])

    def thread(self, event: Event) -> Thread:
        """Return the thread of an event."""
        return event["pid"], event["tid"]

    def is_step(self, event: Event) -> bool:
        """Return whether it marks a step."""
        name = event["name"].removeprefix("ProfilerStep#")
        labels = ("user_annotation", "cpu_op", "operator", "step")
        return name != event["name"] and name.isdecimal() and category(event) in labels

    def launch(self, work: Event) -> Event | None:
        """Return the call that launched an event."""
        return self.calls.get(work["args"]["correlation"])

    def blocks(self, event: Event) -> str:
        """Return how a call blocks the host; empty if it does not."""
        copy, name = self.copied.get(id(event), ""), event["name"]
        if category(event) not in CALLS or "Device -> Device" in copy:
            return ""
        if "Pageable" in copy:
            return "copying pageable memory"
        copies = name.startswith(("cudaMemcpy", "hipMemcpy")) and "Async" not in name
        return "synchronising" if "Synchronize" in name or copies else ""

    def is_first_use(self, event: Event) -> bool:
        """Return whether it is such a call, or an operator of which such calls take over half."""
        inside = sum(self.length(call) for call, inner in self.first_calls if inner is event)
        return self.is_first_call(event) or 2 * inside > self.length(event)

    def inner(self, call: Event) -> Event | None:
        """Return the innermost operator around a call."""
        there = [e for e in self.events if category(e) in ("cpu_op", "operator")
                 and self.thread(e) == self.thread(call) and not self.is_step(e)
                 and self.begin(e) <= self.begin(call) < self.end(e)]  # fmt: skip
        return max(there, key=lambda e: (self.begin(e), -self.end(e)), default=None)

    def is_first_call(self, event: Event) -> bool:
        """Return whether a long call is in the first operator of a name, or the first call."""
        moves = ("Synchronize", "Memcpy", "Memset", "memcpy", "memset")
        long = category(event) in CALLS and self.length(event) >= 10_000_000
        if not long or any(word in event["name"] for word in moves):
            return False
        if not (inner := self.inner(event)):
            same = (e for e in self.events if e["name"] == event["name"])
            return sum(self.length(e) >= 10_000_000 for e in same) == 1
        return not any(
            e["name"] == inner["name"] and category(e) in ("cpu_op", "operator")
            and self.begin(e) < self.begin(inner) for e in self.events
        )  # fmt: skip

    def tests(self) -> dict[str, Callable[[Event], bool]]:
        """Return the tests for causes that keep a thread from launching."""
        label = ("user_annotation", "cpu_op", "operator")

        def labelled(event: Event, *starts: str) -> bool:
            plain = event["name"].strip("# ").lower()
            return category(event) in label and plain.startswith(starts)

        def loads(event: Event) -> bool:
            plain = event["name"].strip("# ").lower()
            inner = "dataloader" in plain and "__next__" in plain
            return category(event) in label and (plain == "dataloader" or inner)

        return {
            "recording": lambda e: bool(OWN.match(e["name"])),
            "checkpoint": lambda e: labelled(e, "checkpoint"),
            "data loading": loads,
            FIRST_USE: self.is_first_use,
            "allocating device memory": lambda e: category(e) in CALLS and e["name"] in ALLOCATES,
            "optimizer": lambda e: labelled(e, "optimizer"),
            "blocked": lambda e: bool(self.blocks(e)),
            "open": lambda e: category(e) in WORKING and not self.is_step(e),
        }

    def by_thread(self, test: Callable[[Event], bool]) -> dict[Thread, Spans]:
        """Return the spans of each thread that pass a test."""
        found = defaultdict[Thread, list[tuple[int, int, Any]]](list)
        reached = defaultdict[Thread, int](int)
        for event in self.events:
            if test(event):
                thread = self.thread(event)
                begin, end, _ = self.span(event)
                if self.blocks(event):  # of nested calls the outer one counts
                    begin = max(begin, reached[thread])
                    reached[thread] = max(reached[thread], end)
                if end > begin:
                    found[thread].append((begin, end, (event, end - begin)))
        return {thread: Spans(spans) for thread, spans in found.items()}

    def at(self, name: str, thread: Thread | None, moment: int) -> Any:
        """Return the key of a kind of span that is open on a thread at a moment."""
        spans = self.known[name].get(thread)  # type: ignore[arg-type]
        return spans.at(moment) if spans else None

    # The gaps.

    def idle(self, device: int) -> tuple[dict[str, int], dict[str, int]]:
        """Return idle time by cause and by kind within the steps, in ns."""
        causes, kinds = defaultdict[str, int](int), defaultdict[str, int](int)
        work = [e for e in self.work if e["args"]["device"] == device]
        first = min(self.begin(work[0]), self.steps[0][0])
        before, reached = None, first
        ends = [max(max(map(self.end, work)), max(end for _, end in self.steps))]
        for after in [*work, None]:
            until = self.begin(after) if after else ends[0]
            if until > reached and id(after) not in self.behind:
                for begin, end, cause, kind in self.gap(reached, until, before, after):
                    weight = sum(b <= begin < e for b, e in self.steps)
                    causes[cause] += weight * (end - begin)
                    kinds[kind] += weight * (end - begin)
            if after and (before is None or self.end(after) > reached):
                before, reached = after, max(reached, self.end(after))
            reached = max(reached, until)
        return dict(causes), dict(kinds)

    def gap(
        self, begin: int, end: int, before: Event | None, after: Event | None
    ) -> list[tuple[int, int, str, str]]:
        """Return the pieces of a gap: begin, end, cause and kind."""
        call = self.launch(after) if after else None
        if after and not call:
            return self.before_unlaunched(begin, end, after)
        launched = min(max(self.end(call), begin), end) if call else end
        called = min(max(self.begin(call), begin), end) if call else end
        earlier = self.launch(before) if before else None
        threads = [self.thread(one) for one in (call, earlier) if one]
        threads += [self.main] if self.main else []
        times = {begin, end, launched, called, *(t for step in self.steps for t in step)}
        for thread in threads:
            for known in self.known.values():
                times |= known[thread].edges(begin, end) if thread in known else set()
        for spans in (*self.everywhere.values(), self.requests):
            times |= spans.edges(begin, end)
        waited, until = self.drained(begin, before, threads)
        bounds = sorted({t for t in (*times, min(until, launched)) if begin <= t <= end})
        found = []
        for a, b in pairwise(bounds):
            if a >= launched:
                cause = "waiting in the queue" if launched == begin else "starting"
                kind = "queued"
            elif (
                (not after or (not before and a < called))
                and not any(s <= a < e for s, e in self.recorded)
                and not (call and self.at(FIRST_USE, self.thread(call), a))
            ):
                cause = kind = "nothing to do"
            else:
                actor = self.acting(threads, a)
                blocked = self.at("blocked", actor, a)
                kind = "host blocked" if blocked else "host late"
                cause = self.cause(actor, a, blocked, waited if a < until else None, call)
                kind = cause if cause == "nothing to do" else kind
            found.append((a, b, cause, kind))
        return found

    def before_unlaunched(
        self, begin: int, end: int, after: Event
    ) -> list[tuple[int, int, str, str]]:
        """Return the pieces of a gap before something that nothing in the trace launched."""
        marks = {t for step in self.steps for t in step if begin < t < end}
        said = ("unknown", "unknown")
        if id(after) in self.flying:
            said = ("waiting in the queue", "queued")
        return [(a, b, *said) for a, b in pairwise(sorted({begin, end, *marks}))]

    def acting(self, threads: list[Thread], moment: int) -> Thread | None:
        """Return the thread that had to launch the next work."""
        if len(set(threads)) > 1:
            for thread in threads:
                if self.at("open", thread, moment):
                    return thread
        return self.main or (threads[0] if threads else None)

    def drained(self, begin: int, before: Event | None, threads: list[Thread]) -> tuple[Any, int]:
        """Return the call during which the device became idle, and the end of its effect."""
        thread = self.acting(threads, begin)
        spans = self.known["blocked"].get(thread)  # type: ignore[arg-type]
        found = spans.at(begin - 1) if spans and before else None
        return (found, begin + found[1]) if found else (None, begin)

    def cause(
        self, thread: Thread | None, moment: int, blocked: Any, waited: Any, call: Event | None
    ) -> str:
        """Return why a host thread launched nothing at a moment."""
        for name in ("recording", "compiling", "checkpoint", "data loading", "collecting garbage"):
            spans = self.everywhere.get(name)
            if name == "recording" and self.held(thread, moment):
                return name
            if spans.at(moment) if spans else self.at(name, thread, moment):
                return name
        ways = [self.blocks(one[0]) for one in (blocked, waited) if one]
        for name in ("copying pageable memory", "synchronising"):
            if name in ways:
                return name
        for name in (FIRST_USE, "allocating device memory", "optimizer"):
            if self.at(name, thread, moment):
                return name
        return self.symptom(thread, moment, call)

    def symptom(self, thread: Thread | None, moment: int, call: Event | None) -> str:
        """Return what a host thread did at a moment if nothing explains why."""
        if not call and not self.at("open", thread, moment):
            return "nothing to do"
        return "launching" if call and self.pace(call) < FAST else "elsewhere on the host"

    def held(self, thread: Thread | None, moment: int) -> bool:
        """Return whether CUPTI allocates at a moment while the thread begins no call."""
        if not (request := self.requests.at(moment)):
            return False
        begin, end, _ = request
        return not any(
            category(event) in CALLS
            and self.thread(event) == thread
            and begin <= self.begin(event) < end
            for event in self.events
        )

    def pace(self, call: Event) -> float:
        """Return the time from the previous launch on its thread to the end of a launch."""
        begins = self.launchers[self.thread(call)]
        place = bisect_left(begins, self.begin(call))
        return self.end(call) - begins[place - 1] if place else float("inf")
