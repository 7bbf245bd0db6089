"""Times that cannot be: each has a remark with a count, and none makes a step wrong."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.findings.rules import all_findings
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.reading.columns import DoubtfulTimes
from dynprof.analysis.reading.trace import load_trace
from dynprof.analysis.runs.merge import merge
from tests.real_traces import on_each

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
BASE = 1_767_189_312_000_000_000


def job(steps: int = 3, start: float = 1000.0) -> list[Event]:
    """Return the events of steps of 1 ms, with four kernels of 100 us each."""
    found: list[Event] = []
    host = {"ph": "X", "pid": 1, "tid": 1}
    for step in range(steps):
        begin = start + 1000 * step
        found.append({**host, "cat": "user_annotation", "name": f"ProfilerStep#{step}",
                      "ts": begin, "dur": 1000})  # fmt: skip
        for number in range(4):
            launch, when = 4 * step + number + 1, begin + 50 + 200 * number
            found.append({**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": when,
                          "dur": 5, "args": {"correlation": launch}})  # fmt: skip
            found.append(kernel(launch, when + 20, 100))
    return found


def kernel(launch: int, ts: float, dur: float, stream: int = 7) -> Event:
    """Return a kernel."""
    return {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": stream, "ts": ts,
            "dur": dur, "args": {"device": 0, "stream": stream, "correlation": launch}}  # fmt: skip


def kernels(events: list[Event]) -> list[Event]:
    """Return the kernels among events."""
    return [event for event in events if event["cat"] == "kernel"]


def measured(path: Path, events: list[Event], base: int | None = BASE) -> MeasuredTrace:
    """Write and measure a trace."""
    members = {} if base is None else {"baseTimeNanoseconds": base}
    path.write_text(json.dumps({**members, "traceEvents": events}))
    return MeasuredTrace(path)


def computing_us(events: list[Event]) -> float:
    """Return how long the kernels run, which do not overlap."""
    return float(sum(event["dur"] for event in kernels(events)))


@pytest.mark.parametrize(
    ("times", "remark"),
    [
        ({"dur": float("nan")}, "2 events had a time that is missing, infinite or not a number"),
        ({"dur": float("inf")}, "2 events had a time that is missing, infinite or not a number"),
        ({"ts": None}, "2 events had a time that is missing, infinite or not a number"),
        ({"dur": "x"}, "2 events had a time that is missing, infinite or not a number"),
        ({"dur": -3.5}, "2 events had a negative duration"),
        ({"ts": 0, "dur": 0}, "did not measure 2 device activities: the start is 0"),
    ],
)
@pytest.mark.parametrize("base", [BASE, None])
def test_events_without_a_possible_time_are_left_out_and_counted(
    tmp_path: Path, times: Event, remark: str, base: int | None
) -> None:
    """The times of all others are as in the raw events."""
    events = job(start=1000.0 if base else BASE / 1000)
    whole = len(events)
    bad = kernels(events)[3:5]
    for one in bad:
        one |= times
    found = measured(tmp_path / "a.trace.json", events, base)
    assert len(found.trace.spans["start"]) == whole - 2
    good = [event for event in events if event not in bad]
    assert sum(step.computing for step in found.steps) == computing_us(good) * 1000
    assert {step.length for step in found.steps} == {10**6}
    assert [remark in words for words in found.truncation.sentences()] == [True]


@pytest.mark.parametrize("base", [BASE, None])
@pytest.mark.parametrize("seed", range(6))
def test_entries_that_are_no_events_are_counted(
    tmp_path: Path, seed: int, base: int | None
) -> None:
    """All events are read, and the remark has the number of the other entries."""
    rng, events = random.Random(seed), job(start=1000.0 if base else BASE / 1000)  # noqa: S311
    given: list[Any] = list(events)
    count = rng.randint(1, 5)
    for _ in range(count):
        other = rng.choice([None, 5, 1.5, "text", [], [events[0]], {}, {"name": "x"}, True])
        given.insert(rng.randrange(len(given)), other)
    found = measured(tmp_path / "a.trace.json", given, base)
    assert len(found.trace.spans["start"]) == len(events)
    assert found.trace.doubtful == DoubtfulTimes(no_events=count)
    noun = "entry of the list of events is" if count == 1 else "entries of the list of events are"
    assert found.truncation.sentences()[0].startswith(f"{count} {noun} no event")


def test_a_missing_duration_is_no_zero(tmp_path: Path) -> None:
    """An event that needs a duration and has none is counted as unreadable."""
    events = job()
    del kernels(events)[0]["dur"]
    found = measured(tmp_path / "a.trace.json", events)
    assert found.trace.doubtful.unreadable == 1


def test_a_kernel_of_which_only_the_end_was_measured_is_left_out(tmp_path: Path) -> None:
    """It would begin at 0, years before everything else."""
    events = job(start=BASE / 1000)
    kernels(events)[1] |= {"ts": 0, "dur": BASE / 1000}
    found = measured(tmp_path / "a.trace.json", events, None)
    assert found.trace.doubtful.not_measured == 1
    assert {step.length for step in found.steps} == {10**6}


@pytest.mark.parametrize("base", [BASE, None])
def test_absolute_nanoseconds_are_read_as_such(tmp_path: Path, base: int | None) -> None:
    """Every start and duration is that of the file, to the nanosecond, and a remark names it."""
    events = job(start=0)
    for place, event in enumerate(events):
        event["ts"] = BASE + round(event["ts"] * 1000) + place
        event["dur"] = round(event["dur"] * 1000)
    found = measured(tmp_path / "a.trace.json", events, base)
    spans = found.trace.spans
    assert sorted(spans["start"].tolist()) == sorted(event["ts"] for event in events)
    assert sorted(spans["length"].tolist()) == sorted(event["dur"] for event in events)
    remark = f"The times of {len(events)} events are nanoseconds"
    assert found.truncation.sentences()[0].startswith(remark)


def test_one_event_in_nanoseconds_is_counted_as_one(tmp_path: Path) -> None:
    """All others are in microseconds, as the format wants."""
    events = job(start=BASE / 1000)
    lengths = [step.length for step in measured(tmp_path / "a.trace.json", events, None).steps]
    events[4] |= {"ts": round(events[4]["ts"] * 1000), "dur": 5000}
    found = measured(tmp_path / "b.trace.json", events, None)
    assert found.truncation.sentences()[0].startswith("The times of 1 event are nanoseconds")
    assert [step.length for step in found.steps] == lengths


@pytest.mark.parametrize("start", [1000.0, 4e12, BASE / 1000])
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_an_event_years_from_the_others_is_left_out(
    tmp_path: Path, start: float, marked: bool, seed: int
) -> None:
    """Each trace is as without the event, but for a remark."""
    events = [one for one in job(start=start) if marked or "Profiler" not in one["name"]]
    rng = random.Random(seed)  # noqa: S311 - nothing is secret here
    place = rng.randrange(len(events))
    wrong = [{"dur": 1e15}, {"ts": 3e15}]
    wrong += [{"ts": ts} for ts in (-5, 0.5, 3)] if start > 1000 else []
    bad = [{**one, **rng.choice(wrong)} if n == place else one for n, one in enumerate(events)]
    base = BASE if start < BASE / 1000 else None
    found = measured(tmp_path / "a.trace.json", bad, base)
    del bad[place]
    without = measured(tmp_path / "b.trace.json", bad, base)
    assert found.trace.spans["start"].tolist() == without.trace.spans["start"].tolist()
    assert found.breakdown.sentences() == without.breakdown.sentences()
    assert found.trace.doubtful == DoubtfulTimes(far=1)
    (remark,) = set(found.truncation.sentences()) - set(without.truncation.sentences())
    assert remark.startswith("1 event began or ended more than a day from the others")


def test_a_long_trace_has_no_event_that_is_far(tmp_path: Path) -> None:
    """One that lasts a week, with a first call that takes half of it, keeps all events."""
    week = 7 * 24 * 3600 * 1e6
    events = [{**one, "ts": week / 2 + 3 * week / 2000 * place, "dur": 5}
              for place, one in enumerate(job(20))]  # fmt: skip
    events.append({**events[0], "name": "main", "ts": 0, "dur": week})
    found = measured(tmp_path / "a.trace.json", events)
    assert len(found.trace.spans["start"]) == len(events)
    assert found.trace.doubtful.far == 0


def test_an_allocation_years_from_the_others_is_left_out(tmp_path: Path) -> None:
    """The memory over time would have one point at one end, and all else at the other."""
    events = job(start=BASE / 1000)
    args = {"Addr": 1, "Bytes": 8, "Total Allocated": 8, "Device Type": 1, "Device Id": 0}
    one = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
    events += [{**one, "ts": ts, "args": args} for ts in (0, BASE / 1000 + 10, BASE / 1000 + 20)]
    found = measured(tmp_path / "a.trace.json", events, None)
    assert len(found.trace.memory["time"]) == 2
    assert found.trace.doubtful.far == 1


def test_a_kernel_that_outlasts_its_successors_ends_where_the_next_begins(tmp_path: Path) -> None:
    """Whichever kernel it is; only the last of a stream has no bound."""
    for place in range(11):
        events = job()
        clean = kernels(events)
        clean[place]["dur"] = 1.6e6
        found = measured(tmp_path / "a.trace.json", events)
        expected = [kernel["dur"] * 1000 for kernel in clean]
        expected[place] = round((clean[place + 1]["ts"] - clean[place]["ts"]) * 1000)
        there = found.trace.category(frozenset({"kernel"}))
        assert found.trace.spans["length"][there].tolist() == expected
        assert [
            "1 device activity outlasted" in words for words in found.truncation.sentences()
        ] == [True]


def shortened(path: Path, events: list[Event]) -> int:
    """Return how many activities the reader shortens."""
    return measured(path, events).trace.doubtful.overlong


def test_activities_that_may_overlap_are_not_shortened(tmp_path: Path) -> None:
    """Those of one launch, of other streams or processes, of dependent launches, of no order."""
    path, long = tmp_path / "a.trace.json", kernel(1, 0, 100)
    inside = kernel(2, 20, 30)
    assert shortened(path, [long, inside]) == 1
    assert shortened(path, [long, {**inside, "args": long["args"]}]) == 0  # a CUDA graph
    assert shortened(path, [long, kernel(2, 20, 30, stream=8)]) == 0
    assert shortened(path, [long, {**inside, "pid": "rank 1"}]) == 0
    assert shortened(path, [long, kernel(2, 90, 30)]) == 0  # a dependent launch
    assert shortened(path, [{**one, "cat": "mtia_ccp_events"} for one in (long, inside)]) == 0
    without = [{**one, "args": {"device": 0, "stream": 7}} for one in (long, inside)]
    assert shortened(path, without) == 0
    rng = random.Random(3)  # noqa: S311 - nothing is secret here
    unordered = [kernel(n, rng.randint(0, 1000), rng.randint(1, 300)) for n in range(100)]
    assert shortened(path, unordered) == 0


@on_each
def test_nothing_of_real_traces_is_doubtful(path: Path) -> None:
    """No activity of a real trace outlasts a later one of another launch, and all are measured."""
    assert load_trace(path).doubtful == DoubtfulTimes()


@pytest.mark.parametrize("unit", ["microseconds", "nanoseconds"])
def test_merged_ranks_keep_what_has_a_time(tmp_path: Path, unit: str) -> None:
    """Kernels that were not measured are left out; nanoseconds are converted."""
    for rank in (0, 1):
        events = job(start=BASE / 1000)
        kernels(events)[2] |= {"ts": 0, "dur": 0}
        if unit == "nanoseconds":
            for event in events:
                event |= {"ts": int(event["ts"] * 1000), "dur": int(event["dur"] * 1000)}
        distributed = {"rank": rank, "world_size": 2}
        path = tmp_path / f"rank{rank}.trace.json"
        path.write_text(json.dumps({"distributedInfo": distributed, "traceEvents": events}))
    written = gzip.decompress(merge(tmp_path).path.read_bytes())
    found = kernels([e for e in json.loads(written)["traceEvents"] if e["ph"] == "X"])
    assert len(found) == 2 * 11
    assert {event["dur"] for event in found} == {100}
    assert max(event["ts"] for event in found) - min(event["ts"] for event in found) < 3000


@pytest.mark.parametrize("duration", ["abc", None, "NaN", "missing"])
def test_a_job_whose_kernels_have_no_duration_is_no_job_of_the_host(
    tmp_path: Path, duration: str | None
) -> None:
    """Its launches show that a device worked: neither verdict nor findings are of the host."""
    events = job()
    copy = {**kernel(99, 1500, 1), "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)"}
    for event in kernels(events):
        del event["dur"]
        if duration != "missing":
            event["dur"] = float("nan") if duration == "NaN" else duration
    found = measured(tmp_path / "a.trace.json", [*events, copy])
    assert str(found.breakdown) == (
        "A step takes 1 ms (median of 3 steps). A device worked, and the trace does not tell what "
        "it did."
    )
    said = found.truncation.sentences()
    assert said[0].startswith("12 events had a time that is missing")
    assert said[1].startswith("The trace has 12 launches without their work, and no kernel.")
    assert all_findings(found) == []
    assert len(found.steps) == 3  # the marks tell how long each took


def test_times_in_seconds_are_asked_about(tmp_path: Path) -> None:
    """A job of three seconds seems to take nanoseconds."""
    events = job(steps=3000)
    one = measured(tmp_path / "a.trace.json", events)
    assert not one.truncation.sentences()
    for event in events:
        event["ts"], event["dur"] = event["ts"] / 1e6, event["dur"] / 1e6
    one = measured(tmp_path / "b.trace.json", events)
    assert "Are the times in seconds?" in one.truncation.sentences()[0]
