"""SQL over captures: each answer is that of a plain count over the raw events."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import sys
from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from dynprof.analysis import load
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.one_trace import write_analysis
from dynprof.analysis.runs.query import load as load_views
from dynprof.analysis.sql_views import VIEWS
from dynprof.cli.app import app
from dynprof.errors import CaptureError, QueryError
from tests import rank_traces
from tests.processes import DYNPROF, ROOT, run
from tests.real_traces import H100, nanoseconds, on_each, raw_events, read
from tests.unit.analysis.made_jobs import Job

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
OLDER_NAMES = {"memcpy": "gpu_memcpy", "memset": "gpu_memset", "operator": "cpu_op"}
"""Categories that torch 1.8 named otherwise, in lower case."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
OLDER, NEWER = "step_0-4_20261101T000000Z", "step_100-104_20261101T000500Z"
LATE_MS = {0: 0, 1: 20, 2: 0}
GROWN_MS = 6
STATEMENTS = re.findall(r"^```sql\n(.*?)^```$", (ROOT / "docs/query.md").read_text(), re.M | re.S)
WHO_GREW, WHO_IS_LAST, WHAT_FILLS_THE_GAP, WHO_ALLOCATES, WHAT_IT_COST = STATEMENTS


def two_windows(folder: Path) -> Path:
    """Write a job's two windows of three ranks; in the newer one a matrix product takes longer."""
    for place, (name, work) in enumerate(((OLDER, 0), (NEWER, GROWN_MS))):
        (folder / name).mkdir(parents=True)
        for rank, late in LATE_MS.items():
            rank_traces.write(folder / name, rank, work_ms=work, late_ms=late)
        for path in (folder / name).iterdir():
            trace = json.loads(path.read_text())
            trace["baseTimeNanoseconds"] += place * 300 * 10**9
            for event in trace["traceEvents"]:
                if place and event["name"].startswith("ProfilerStep#"):
                    event["dur"] += 1000 * int(event["name"][-1])
            path.write_text(json.dumps(trace))
            os.utime(path, (1e9 + place, 1e9 + place))
    return folder


def events_of(folder: Path) -> list[list[Event]]:
    """Return the raw events of each rank of a window."""
    return [raw_events(path) for path in sorted(folder.glob("*.json"))]


def is_inside(event: Event, outer: Event) -> bool:
    begin, around = event["ts"], outer["ts"]
    return event is not outer and around <= begin and begin + event["dur"] <= around + outer["dur"]


def innermost(event: Event) -> tuple[int, int]:
    """Return what is largest for the innermost of the events that are open at a moment."""
    return event["begin"], -event["end"]


def is_step(name: str) -> bool:
    return name.startswith(("ProfilerStep#", "execute_", "step["))


def is_open(event: Event, ns: int) -> bool:
    return bool(event["begin"] <= ns < event["end"])


def called_names(events: list[Event], ns: int) -> set[str]:
    """Return the outermost operator of each thread at a moment, or its innermost label."""
    open_: dict[Any, list[Event]] = {}
    for event in events:
        label = event["cat"] in ("cpu_op", "user_annotation") and not is_step(event["name"])
        if label and is_open(event, ns):
            open_.setdefault(event["tid"], []).append(event)
    found = set()
    for those in open_.values():
        operators = [event for event in those if event["cat"] == "cpu_op"]
        found.add(
            (min(operators, key=innermost) if operators else max(those, key=innermost))["name"]
        )
    return found


def self_ms(events: list[Event]) -> Counter[str]:
    """Return the time of each name without that of events directly inside it."""
    found: Counter[str] = Counter()
    for event in events:
        found[event["name"]] += event["dur"] / 1000
        around = [outer for outer in events if is_inside(event, outer)]
        if around:
            found[min(around, key=lambda outer: outer["dur"])["name"]] -= event["dur"] / 1000
    return found


def test_the_page_tells_which_operator_grew(tmp_path: Path) -> None:
    """Self times of a mean step in the two newest windows, the one that grew most first."""
    folder = two_windows(tmp_path)
    times = []
    for name in (OLDER, NEWER):
        ranks = events_of(folder / name)
        total = sum((self_ms(events) for events in ranks), Counter[str]())
        times.append({key: ms / (rank_traces.STEPS * len(ranks)) for key, ms in total.items()})
    before, now = times
    wanted = {key: now[key] - before[key] for key in now if not key.startswith("ProfilerStep")}
    rows = load(folder, all_windows=True).query(WHO_GREW).rows()
    assert {name: grown for name, _, _, grown in rows} == pytest.approx(wanted, abs=1e-3)
    assert [row[3] for row in rows] == sorted((row[3] for row in rows), reverse=True)


def test_the_page_tells_which_operator_grew_if_no_step_is_marked(tmp_path: Path) -> None:
    """The whole trace counts for each rank, as one step."""
    folder, times = two_windows(tmp_path), []
    for name in (OLDER, NEWER):
        for path in (folder / name).glob("*.json"):
            trace = json.loads(path.read_text())
            marks = [e for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")]
            trace["traceEvents"] = [e for e in trace["traceEvents"] if e not in marks]
            path.write_text(json.dumps(trace))
        ranks = events_of(folder / name)
        total = sum((self_ms(events) for events in ranks), Counter[str]())
        times.append({key: ms / len(ranks) for key, ms in total.items()})
    before, now = times
    rows = load(folder, all_windows=True).query(WHO_GREW).rows()
    assert {name: grown for name, _, _, grown in rows} == pytest.approx(
        {key: now[key] - before[key] for key in now}, abs=1e-3
    )


def test_the_page_tells_which_rank_is_last(tmp_path: Path) -> None:
    """The rank that begins last counts, where it is late by more than a millisecond."""
    folder = two_windows(tmp_path) / NEWER
    begins = [
        [event["ts"] for event in events if event["name"] == "gloo:all_reduce"]
        for events in events_of(folder)
    ]
    last = Counter(max(range(3), key=lambda r: place[r]) for place in zip(*begins, strict=True))
    ((rank, times, late_ms),) = load(folder).query(WHO_IS_LAST).rows()
    assert (rank, times, late_ms) == (1, last[1], LATE_MS[1])


def test_ranks_of_one_host_and_device_are_compared_on_a_real_capture(tmp_path: Path) -> None:
    """The same of two ranks on an H100, whose clock is one."""
    begins = []
    for rank in (0, 1):
        path = H100 / f"ddp_rank{rank}.json.gz"
        shutil.copy(path, tmp_path / f"rank{rank}.trace.json.gz")
        begins.append(
            [
                nanoseconds(event["ts"])
                for event in sorted(raw_events(path, str), key=lambda e: nanoseconds(e["ts"]))
                if event["name"] == "gloo:all_reduce" and event["cat"] == "user_annotation"
            ]
        )
    apart = [two - one for one, two in zip(*begins, strict=True)]
    wanted = Counter(int(ns > 0) for ns in apart if abs(ns) > 1_000_000)
    assert {rank: times for rank, times, _ in load(tmp_path).query(WHO_IS_LAST).rows()} == wanted
    late = load(tmp_path).query("SELECT late_ns FROM collectives WHERE rank = 1 ORDER BY number")
    assert [ns for (ns,) in late.rows()] == [max(ns, 0) for ns in apart]


def test_the_page_tells_what_a_commit_cost(tmp_path: Path) -> None:
    """The medians of the steps of both windows, and by how many percent the newer one is longer."""
    folder = two_windows(tmp_path)
    newer, older = (
        [event["dur"] / 1000 for events in events_of(folder / name) for event in events
         if event["name"].startswith("ProfilerStep#")]
        for name in (NEWER, OLDER)
    )  # fmt: skip
    now, before = statistics.median(newer), statistics.median(older)
    assert load(folder, all_windows=True).query(WHAT_IT_COST).rows() == [
        (1, NEWER, None, len(newer), now, round(100 * (now / before - 1), 1)),
        (2, OLDER, None, len(older), before, None),
    ]


def test_the_page_tells_what_fills_a_gap() -> None:
    """The times add up to the gap; the row of the moment names what your code called then.

    At a moment of device work the answer is that there is no gap.
    """
    path = H100 / "train.json.gz"
    base = int(read(path)["baseTimeNanoseconds"])
    events = raw_events(path, str)
    for event in events:
        event["begin"] = base + nanoseconds(event["ts"])
        event["end"] = event["begin"] + nanoseconds(event["dur"])
    activities = sorted((e for e in events if e["cat"] in ON_DEVICE), key=lambda e: e["begin"])
    edges = [edge for work in activities for edge in (work["begin"], work["end"])]
    middles = [
        (one + other) // 2000 * 1000
        for before, after in zip(activities[20:200:15], activities[21:201:15], strict=True)
        for one, other in ((before["end"], after["begin"]), (before["begin"], before["end"]))
    ]
    views, found = load(path), Counter[Any]()
    for ns in middles:
        if any(abs(edge - ns) < 1000 for edge in edges):
            continue  # a timestamp has fewer digits
        idle = not any(is_open(work, ns) for work in activities)
        moment = datetime(1970, 1, 1) + timedelta(microseconds=ns // 1000)
        rows = views.query(WHAT_FILLS_THE_GAP.replace("2026-11-29 12:03:04.5", str(moment))).rows()
        found[idle] += 1
        if not idle:
            assert [(rank, kind) for rank, kind, *_ in rows] == [(0, "no gap")]
            continue
        until = min(work["begin"] for work in activities if work["begin"] > ns)
        since = max(work["end"] for work in activities if work["end"] <= ns)
        assert sum(ms for *_, ms, _ in rows) == pytest.approx((until - since) / 1e6, abs=0.01)
        (then,) = (called for *_, called, _, _, is_then in rows if is_then)
        if then is not None:
            assert then in called_names(events, ns)
            found["named"] += 1
    assert min(found[True], found[False], found["named"]) > 2


def test_the_page_tells_which_line_allocates_most(tmp_path: Path) -> None:
    """Sums over torch's own events, by the innermost frame of this file around each."""
    from tests.integration.analysis.traces import recorded

    path = tmp_path / "a.trace.json"
    recorded(path, profile_memory=True, with_stack=True)
    trace = json.loads(path.read_text())
    frames = [e for e in trace["traceEvents"] if e.get("cat") == "python_function"
              and "traces.py(" in e["name"]]  # fmt: skip
    wanted: Counter[str] = Counter()
    for event in trace["traceEvents"]:
        if event["name"] == "[memory]" and event["args"]["Bytes"] > 0:
            around = [f for f in frames if f["tid"] == event["tid"]
                      and f["ts"] <= event["ts"] < f["ts"] + f["dur"]]  # fmt: skip
            if around:
                name = min(around, key=lambda frame: frame["dur"])["name"]
                wanted[name.partition("traces.py")[2].partition(": ")[2]] += event["args"]["Bytes"]
    found: Counter[str] = Counter()
    for line, _, _, mb in load(path).query(WHO_ALLOCATES.replace("LIMIT 10", "")).rows():
        if line and "traces.py" in line:
            found[line.partition(" (")[2].rstrip(")")] += round(mb * 1e6)
    assert wanted
    assert found == wanted


@on_each
def test_kernels_and_launches_are_those_of_the_raw_events(path: Path) -> None:
    """Times, devices, sizes, launches, queue and operator of each piece of device work."""
    base = int(read(path).get("baseTimeNanoseconds", 0))
    events = raw_events(path, str)
    for event in events:
        event["begin"] = nanoseconds(event["ts"])
        event["end"] = event["begin"] + nanoseconds(event["dur"])
        event["args"] = event.get("args", {})
        event["cat"] = OLDER_NAMES.get(event["cat"].lower(), event["cat"].lower())
    calls: dict[int, Event] = {}
    for event in sorted(events, key=lambda e: e["begin"]):
        if event["cat"] in ("cuda_runtime", "cuda_driver", "runtime"):
            calls.setdefault(event["args"].get("correlation", -1), event)
    operators = [e for e in events if e["cat"] == "cpu_op" or e["cat"] == "user_annotation"]
    wanted: Counter[Any] = Counter()
    for event in events:
        if event["cat"] in ON_DEVICE:
            call = calls.get(event["args"]["correlation"])
            queued = max(event["begin"] - call["end"], 0) if call else None
            times = (base + event["begin"], event["end"] - event["begin"])
            wanted[event["name"], *times, event["args"].get("bytes"), queued] += 1
    views = load(path)
    sql = "SELECT name, start_ns, duration_ns, bytes, queued_ns FROM kernels"
    assert Counter(views.query(sql).rows()) == wanted
    launched = {id(call) for call in calls.values()} & {
        id(calls.get(e["args"]["correlation"])) for e in events if e["cat"] in ON_DEVICE
    }
    ((launches, activities),) = views.query("SELECT count(*), sum(activities) FROM launches").rows()
    known = sum(times for (*_, queued), times in wanted.items() if queued is not None)
    assert (launches, activities or 0) == (len(launched), known)
    sql = """
    SELECT k.operator, l.start_ns, l.pid, l.tid FROM kernels k JOIN launches l
        ON l.id = k.launch_id AND l.rank = k.rank ORDER BY hash(k.id) LIMIT 50
    """
    for operator, start, pid, tid in views.query(sql).rows():
        open_ = [e for e in operators if (str(e["pid"]), str(e["tid"])) == (pid, tid)
                 and e["begin"] <= start - base < e["end"]]  # fmt: skip
        latest = max((innermost(e) for e in open_), default=None)
        names = {e["name"] for e in open_ if innermost(e) == latest}
        assert (operator in names) if operator else all(map(is_step, names))


def test_every_column_is_filled(tmp_path: Path) -> None:
    """Each column of each view has a value somewhere in five captures, or is known to have none."""
    without = {"domain", "mark", "line", "stack", "sender", "receiver", "host"}
    two_windows(tmp_path / "job")
    label = {"ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=32]", "pid": 1, "tid": 1}
    served = tmp_path / "served.json"
    served.write_text(json.dumps({"traceEvents": [{**label, "ts": 0, "dur": 100}]}))
    filled: dict[str, set[str]] = {name: set() for name in VIEWS}
    for path in (
        tmp_path / "job",
        served,
        *(H100 / f"{one}.json.gz" for one in ("train", "compiled", "ddp_rank0")),
    ):
        views = load_views(path, views=VIEWS)
        for name, view in VIEWS.items():
            columns = [column.name for column in view.columns]
            assert views.query(f"FROM {name} LIMIT 0").columns == columns
            ((*counts,),) = views.query(f"SELECT count(COLUMNS(*)) FROM {name}").rows()
            filled[name] |= {column for column, n in zip(columns, counts, strict=True) if n}
    for name, view in VIEWS.items():
        assert {column.name for column in view.columns} - filled[name] <= without, name
    assert {"line", "stack"} <= filled["operators"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{secret}')",
        "FROM '{secret}'",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM glob('{folder}/*')",
        "SELECT 1; COPY steps TO '{made}'",
        "ATTACH '{made}'",
        "EXPORT DATABASE '{made}'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "DELETE FROM steps",
        "CREATE TABLE x AS SELECT 1",
        "RESET lock_configuration",
        "SELECT * FROM path",
    ],
)
def test_a_statement_reads_and_writes_nothing_else(tmp_path: Path, sql: str) -> None:
    """Files, extensions, settings and variables of Python are out of reach of pasted SQL."""
    rank_traces.write(tmp_path, 0)
    secret, made = tmp_path / "secret.csv", tmp_path / "made.csv"
    secret.write_text("a\n1\n")
    views = load(tmp_path)
    path = {"a": [1]}  # noqa: F841 - a variable that a statement must not see
    with pytest.raises(QueryError):
        list(views.query(sql.format(secret=secret, made=made, folder=tmp_path)).rows())
    assert not made.exists()
    with pytest.raises(QueryError):
        views.query(sql.format(secret=secret, made=made, folder=tmp_path)).relation().fetchall()


def test_an_error_has_the_place_and_the_right_names(tmp_path: Path) -> None:
    """A misspelled view lists the views, a misspelled column the columns of those it names."""
    rank_traces.write(tmp_path, 0)
    views = load(tmp_path)
    with pytest.raises(QueryError, match=r"evnts does not exist!\nLINE 2: FROM evnts\n +\^") as one:
        views.query("SELECT *\nFROM evnts").read()
    assert f"the views are {', '.join(VIEWS)}" in str(one.value)
    with pytest.raises(QueryError, match=r'"nam".*\nLINE 1: SELECT nam FROM steps\n +\^') as two:
        views.query("SELECT nam FROM steps").read()
    assert ", ".join(column.name for column in VIEWS["steps"].columns) in str(two.value)
    assert "columns of events" not in str(two.value)
    with pytest.raises(QueryError, match="there is no statement"):
        views.query(" ")
    with pytest.raises(AttributeError, match="no view 'evnts'; the views are events,"):
        _ = views.evnts


def files_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_a_statement_without_end_is_refused_and_not_the_machines_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong join would sort any number of rows; the error says that it needs too much."""
    monkeypatch.setattr("dynprof.analysis.runs.query.STATEMENT_MB", 50)
    views = load(two_windows(tmp_path))
    sql = "SELECT a.range FROM range(3000000) a, range(100000) b ORDER BY hash(a.range + b.range)"
    with pytest.raises(QueryError, match=r"(?i)out of memory|temp_directory_size"):
        views.query(sql).rows()
    assert len(views.query("SELECT * FROM steps").rows()) > 0


def test_the_newest_window_is_read_or_all(tmp_path: Path) -> None:
    """As the report chooses, past what cannot be read; nothing is left next to the captures."""
    folder = two_windows(tmp_path)
    before = files_of(folder)
    assert [name for (name, *_) in load(folder).windows.rows()] == [NEWER]
    both = load(folder, all_windows=True).query("SELECT window_name, age, ranks FROM windows")
    assert sorted(both.rows()) == [(OLDER, 2, 3), (NEWER, 1, 3)]
    assert files_of(folder) == before
    broken = folder / NEWER / "rank1.pt.trace.json"
    broken.write_text("no trace")
    os.utime(broken, (2e9, 2e9))
    views = load(folder)
    assert views.query("SELECT rank FROM ranks ORDER BY rank").rows() == [(0,), (2,)]
    assert [*views.problems] == [broken]
    for path in (folder / NEWER).iterdir():
        path.write_text("no trace")
    assert [name for (name, *_) in load(folder).windows.rows()] == [OLDER]
    with pytest.raises(CaptureError, match="no such file or folder"):
        load(folder / "absent")


def test_the_older_capture_of_a_rank_is_left_out(tmp_path: Path) -> None:
    """Its rows would count twice; a remark has the number."""
    rank_traces.write(tmp_path, 0)
    (tmp_path / "rank0.pt.trace.json").rename(tmp_path / "old.pt.trace.json")
    os.utime(tmp_path / "old.pt.trace.json", (1e9, 1e9))
    rank_traces.write(tmp_path, 0)
    views = load(tmp_path)
    (steps,) = next(iter(views.query("SELECT count(*) FROM steps").rows()))
    assert steps == rank_traces.STEPS
    assert [words for words in views.words if "left out: 1 older capture" in words]


def test_a_trace_that_ends_too_early_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """A remark names once what is missing, for any number of views."""
    rank_traces.write(tmp_path, 0)
    (path,) = tmp_path.iterdir()
    text = path.read_text()
    path.write_text(text[: text.rindex("gloo:all_reduce")])
    views = load(path)
    whole = 4 * rank_traces.STEPS - 1
    assert views.query("SELECT count(*) FROM events").rows() == [(whole,)]
    assert views.query("SELECT complete FROM ranks").rows() == [(False,)]
    (told,) = views.words
    assert told.startswith(f"{path}: ")


def test_tables_of_the_analysis_are_used_where_they_are_current(tmp_path: Path) -> None:
    """Without a change of the trace since, it need not be read again."""
    rank_traces.write(tmp_path, 0)
    (path,) = tmp_path.iterdir()
    list(write_analysis(MeasuredTrace(path), None))
    wanted = list(load(path).query("SELECT * FROM events ORDER BY id").rows())
    path.write_text("not read")
    os.utime(path, (1e9, 1e9))
    assert load(path).query("SELECT * FROM events ORDER BY id").rows() == wanted
    path.touch()
    with pytest.raises(CaptureError):
        load(path)


def query(folder: Path, *arguments: str, stdin: str = "") -> Any:
    """Run the command in this process."""
    return CliRunner().invoke(app, ["query", str(folder), *arguments], input=stdin)


def test_the_command_prints_tables_csv_and_json(tmp_path: Path) -> None:
    """From an argument, a file or standard input; the exit code tells what could not be read."""
    folder = two_windows(tmp_path / "job")
    sql = "SELECT rank, step, duration_ns, NULL AS no, 1.5 AS x, 'a,b' AS t, start FROM steps"
    order = f"{sql} WHERE rank = 1 ORDER BY step LIMIT 1"
    begin = "2001-09-09 01:51:40"
    done = query(folder, "-", "--format", "csv", stdin=order)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == (f'rank,step,duration_ns,no,x,t,start\n1,0,90000000,,1.5,"a,b",{begin}\n')
    (tmp_path / "q.sql").write_text(order)
    done = query(folder, str(tmp_path / "q.sql"), "--format", "json")
    assert json.loads(done.stdout) == [
        {"rank": 1, "step": 0, "duration_ns": 90_000_000, "no": None, "x": 1.5, "t": "a,b",
         "start": begin}
    ]  # fmt: skip
    done = query(folder, "SELECT 1 AS a WHERE false", "--format", "json")
    assert json.loads(done.stdout) == []
    many = "SELECT range AS n, 'x' AS word FROM range(1001)"
    done = query(folder, many, "--all")
    assert [line.split() for line in done.stdout.splitlines()[:2]] == [["n", "word"], ["0", "x"]]
    assert len(done.stdout.splitlines()) == 1001
    assert "only the first 1,000 rows" in done.stderr
    (folder / NEWER / "rank1.pt.trace.json").write_text("no trace")
    os.utime(folder / NEWER / "rank1.pt.trace.json", (1e9, 1e9))
    done = query(folder, "SELECT count(*) AS n FROM ranks")
    assert (done.exit_code, done.stdout.split()) == (1, ["n", "2"])
    assert "rank1.pt.trace.json" in done.stderr
    for wrong in ("SELECT nam FROM steps", ""):
        done = query(folder, wrong)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr


def test_columns_of_equal_names_stay_apart_in_json(tmp_path: Path) -> None:
    """A join has the name of a kernel and that of its launch."""
    job = Job()
    job.launch("gemm", 10, 20, 100)
    sql = "SELECT k.name, l.name FROM kernels k JOIN launches l ON l.id = k.launch_id"
    done = run([*DYNPROF, "query", job.measured(tmp_path).path, sql, "--format", "json"])
    assert json.loads(done.stdout) == [{"name": "gemm", "name_1": "cudaLaunchKernel"}]


def test_a_full_disk_behind_standard_output_is_named(tmp_path: Path) -> None:
    """The exit code is that of a file that cannot be written."""
    job = Job()
    job.launch("gemm", 10, 20, 100)
    path = job.measured(tmp_path).path
    command = f'{sys.executable} -m dynprof query {path} "SELECT name FROM kernels" > /dev/full'
    done = run(["sh", "-c", command])
    said = "the output cannot be written: No space left on device"
    assert (done.returncode, done.stderr.strip()) == (2, said)


def test_two_paths_are_before_and_after(tmp_path: Path) -> None:
    """The last path is the newest, whenever its trace was recorded, and the page's SQL holds."""
    folder = two_windows(tmp_path)
    after, before = (folder / name / "rank0.pt.trace.json" for name in (OLDER, NEWER))
    done = query(before, str(after), "SELECT window_name, age, ranks FROM windows", "--format=csv")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == ["window_name,age,ranks", f"{after},1,1", f"{before},2,1"]
    ms = [
        statistics.median(event["dur"] / 1000 for event in raw_events(path)
                          if event["name"].startswith("ProfilerStep#"))
        for path in (after, before)
    ]  # fmt: skip
    rows = load(before, after).query(WHAT_IT_COST).rows()
    assert [(name, took) for _, name, _, _, took, _ in rows] == [
        (str(after), ms[0]),
        (str(before), ms[1]),
    ]
    both = load(folder / OLDER, folder / NEWER, all_windows=True)
    names = [name for (name,) in both.query("SELECT window_name FROM windows ORDER BY age").rows()]
    assert names == [str(folder / NEWER), str(folder / OLDER)]
    done = query(before, str(before), "SELECT 1")
    assert (done.exit_code, f"{before} is given twice" in done.stderr) == (2, True)


def test_what_cannot_be_answered_is_said(tmp_path: Path) -> None:
    """Ranks without a common collective, no row, a second statement, a forgotten statement."""
    for rank in (0, 1):
        rank_traces.write(tmp_path, rank)
        path = tmp_path / f"rank{rank}.pt.trace.json"
        trace = json.loads(path.read_text())
        for event in trace["traceEvents"]:
            if event["name"] == "gloo:all_reduce":
                event["args"] = {"Process Group Ranks": f"[{rank}, 7]"}
        path.write_text(json.dumps(trace))
    done = query(tmp_path, WHO_IS_LAST)
    name, total = tmp_path.name, 2 * rank_traces.STEPS
    assert (done.exit_code, f"{name}: 0 of {total} collectives could" in done.stderr) == (0, True)
    assert "no row matches\n" in done.stderr
    assert query(tmp_path, "SELECT rank FROM ranks").stderr == ""
    done = query(tmp_path, "SELECT 1; SELECT 2")
    assert (done.exit_code, done.stdout, done.stderr) == (
        2,
        "",
        "more than one statement is given; give one\n",
    )
    for arguments in ((), (str(tmp_path),)):
        done = query(tmp_path, *arguments)
        assert (done.exit_code, f"the views are {', '.join(VIEWS)}\n" in done.stderr) == (2, True)


def test_a_table_names_the_columns_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long texts are cut also without a terminal; CSV has all columns and whole texts."""
    rank_traces.write(tmp_path, 0)
    sql = "SELECT 1 AS first, repeat('x', 1000) AS text, 12345678 AS last"
    done = query(tmp_path, sql)
    assert len(done.stdout.splitlines()[1]) < 200
    assert "x" * 1000 in query(tmp_path, sql, "--format", "csv").stdout
    monkeypatch.setenv("COLUMNS", "20")
    done = query(tmp_path, sql)
    assert done.stdout.split()[:2] == ["first", "text"]
    said = "1 column left out, as the terminal is too narrow: last; --format csv prints all"
    assert said in done.stderr


def test_a_table_is_one_of_pyarrow_on_request(tmp_path: Path) -> None:
    """It has the rows and the names of columns of the statement."""
    pytest.importorskip("pyarrow")
    rank_traces.write(tmp_path, 0)
    found = load(tmp_path).query("SELECT step, duration_ns FROM steps ORDER BY step").arrow()
    assert found.to_pydict() == {
        "step": list(range(rank_traces.STEPS)), "duration_ns": [90_000_000] * rank_traces.STEPS,
    }  # fmt: skip


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data frames need packages that dynprof does not install."""
    rank_traces.write(tmp_path, 0)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    table = load(tmp_path).steps
    with pytest.raises(QueryError, match="needs pandas; install it with: pip install pandas"):
        table.df()
    with pytest.raises(QueryError, match="needs pyarrow; install it with: pip install pyarrow"):
        table.arrow()
