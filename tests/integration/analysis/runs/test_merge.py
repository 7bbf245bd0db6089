"""One trace of several ranks: on one clock, complete, with separate ids and ordered arrows."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.critical_path import PARTS
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.reading import chunks
from dynprof.analysis.runs.merge import STEPS_PID, merge
from dynprof.errors import CaptureError
from tests.processes import DYNPROF, run
from tests.rank_traces import events, write
from tests.real_traces import REAL, needs_real

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
AHEAD_MS = (0.0, 250.0, -1800.0, 3.0)
LATE = 2


def given_ranks() -> dict[int, list[Event]]:
    """Return the events of four ranks with the same pids and the same ids of flows."""
    found = {}
    for rank, ahead in enumerate(AHEAD_MS):
        mine = events(30.0 * (rank == LATE), 0, ahead, rank=0)
        first = mine[2]
        flow = {"id": 7, "pid": 0, "tid": 1, "cat": "fwdbwd", "name": "fwdbwd"}
        mine += [
            {**flow, "ph": "s", "ts": first["ts"]},
            {**flow, "ph": "f", "ts": first["ts"] + 9.125, "bp": "e"},
            {"ph": "X", "pid": 3, "tid": 7, "cat": "gpu_memcpy", "name": 'a "b" \u00e9',
             "dur": 0.125, "ts": first["ts"] + 1.001, "args": {"grid": [1, 2], "External id": 7}},
            {"ph": "M", "name": "process_name", "pid": 3, "tid": 0, "args": {"name": "python"}},
            {"ph": "M", "name": "process_labels", "pid": 3, "tid": 0, "args": {"labels": "GPU 3"}},
            {"ph": "M", "name": "process_name", "pid": 4, "tid": 0, "args": {"name": "unused"}},
            {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": first["ts"]},
        ]  # fmt: skip
        found[rank] = mine
    return found


def rich_ranks(folder: Path) -> dict[int, list[Event]]:
    """Write these events as traces; return them."""
    found = given_ranks()
    for rank, mine in found.items():
        trace = {"baseTimeNanoseconds": 10**18, "traceEvents": mine,
                 "distributedInfo": {"rank": rank, "world_size": 4}}  # fmt: skip
        (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(trace))
    return found


def merged(path: Path) -> list[Event]:
    """Return the events of a merged trace, their times in ns, by Python's own reader."""
    with gzip.open(path, "rb") as file:
        found = json.load(file)
    for event in found["traceEvents"]:
        if "ts" in event:
            event["ts"] = round(event["ts"] * 1000) + found["baseTimeNanoseconds"]
    return list(found["traceEvents"])


def of_rank(found: list[Event]) -> dict[int, list[Event]]:
    """Return the given events by rank, from the names of the processes."""
    names = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    ranks = defaultdict(list)
    for event in found:
        name = names[event["pid"]]
        if event["ph"] != "M" and event.get("cat") != "collective" and name.startswith("rank "):
            ranks[int(name.split()[1].strip(":"))].append(event)
    return ranks


def content(event: Event) -> tuple[Any, ...]:
    """Return the parts of an event that may not change."""
    return (event["ph"], event["name"], event.get("cat"), event["tid"], event.get("dur"),
            json.dumps(event.get("args")), event.get("bp"))  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Merge four ranks, whose tables other tests then use."""
    folder = tmp_path_factory.mktemp("ranks")
    rich_ranks(folder)
    merge(folder)
    return folder


def test_a_merged_trace_has_every_event_on_one_clock(whole: Path) -> None:
    """Events keep all but process, ids, and the error of their rank's clock."""
    given = given_ranks()
    found = of_rank(merged(whole / "analysis" / "merged.json.gz"))
    assert set(found) == set(given)
    for rank, mine in given.items():
        kept = [event for event in mine if event["ph"] != "M"]
        assert Counter(map(content, kept)) == Counter(map(content, found[rank]))
        times = {(content(e), round(e["ts"] * 1000) + 10**18) for e in kept}
        ahead = round(AHEAD_MS[rank] * 1e6)
        assert times == {(content(e), e["ts"] + ahead) for e in found[rank]}


def test_ranks_share_no_ids(whole: Path) -> None:
    """Neither processes nor flows share ids; both ends of a flow keep one; names have the rank."""
    found = merged(whole / "analysis" / "merged.json.gz")
    by_rank = of_rank(found)
    for key in ("pid", "id"):
        sets = [{event[key] for event in mine if key in event} for mine in by_rank.values()]
        assert sum(map(len, sets)) == len(set().union(*sets))
    flows = [event["id"] for mine in by_rank.values() for event in mine if "id" in event]
    assert set(Counter(flows).values()) == {2}
    assert set(flows).isdisjoint(e["id"] for e in found if e.get("cat") == "collective")
    names = [e["args"]["name"] for e in found if e["name"] == "process_name"]
    assert "rank 1: python GPU 3" in names
    assert not any("unused" in name for name in names)
    order = {e["pid"]: e["args"]["sort_index"] for e in found if e["name"] == "process_sort_index"}
    by_order = sorted(by_rank, key=lambda rank: min(order[e["pid"]] for e in by_rank[rank]))
    assert by_order == [0, 1, 2, 3]


def test_arrows_lead_from_the_first_rank_to_the_last(whole: Path) -> None:
    """Each collective has one arrow through all ranks, from slice to slice, forward in time."""
    found = merged(whole / "analysis" / "merged.json.gz")
    slices = {(e["pid"], e["tid"], e["ts"]): e["name"] for e in found if e["ph"] == "X"
              and e["name"].startswith("gloo:")}  # fmt: skip
    arrows = defaultdict(list)
    for event in found:
        if event.get("cat") == "collective":
            arrows[event["id"]].append(event)
            assert slices[event["pid"], event["tid"], event["ts"]] == "gloo:all_reduce"
    assert len(arrows) == 5
    ranks = {e["pid"]: rank for rank, mine in of_rank(found).items() for e in mine}
    for mine in arrows.values():
        in_time = sorted(mine, key=lambda e: (e["ts"], "stf".index(e["ph"])))
        assert [e["ph"] for e in in_time] == ["s", "t", "t", "f"]
        assert ranks[in_time[-1]["pid"]] == LATE


def test_steps_of_all_ranks_are_in_one_process(whole: Path) -> None:
    """A process of its own has a thread for each rank, with the steps at the same times."""
    found = merged(whole / "analysis" / "merged.json.gz")
    (pid,) = (e["pid"] for e in found if e["name"] == "process_name"
              and e["args"]["name"] == "steps of all ranks")  # fmt: skip
    names = {e["tid"]: e["args"]["name"] for e in found
             if e["pid"] == pid and e["name"] == "thread_name"}  # fmt: skip
    steps = defaultdict(set)
    for event in found:
        if event["pid"] == pid and event["ph"] == "X":
            steps[names[event["tid"]]].add((event["name"], event["ts"]))
    assert set(steps) == {f"rank {rank}" for rank in range(4)}
    assert len({frozenset(mine) for mine in steps.values()}) == 1
    assert len(steps["rank 0"]) == 5


@pytest.mark.parametrize(
    ("wanted", "ranks"),
    [("slowest,median", {1, 2}), ("0-1", {0, 1}), ("3, slowest", {2, 3}), ("", {0, 1, 2, 3})],
)
def test_some_ranks_are_merged(whole: Path, tmp_path: Path, wanted: str, ranks: set[int]) -> None:
    """Ranks are chosen by number or by role; arrows only connect the chosen ones."""
    made = merge(whole, wanted, tmp_path)
    found = merged(made.path)
    assert set(of_rank(found)) == ranks
    ends = Counter(e["id"] for e in found if e.get("cat") == "collective")
    assert list(ends.values()) == [len(ranks)] * 5
    assert made.words[0].endswith("with arrows at 5 collectives that they share")


@pytest.mark.parametrize("wanted", ["9", "fastest", "1-", "-1"])
def test_unknown_ranks_are_refused(whole: Path, tmp_path: Path, wanted: str) -> None:
    """The error names the available ranks, or the correct syntax; no file is left."""
    with pytest.raises(CaptureError, match=r"there are ranks 0 to 3|write slowest, median"):
        merge(whole, wanted, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_list_that_looks_like_events_is_read_in_small_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut inside an event is repaired; events that only Python's reader accepts are kept."""
    given = rich_ranks(tmp_path)
    path = tmp_path / "rank3.pt.trace.json"
    trace = json.loads(path.read_text())
    like = [{"name": number, "value": "x" * 50} for number in range(5000)]
    odd = {"ph": "X", "pid": 5, "tid": 1, "name": "odd", "ts": 5000.5, "dur": 1,
           "args": {"like": like, "nan": float("nan")}}  # fmt: skip
    trace["traceEvents"].insert(3, odd)
    path.write_text(json.dumps(trace))
    monkeypatch.setattr(chunks, "CHUNK", 20_000)
    monkeypatch.setattr(chunks, "_TAIL", 1000)
    found = of_rank(merged(merge(tmp_path).path))
    (kept,) = (event for event in found[3] if event["name"] == "odd")
    assert len(kept["args"]["like"]) == 5000
    assert kept["args"]["nan"] is None
    assert len(found[3]) == 1 + len([e for e in given[3] if e["ph"] != "M"])


def test_members_after_the_events_may_look_like_events(tmp_path: Path) -> None:
    """Some writers put the devices there: they are no events, and no events are lost."""
    given = rich_ranks(tmp_path)
    path = tmp_path / "rank3.pt.trace.json"
    devices = [{"id": number, "name": "A"} for number in range(2)]
    path.write_text(json.dumps({**json.loads(path.read_text()), "deviceProperties": devices}))
    found = of_rank(merged(merge(tmp_path).path))
    assert len(found[3]) == len([event for event in given[3] if event["ph"] != "M"])


def test_names_that_are_not_escaped_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names in torch 2.13's format are read in small pieces."""
    rich_ranks(tmp_path)
    for path in tmp_path.glob("*.json"):
        text = json.dumps(json.loads(path.read_text()), indent=1, ensure_ascii=False)
        path.write_text(text.replace('a \\"b\\" é', 'a "b" é'))
    monkeypatch.setattr(chunks, "CHUNK", 4000)
    found = of_rank(merged(merge(tmp_path).path))
    assert [[e["name"] for e in found[rank]].count('a "b" é') for rank in range(4)] == [1] * 4
    wanted = given_ranks()
    assert [len(found[rank]) for rank in range(4)] == [
        sum(e["ph"] != "M" for e in wanted[rank]) for rank in range(4)
    ]


@pytest.mark.parametrize("base", [10**18, None])
def test_events_without_a_time_are_left_out(tmp_path: Path, base: int | None) -> None:
    """Events without a valid time are left out, also if they come first."""
    given = rich_ranks(tmp_path)
    path = tmp_path / "rank0.pt.trace.json"
    trace = json.loads(path.read_text())
    odd = {"ph": "X", "pid": 5, "tid": 1, "name": "odd", "dur": 1}
    times = ("x", float("nan"), float("inf"), None, [1])
    trace["traceEvents"][:0] = [{**odd, "ts": ts} for ts in times]
    if base is None:
        del trace["baseTimeNanoseconds"]
    path.write_text(json.dumps(trace))
    found = of_rank(merged(merge(tmp_path, "0").path))[0]
    assert len(found) == len([event for event in given[0] if event["ph"] != "M"])


def test_impossible_times_are_left_out_with_the_remarks_of_the_report(tmp_path: Path) -> None:
    """Each kind of them is counted, with the words of a report of the rank."""
    given = rich_ranks(tmp_path)
    path = tmp_path / "rank1.pt.trace.json"
    trace = json.loads(path.read_text())
    first = next(e["ts"] for e in trace["traceEvents"] if e["ph"] == "X")
    odd = {"ph": "X", "pid": 0, "tid": 1, "name": "odd", "cat": "cpu_op"}
    kernel = {**odd, "cat": "kernel", "args": {"device": 0, "stream": 7}}
    trace["traceEvents"] += [
        {**odd, "ts": first, "dur": -1}, {**kernel, "ts": first, "dur": -1e9},
        {**odd, "ts": float("nan"), "dur": 1}, {**odd, "ts": first, "dur": float("nan")},
        {**odd, "ts": first}, {**odd, "dur": 1}, {**odd, "ts": 1e60, "dur": 1},
        {**odd, "ts": first + 3e12, "dur": 1}, {**odd, "ts": -3e12, "dur": 1},
        {**odd, "ts": first, "dur": 2e12}, {**kernel, "ts": 1e15, "dur": 1},
        {**kernel, "ts": 0, "dur": 0},
    ]  # fmt: skip
    path.write_text(json.dumps(trace))
    made = merge(tmp_path, "1")
    assert not [event for event in merged(made.path) if event["name"] == "odd"]
    mine = of_rank(merged(made.path))[1]
    assert len(mine) == len([event for event in given[1] if event["ph"] != "M"])
    assert [word for word in made.words if word.startswith("rank 1: ")] == [
        "rank 1: 5 events had a time that is missing, infinite or not a number; without them "
        "totals are too small.",
        "rank 1: 2 events had a negative duration; without them totals are too small.",
        "rank 1: 4 events began or ended more than a day from the others, which cannot be; "
        "without them totals are too small.",
        "rank 1: The profiler did not measure 1 device activity: the start is 0. They are left "
        "out; the time of the device is too small.",
    ]
    said = [f"rank 1: {one}" for one in MeasuredTrace(path).truncation.sentences()]
    assert {word for word in made.words if word.startswith("rank 1: ")} <= set(said)


def test_a_merged_trace_is_not_measured(tmp_path: Path) -> None:
    """A merged trace has devices and steps of many processes, so dynprof measures nothing."""
    rich_ranks(tmp_path)
    with pytest.raises(CaptureError, match=r"merges several ranks; open it with dynprof view$"):
        MeasuredTrace(merge(tmp_path).path)


def test_a_rank_without_common_collectives_is_named(tmp_path: Path) -> None:
    """Rank 3 has no collective: its clock is used unchanged, and the output says so."""
    rich_ranks(tmp_path)
    path = tmp_path / "rank3.pt.trace.json"
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:
        event["name"] = event["name"].replace("gloo:", "")
    path.write_text(json.dumps(trace))
    words = merge(tmp_path).words
    assert words[1].startswith("clocks aligned by the ends of collectives; they were up to")
    assert words[1].endswith("to 2,050 ms apart")
    assert words[2].startswith("rank 3 shared no collective with the others")


def test_ranks_without_common_collectives_are_named_together(tmp_path: Path) -> None:
    """Ranks without common collectives are named together, and no arrows are counted."""
    for rank in range(2):
        write(tmp_path, rank)
        path = tmp_path / f"rank{rank}.pt.trace.json"
        path.write_text(path.read_text().replace("gloo:", ""))
    assert merge(tmp_path).words == [
        "merged: ranks 0 to 1",
        "ranks 0 to 1 shared no collective with each other that could be matched: their clocks are "
        "used unchanged",
    ]


def test_the_command(whole: Path, tmp_path: Path) -> None:
    """The command prints the path; the rest goes to stderr. A single rank is refused."""
    target = tmp_path / "out" / "all.json.gz"
    done = run([*DYNPROF, "merge", whole, "--output", target])
    assert (done.returncode, done.stdout.strip()) == (0, str(target))
    assert len(of_rank(merged(target))) == 4
    alone = tmp_path / "alone"
    alone.mkdir()
    write(alone, 0)
    assert run([*DYNPROF, "merge", alone]).returncode == 2


@needs_real
def test_collectives_that_only_look_alike_align_nothing(tmp_path: Path) -> None:
    """Two real ranks recorded different collectives with the same names."""
    for rank in range(2):
        source = REAL / f"sampled_rank-{rank}.json.gz"
        (tmp_path / f"rank{rank}.pt.trace.json.gz").write_bytes(source.read_bytes())
    words = merge(tmp_path).words
    assert words[0] == "merged: ranks 0 to 1"
    assert words[1].startswith("ranks 0 to 1 shared no collective with each other")


@pytest.mark.parametrize("said", [7, {"ranks": 7}, {"ranks": [None, "a", {}]}, {}])
def test_invalid_members_named_dynprof_are_ignored(tmp_path: Path, said: Any) -> None:
    """Any trace may have members with these names."""
    path = tmp_path / "a.trace.json"
    trace = {"dynprof": said, "traceEvents": events(0, 0, 0, rank=0)}
    path.write_text(json.dumps(trace))
    assert MeasuredTrace(path).rank == 0


def test_the_critical_path_of_each_rank_is_drawn(tmp_path: Path) -> None:
    """Its pieces follow each other, and fill the steps of the rank on the common clock."""
    for rank in range(2):
        write(tmp_path, rank)
    found = merged(merge(tmp_path, with_path=True).path)
    names = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    paths = [pid for pid, name in names.items() if name.endswith(": critical path")]
    assert [names[pid] for pid in paths] == ["rank 0: critical path", "rank 1: critical path"]
    for rank, pid in enumerate(paths):
        pieces = [e for e in found if e["pid"] == pid and e["ph"] == "X"]
        ends = [e["ts"] + round(e["dur"] * 1000) for e in pieces]
        assert [e["ts"] for e in pieces[1:]] == ends[:-1]
        assert {e["args"]["part"] for e in pieces} <= set(PARTS)
        steps = [e for e in found if (e["pid"], e["tid"]) == (STEPS_PID, rank + 1)]
        steps = [e for e in steps if e["ph"] == "X"]
        assert pieces[0]["ts"] == min(e["ts"] for e in steps)
        assert ends[-1] == max(e["ts"] + round(e["dur"] * 1000) for e in steps)
