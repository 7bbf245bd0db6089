"""Time and memory by module, compared with plain loops over the raw events."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.reading.spans import ROOT
from dynprof.analysis.report.sections import modules_data
from dynprof.analysis.vendor_files.tables import own_tables
from tests.real_traces import everything, on_each
from tests.unit.analysis.measures.numbered import (
    GRAPH,
    ON_DEVICE,
    Event,
    operator,
    run_again,
    write,
)
from tests.unit.analysis.random_models import random_model

if TYPE_CHECKING:
    from pathlib import Path

Key = tuple[tuple[str, ...], str]
NO_LABELS = ("profilerstep#", "nccl", "gloo:")
OUTSIDE: Key = ((), "forward")
AGAIN = ("recomputation",)


class Oracle:
    """Counts by module with loops that check for each span whether it was open."""

    def __init__(self, events: list[Event]) -> None:
        spans = [event for event in events if event.get("ph") == "X"]
        frames = [e for e in spans if e["kind"] == "python_function"
                  and e["name"].startswith("nn.Module: ")]  # fmt: skip
        if not frames:
            frames = [e for e in spans if e["kind"] == "user_annotation" and not any(
                mark in e["name"].lower() for mark in NO_LABELS)]  # fmt: skip
        self.operators = [e for e in spans if e["kind"] in ("cpu_op", "operator")]
        graph = [e for e in self.operators
                 if e["name"].startswith(GRAPH) and "Sequence number" in e["args"]]  # fmt: skip
        self.by_thread = defaultdict(list)
        again = run_again(spans)
        self.again = {id(e) for e in again}
        self.is_frame = {id(e) for e in frames}
        others = [e for e in again if id(e) not in self.is_frame]
        for event in sorted(frames + graph + others, key=lambda e: (e["begin"], -e["end"])):
            self.by_thread[event["thread"]].append(event)
        self.lines = {
            thread: (mine, [e["begin"] for e in mine],
                     list(itertools.accumulate((e["end"] for e in mine), max)))
            for thread, mine in self.by_thread.items()
        }  # fmt: skip
        self.keys: dict[int, Key] = {}
        self.is_graph = {id(e) for e in graph}
        self.by_sequence = defaultdict(list)
        for event in self.operators:
            number = event["args"].get("Sequence number")
            if number is not None and id(event) not in self.is_graph:
                self.by_sequence[number].append(event)

    def open_at(self, thread: Any, when: int, among: int | None = None) -> Event | None:
        """Return the last-begun open span; with a name, the last one before that name's span."""
        spans, begins, ends = self.lines.get(thread, ([], [], []))
        place = bisect.bisect_right(begins, when) - 1
        if among is not None:
            place = next(i for i, e in enumerate(spans) if id(e) == among) - 1
        while place >= 0 and ends[place] > when:
            if spans[place]["end"] > when:
                return spans[place]
            place -= 1
        return None

    def key_at(self, thread: Any, when: int) -> Key:
        """Return the module to which a time belongs."""
        found = self.open_at(thread, when)
        key = self.key(found) if found else OUTSIDE
        return key if key[0] else OUTSIDE

    def key(self, event: Event) -> Key:
        """Return a span's path of modules, and its phase."""
        if id(event) in self.keys:
            return self.keys[id(event)]
        outer = self.open_at(event["thread"], event["begin"], id(event))
        above = self.key(outer) if outer else OUTSIDE
        if id(event) in self.is_graph:
            key, maker = above, self.maker(event)
            if maker:
                path = self.key_at(maker["thread"], maker["begin"])[0]
                key = self.original(path), "backward"
        else:
            key = above
            if id(event) in self.again and above[0][:1] != AGAIN:
                key = AGAIN, "forward"
            if id(event) in self.is_frame:
                key = (*key[0], event["name"].removeprefix("nn.Module: ")), key[1]
        self.keys[id(event)] = key
        return key

    def original(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """Return the path of the module that a recomputed one is, if only one has its name."""
        if path[:1] != AGAIN:
            return path
        known = {key[0] for key in self.keys.values() if key[0][:1] != AGAIN}
        known = {one for one in known if one[-1:] == path[-1:]}
        return known.pop() if len(known) == 1 else ()

    def maker(self, graph: Event) -> Event | None:
        """Return the operator that made the node of a backward pass."""
        number = graph["args"]["Sequence number"]
        made = [e for e in self.by_sequence[number] if not self.inside(e, number)]
        if len({e["thread"] for e in made}) != 1:
            return None
        before = [e for e in made if e["begin"] < graph["begin"]]
        return max(before, key=lambda e: (e["begin"], -e["end"]), default=None)

    def inside(self, event: Event, number: int) -> bool:
        """Return whether an operator is itself a node of a backward pass."""
        around = [e for e in self.by_thread.get(event["thread"], ()) if id(e) in self.is_graph
                  and e["begin"] <= event["begin"] < e["end"]]  # fmt: skip
        return bool(around) and around[-1]["args"]["Sequence number"] == number

    def device(self, events: list[Event]) -> tuple[dict[Key, int], int]:
        """Return device time by module, and the device time of unknown origin."""
        calls = {e["args"]["correlation"]: e for e in events
                 if e["kind"] in ("cuda_runtime", "cuda_driver", "runtime")
                 and "correlation" in e.get("args", {})}  # fmt: skip
        by_id = {e["args"].get("External id", 0): e for e in self.operators}
        found, unknown = defaultdict[Key, int](int), 0
        for work in events:
            if work["kind"] not in ON_DEVICE or work.get("ph") != "X":
                continue
            number = work["args"].get("External id", 0)
            start = calls.get(work["args"]["correlation"])
            if start is None and number not in (0, work["args"]["correlation"]):
                start = by_id.get(number)
                start = start if start and start["begin"] <= work["begin"] else None
            if start is None:
                unknown += work["end"] - work["begin"]
            else:
                found[self.key_at(start["thread"], start["begin"])] += work["end"] - work["begin"]
        return found, unknown

    def host(self) -> dict[Key, int]:
        """Return host time by module; each moment counts for the innermost module."""
        found = defaultdict[Key, int](int)
        for thread, events in self.by_thread.items():
            moments = sorted({e[end] for e in events for end in ("begin", "end")})
            for now, then in itertools.pairwise(moments):
                if self.open_at(thread, now):
                    found[self.key_at(thread, now)] += then - now
        return found

    def allocated(self, events: list[Event]) -> dict[Key, int]:
        """Return allocated bytes by module."""
        found = defaultdict[Key, int](int)
        for event in events:
            if event["name"] == "[memory]" and event["args"]["Bytes"] > 0:
                key = self.key_at(event["thread"], event["begin"])
                found[key] += int(event["args"]["Bytes"])
        return found


def ours(measured: MeasuredTrace, what: str) -> dict[Key, int]:
    """Return dynprof's amounts of one kind by module."""
    found = measured.modules
    paths: list[tuple[str, ...]] = []
    sums = defaultdict[Key, int](int, {OUTSIDE: getattr(found.outside, what)})
    for row in found.rows:
        paths.append((*(paths[row.parent] if row.parent != ROOT else ()), row.name))
        sums[paths[-1], "forward"] += getattr(row.forward, what)
        sums[paths[-1], "backward"] += getattr(row.backward, what)
    return sums


def same(one: dict[Key, int], other: dict[Key, int]) -> bool:
    """Return whether two counts are equal; a missing key counts as zero."""
    return {k: v for k, v in one.items() if v} == {k: v for k, v in other.items() if v}


def check(path: Path) -> MeasuredTrace:
    """Compare a trace's amounts by module with plain counts; they add up to the total."""
    events, measured = everything(path), MeasuredTrace(path)
    oracle, found = Oracle(events), measured.modules
    device, unknown = oracle.device(events)
    assert same(ours(measured, "device"), device)
    assert found.device_unknown == unknown
    assert same(ours(measured, "allocated"), oracle.allocated(events))
    whole = int(measured.trace.spans["length"][measured.launches.work].sum())
    assert sum(ours(measured, "device").values()) + unknown == whole
    known = [(one.flops or 0) for one in measured.operator_costs.known]
    flops = sum(known[code] for code in measured.operator_costs.code.tolist())
    assert sum(ours(measured, "flops").values()) == flops
    for phase in ("forward", "backward"):
        for what in ("host", "device", "allocated", "flops"):
            own = sum(getattr(getattr(row, phase), what) for row in found.rows)
            total = sum(getattr(getattr(row, f"{phase}_total"), what)
                        for row in found.rows if row.parent == ROOT)  # fmt: skip
            assert own == total
    return measured


@on_each
def test_on_real_traces(path: Path) -> None:
    """Labels name modules; device time of backward passes belongs to the forward label."""
    check(path)


@pytest.mark.parametrize("frames", [True, False], ids=["modules", "labels"])
@pytest.mark.parametrize("seed", range(8))
def test_on_random_models(tmp_path: Path, seed: int, *, frames: bool) -> None:
    """Modules nest, run on two threads and are recomputed; some launches are not recorded."""
    path = random_model(tmp_path, seed, frames=frames)
    measured = check(path)
    oracle = Oracle(everything(path))
    assert same(ours(measured, "host"), oracle.host())
    assert measured.modules.of_labels is not frames
    assert any(row.backward.device for row in measured.modules.rows)
    assert any(row.backward.flops for row in measured.modules.rows)


def frame(name: str, ts: int, dur: int) -> Event:
    """Return the frame of a module."""
    return {"name": f"nn.Module: {name}", "cat": "python_function", "ts": ts, "dur": dur}


def test_the_last_operator_with_the_number_made_the_node(tmp_path: Path) -> None:
    """A node's forward operator is the last one with its number, not one nested in a module."""
    measured = write(tmp_path / "a.trace.json", [
        frame("First_0", 0, 10), operator("aten::view", 1, 2, 7),
        frame("Second_0", 20, 10), operator("aten::addmm", 21, 2, 7),
        operator(f"{GRAPH}: AddmmBackward0", 50, 9, 7, thread=2),
        operator("AddmmBackward0", 51, 7, 7, thread=2),
    ])  # fmt: skip
    times = {row.name: row.backward.host for row in measured.modules.rows}
    assert times == {"First_0": 0, "Second_0": 9000}


def test_a_sequence_number_of_two_threads_has_no_owner(tmp_path: Path) -> None:
    """Each thread numbers its own operators: ambiguous numbers have no owner."""
    measured = write(tmp_path / "a.trace.json", [
        operator("aten::addmm", 0, 2, 7, thread=3),
        frame("Part_0", 0, 10), operator("aten::addmm", 1, 2, 7),
        operator(f"{GRAPH}: AddmmBackward0", 50, 9, 7, thread=2),
    ])  # fmt: skip
    assert [row.backward.host for row in measured.modules.rows] == [0]
    assert measured.modules.outside.host == 9000


def test_a_module_around_a_backward_pass_does_not_own_its_work(tmp_path: Path) -> None:
    """For example, a module's step calls both: the forward module owns the backward pass."""
    measured = write(tmp_path / "a.trace.json", [
        frame("Whole_0", 0, 100), frame("Part_0", 10, 20), operator("aten::addmm", 11, 5, 7),
        operator(f"{GRAPH}: AddmmBackward0", 50, 30, 7),
        {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": 55, "dur": 1,
         "args": {"correlation": 5}},
        {"name": "kernel", "cat": "kernel", "tid": 7, "ts": 60, "dur": 11,
         "args": {"correlation": 5, "device": 0, "stream": 7}},
    ])  # fmt: skip
    whole, part = measured.modules.rows
    assert (whole.forward.host, whole.backward.host, whole.forward.device) == (50_000, 0, 0)
    assert (part.forward.host, part.backward.host, part.backward.device) == (20_000, 30_000, 11_000)
    assert (whole.backward_total.device, whole.calls, part.calls) == (11_000, 1, 1)


def test_steps_and_collectives_are_not_labels(tmp_path: Path) -> None:
    """Without recorded modules, labels make a tree; not every range is a label."""
    names = ("ProfilerStep#3", "nccl:all_reduce", "gloo:all_reduce", "## forward ##")
    measured = write(tmp_path / "a.trace.json", [
        {"name": name, "cat": "user_annotation", "ts": 10 * place, "dur": 5}
        for place, name in enumerate(names)
    ])  # fmt: skip
    assert [row.name for row in measured.modules.rows] == ["## forward ##"]
    assert measured.modules.of_labels


def test_ranges_that_cross_are_not_nested(tmp_path: Path) -> None:
    """As in torch, each has its whole time, and what both contain belongs to the later one."""
    measured = write(tmp_path / "a.trace.json", [
        {"name": "one", "cat": "user_annotation", "ts": 0, "dur": 10},
        {"name": "other", "cat": "user_annotation", "ts": 4, "dur": 20},
        {"name": "inner", "cat": "user_annotation", "ts": 5, "dur": 3},
    ])  # fmt: skip
    rows = [(row.name, row.parent, row.forward.host) for row in measured.modules.rows]
    assert rows == [("one", ROOT, 10_000), ("other", ROOT, 17_000), ("inner", 1, 3000)]


def on_device(correlation: int, external: int) -> Event:
    """Return a kernel of 5 us without a recorded launch."""
    told = {"correlation": correlation, "External id": external, "device": 0, "stream": 7}
    return {"name": "kernel", "cat": "kernel", "tid": 7, "ts": 30, "dur": 5, "args": told}


def test_a_kernel_without_its_launch_has_the_operator_that_it_names(tmp_path: Path) -> None:
    """The kernel's id must be an operator's; an id that repeats a correlation has no owner."""
    product = {"name": "aten::mm", "cat": "cpu_op", "ts": 2, "dur": 3, "args": {"External id": 4}}
    for correlation, known in ((9, 5000), (4, 0)):
        events = [frame("Part_0", 0, 10), product, on_device(correlation, external=4)]
        measured = write(tmp_path / "a.trace.json", events)
        assert [row.forward.device for row in measured.modules.rows] == [known]
        assert measured.modules.device_unknown == 5000 - known


def test_a_trace_of_a_device_alone(tmp_path: Path) -> None:
    """Without the host's operators, device work belongs to none."""
    launch = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": 2, "dur": 3,
              "args": {"correlation": 9}}  # fmt: skip
    measured = write(tmp_path / "a.trace.json", [launch, on_device(9, external=9)])
    assert measured.operators.device_unknown == 5000
    assert (measured.modules.rows, measured.modules.outside.device) == ([], 5000)


def test_arithmetic_of_a_module_is_unknown_if_most_of_its_kernels_are(tmp_path: Path) -> None:
    """A product of 2 x 4 x 5 x 6 operations is known; what a graph or Triton's kernel does is not.

    The page and the table do not say 0 then.
    """

    def launched(name: str, correlation: int, ts: int, lasts: int) -> list[Event]:
        call = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": ts, "dur": 1,
                "args": {"correlation": correlation}}  # fmt: skip
        kernel = {"name": name, "cat": "kernel", "tid": 7, "ts": ts + 50, "dur": lasts,
                  "args": {"correlation": correlation, "device": 0, "stream": 7}}  # fmt: skip
        return [call, kernel]

    product = {"name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 5, "args": {
        "Input Dims": [[4, 5], [5, 6]], "Input type": ["float", "float"]}}  # fmt: skip
    measured = write(tmp_path / "a.trace.json", [
        frame("Known_0", 0, 10), product, *launched("gemm", 1, 2, 6), *launched("own", 2, 8, 5),
        frame("Unknown_0", 20, 10), *launched("triton", 3, 22, 20),
    ])  # fmt: skip
    rows = {row.name: row.forward for row in measured.modules.rows}
    assert rows["Known_0"].known_flops == 2 * 4 * 5 * 6
    assert rows["Unknown_0"].known_flops is None
    _, table = own_tables(measured)["module_details.csv"]
    assert {row[0]: row[9:11] for row in table}["Unknown_0"] == ("N/A", "N/A")
    assert [row[14] for row in modules_data(measured)["rows"]] == [2.4e-7, None]
