"""Parquet files: every event of a trace, and the tables by which ranks are compared."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.measures.communication import RECEIVE_KIND, SEND_KIND
from dynprof.analysis.measures.difference import recording_times, step_lengths, step_work
from dynprof.analysis.measures.marks import KINDS
from dynprof.analysis.measures.timeline.launches import in_flight
from dynprof.analysis.measures.timeline.phase_times import NAMES
from dynprof.analysis.measures.timeline.steps import launch_times
from dynprof.analysis.reading.events import COPIES
from dynprof.analysis.reading.spans import distinct
from dynprof.analysis.vendor_files.json_files import make_output_folder
from dynprof.runtime.safe_write import file_for_library

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from duckdb import DuckDBPyConnection

    from dynprof.analysis.measures.communication import Message
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

FOLDER = "parquet"
EVENTS, STEPS, COLLECTIVES, OPERATORS = "events", "steps", "collectives", "operators"
"""Names of the tables, and of their files."""
RANK_TABLES = (STEPS, COLLECTIVES, OPERATORS)
"""The tables by which ranks are compared."""
MESSAGE = "send and receive"
"""Name of both ends of a message, so that they match."""
_EVENTS = """
SELECT rank, nullif(step, -1) AS step, s.id, start_ns, duration_ns, n.value AS name,
    c.value AS category, t.pid, t.tid,
    nullif(external_id, -1) AS external_id, nullif(sequence, -1) AS sequence,
    nullif(device, -1) AS device, nullif(stream, -1) AS stream,
    nullif(correlation, -1) AS correlation, nullif(m.domain, '') AS domain,
    nullif(m.kind, '') AS mark
FROM spans s JOIN names n ON n.id = s.name JOIN categories c ON c.id = s.category
    JOIN threads t ON t.id = s.thread JOIN marks m ON m.id = s.mark
"""

Columns = dict[str, Any]
"""NumPy arrays of one length, by name."""


def write_events(measured: MeasuredTrace, folder: Path) -> Iterator[Path]:
    """Write every event of a trace; yield the path.

    Raises:
        OSError: The file cannot be written.
    """
    make_output_folder(folder / FOLDER)
    with connection() as database:
        yield copy(database, parquet_file(folder, EVENTS), _events(database, measured))


def write_rank_tables(measured: MeasuredTrace, folder: Path) -> Iterator[Path]:
    """Write the tables by which ranks are compared; yield the paths.

    Raises:
        OSError: A file cannot be written.
    """
    make_output_folder(folder / FOLDER)
    tables = {
        STEPS: _steps(measured),
        COLLECTIVES: _collectives(measured),
        OPERATORS: _operators(measured),
    }
    with connection() as database:
        for name, columns in tables.items():
            database.register("found", columns)
            yield copy(database, parquet_file(folder, name), _typed(columns))


def parquet_file(folder: Path, table: str) -> Path:
    """Return the path of a table in the folder of a trace's results."""
    return folder / FOLDER / f"{table}.parquet"


def connection() -> DuckDBPyConnection:
    """Return a database in memory that uses one CPU and never the network."""
    import duckdb

    private = tempfile.mkdtemp(prefix="dynprof-")
    database = duckdb.connect(
        config={
            "threads": 1,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "temp_directory": private,  # the default is in the working directory, open to all
        }
    )
    weakref.finalize(database, shutil.rmtree, private, ignore_errors=True)
    if database.execute("SELECT current_setting('enable_progress_bar')").fetchall()[0][0]:
        database.execute("SET enable_progress_bar = false")  # fails in Jupyter without ipywidgets
    return database


def _typed(columns: Columns) -> str:
    """Return the query for all columns; an empty column of texts keeps its type."""
    return "FROM found SELECT " + ", ".join(
        f'"{name}"::VARCHAR AS "{name}"' if column.dtype == object else f'"{name}"'
        for name, column in columns.items()
    )


def copy(database: DuckDBPyConnection, path: Path, query: str) -> Path:
    """Write the rows of a query to a Parquet file, and return its path.

    Raises:
        OSError: The file cannot be written.
    """
    import duckdb

    with file_for_library(path) as made:
        target = str(made).replace("'", "''")
        try:
            database.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
        except duckdb.Error as error:
            raise OSError(f"{path} cannot be written: {error}") from error
    return path


def _events(database: DuckDBPyConnection, measured: MeasuredTrace) -> str:
    """Return the query for all events with a duration, and for marks, which have none."""
    trace = measured.trace
    count = len(trace.spans["start"])
    more = {
        "rank": np.full(count, measured.rank),
        "step": steps_of(measured),
        "id": np.arange(count),
        "start_ns": trace.spans["start"] + measured.base_ns,
        "duration_ns": trace.spans["length"],
    }
    database.register("spans", {**trace.spans, **more, "mark": _marked(database, measured)})
    for view, table in (("names", "name"), ("categories", "category")):
        values = _texts(trace.tables[table])
        database.register(view, {"id": np.arange(len(values)), "value": values})
    threads = trace.tables["thread"]
    both = {
        name: _texts([str(t[part]) for t in threads]) for part, name in enumerate(("pid", "tid"))
    }
    database.register("threads", {"id": np.arange(len(threads)), **both})
    return _EVENTS


def _marked(database: DuckDBPyConnection, measured: MeasuredTrace) -> Any:
    """Register the kinds and domains of marks; return the index of each event among them."""
    kinds, found = {("", ""): 0}, measured.marks
    place = np.zeros(len(measured.trace.spans["start"]), np.int64)
    both = zip((KINDS[kind] for kind in found.kind.tolist()), found.domain, strict=True)
    place[found.span] = [kinds.setdefault(one, len(kinds)) for one in both]
    names = {name: _texts([one[at] for one in kinds]) for at, name in enumerate(("kind", "domain"))}
    database.register("marks", {"id": np.arange(len(kinds)), **names})
    return place


def phase_column(phase: str) -> str:
    """Return the name of the column of a phase."""
    return f"{phase.replace(' ', '_')}_ns"


def _steps(measured: MeasuredTrace) -> Columns:
    """Return a row for each step on each device; the phases are those of the host."""
    phases = dict(zip(measured.marked, measured.phases, strict=True))
    steps = measured.steps
    keys = [(step.number, step.begin, step.length) for step in steps]
    times_of_phases = [phases[key] for key in keys]
    labels = [measured.iterations.get(key) for key in keys]
    took, own = step_lengths(measured), recording_times(measured)
    times = ("length", "computing", "communication", "overlapped", "free", "stage", "preparing")
    return {
        "rank": np.full(len(steps), measured.rank),
        "recorded": np.full(len(steps), measured.recorded_rank is not None),
        "world_size": np.full(len(steps), measured.world_size),
        "host": _texts([measured.host] * len(steps)),
        "step": _known([step.number for step in steps]),
        "kind": _texts([label.kind if label else "" for label in labels]),
        "requests": _known([label and label.requests for label in labels]),
        "tokens": _known([label and label.tokens for label in labels]),
        "device": _texts([str(step.device_id) for step in steps]),
        "begin_ns": measured.base_ns + _whole([step.begin for step in steps]),
        "took_ns": _known([round(took[key]) if key in took else None for key in keys]),
        "recording_ns": _whole([own[key] for key in keys]),
        **{f"{name}_ns": _whole([getattr(step, name) for step in steps]) for name in times},
        "receiving_ns": _known([step.receiving for step in steps]),
        **{phase_column(name): _whole([one[name] for one in times_of_phases]) for name in NAMES},
    }


def _collectives(measured: MeasuredTrace) -> Columns:
    """Return the collectives of each process group in order; times are since the epoch.

    Messages from one rank to another are in a group named after the two. If the other end is
    unknown, the group has no other rank.
    """
    trace, own = measured.trace, measured.rank
    found = measured.messages.without(trace.category(COPIES))  # no other rank takes part in one
    chosen = found.span
    names = [message_group(message, own) for message in found.known]
    pairs = np.stack([trace.spans["group"][chosen], found.message], axis=1)
    kinds, code = np.unique(pairs, axis=0, return_inverse=True)
    code = code.reshape(-1)
    texts = [names[message] or _members(measured, group) for group, message in kinds.tolist()]
    group = np.unique(texts, return_inverse=True)[1].reshape(-1)[code] if texts else code
    known = [found.known[message] for message in found.message.tolist()]
    begins = measured.base_ns + trace.spans["start"][chosen]
    return {
        "rank": np.full(len(chosen), own),
        "id": chosen,
        "group": _texts([texts[place] for place in code.tolist()]),
        "place": _places(group),
        "name": _texts(
            [
                MESSAGE if names[message] else trace.name(span)
                for span, message in zip(chosen.tolist(), found.message.tolist(), strict=True)
            ]
        ),
        "begin_ns": begins,
        "end_ns": begins + trace.spans["length"][chosen],
        "step": _launch_steps(measured, chosen),
        "kind": _texts([message.kind for message in known]),
        "size": _whole([message.size for message in known]),
        "members": _whole([message.members for message in known]),
        "factor": np.array([message.factor or 0 for message in known], np.float64),
        "sender": _whole([_end(message, own, SEND_KIND) for message in known]),
        "receiver": _whole([_end(message, own, RECEIVE_KIND) for message in known]),
    }


def message_group(message: Message, own: int) -> str:
    """Return the group of a message, named after its two ranks; empty for a collective."""
    if message.kind not in (SEND_KIND, RECEIVE_KIND):
        return ""
    sender, receiver = _end(message, own, SEND_KIND), _end(message, own, RECEIVE_KIND)
    if sender < 0 or receiver < 0:
        return f"between rank {own} and one that is not named"
    return f"from rank {sender} to rank {receiver}"


def _end(message: Message, own: int, kind: str) -> int:
    """Return the rank that sends or receives a message; -1 if unknown, or if there is none."""
    if message.kind == kind:
        return own
    return message.sender if kind == SEND_KIND else message.receiver


def _members(measured: MeasuredTrace, group: int) -> str:
    return b" ".join(measured.trace.tables["group"][group]).decode(errors="replace")


def steps_of(measured: MeasuredTrace) -> Any:
    """Return the step of each span; -1 outside of the marked steps.

    The step of a device activity is that in which it was launched.
    """
    spans = np.arange(len(measured.trace.spans["start"]))
    return np.where(measured.in_steps, _launch_steps(measured, spans), -1)


def _launch_steps(measured: MeasuredTrace, chosen: Any) -> Any:
    """Return the step in which the host began each; -1 if steps are not marked.

    What was launched before the recording belongs to the step before the first one.
    """
    trace, started = measured.trace, measured.launches
    numbers = _whole([-1 if number is None else number for number, _, _ in measured.marked])
    if not len(numbers) or numbers[0] < 0:
        return np.full(len(chosen), -1, np.int64)
    begins = _whole([begin for _, begin, _ in measured.marked])
    when = launch_times(trace, started)
    when[started.work[in_flight(trace, started)]] = begins.min() - 1
    place = np.searchsorted(begins, when[chosen], side="right") - 1
    return np.where(place < 0, numbers[0] - 1, numbers[place])


def _operators(measured: MeasuredTrace) -> Columns:
    """Return the count and the self time in a step of each operator and kernel."""
    rows = list(step_work(measured))
    return {
        "rank": np.full(len(rows), measured.rank),
        "name": _texts([row[0] for row in rows]),
        "place": _texts([row[1] for row in rows]),
        "count": np.array([row[2] for row in rows], np.float64),
        "self_ns": np.array([row[3] for row in rows], np.float64),
    }


def _places(group: Any) -> Any:
    """Return the index of each within its group."""
    place = np.zeros(len(group), np.int64)
    for code in distinct(group):
        members = group == code
        place[members] = np.arange(members.sum())
    return place


def _texts(values: list[str]) -> Any:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _known(values: list[int | None]) -> Any:
    """Return counts; -1 for those that are unknown."""
    return _whole([-1 if value is None else value for value in values])


def _whole(values: list[int]) -> Any:
    return np.array(values, np.int64)
