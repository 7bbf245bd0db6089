"""Columns on disk: every event of a trace, and what a rank is compared by with the others."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.measures.code.marks import KINDS
from dynprof.analysis.measures.communication.collectives import RECEIVE, SEND
from dynprof.analysis.measures.difference import step_work
from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.measures.timeline.phases import NAMES
from dynprof.analysis.output.whole_files import make_output_folder
from dynprof.analysis.reading.intervals import distinct
from dynprof.runtime.output import by_library

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from duckdb import DuckDBPyConnection

    from dynprof.analysis.measures.communication.collectives import Message
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

FOLDER = "parquet"
EVENTS, STEPS, COLLECTIVES, OPERATORS = "events", "steps", "collectives", "operators"
"""Names of the tables, which are those of the files too."""
RANK_TABLES = (STEPS, COLLECTIVES, OPERATORS)
"""What ranks are compared by."""
MESSAGE = "send and receive"
"""What both ends of a message are called, so that they match."""
_EVENTS = """
SELECT start_ns, duration_ns, n.value AS name, c.value AS category, t.pid, t.tid,
    nullif(external_id, -1) AS external_id, nullif(sequence, -1) AS sequence,
    nullif(device, -1) AS device, nullif(stream, -1) AS stream,
    nullif(correlation, -1) AS correlation, nullif(m.domain, '') AS domain,
    nullif(m.kind, '') AS mark
FROM spans s JOIN names n ON n.id = s.name JOIN categories c ON c.id = s.category
    JOIN threads t ON t.id = s.thread JOIN marks m ON m.id = s.mark
"""

Columns = dict[str, Any]
"""Of one length; NumPy arrays."""


def write_events(measured: MeasuredTrace, folder: Path) -> Iterator[Path]:
    """Write every event of a trace; yield the path.

    Raises:
        OSError: The place cannot be written.
    """
    make_output_folder(folder / FOLDER)
    with connection() as database:
        yield _copy(database, parquet_file(folder, EVENTS), _events(database, measured))


def write_rank_tables(measured: MeasuredTrace, folder: Path) -> Iterator[Path]:
    """Write what a rank is compared by; yield the paths.

    Raises:
        OSError: The place cannot be written.
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
            yield _copy(database, parquet_file(folder, name), _typed(columns))


def parquet_file(folder: Path, table: str) -> Path:
    """Return where a table lies below the folder of what is made from a trace."""
    return folder / FOLDER / f"{table}.parquet"


def connection() -> DuckDBPyConnection:
    """Return a database in memory that takes one processor and asks nothing of the network."""
    import duckdb

    private = tempfile.mkdtemp(prefix="dynprof-")
    database = duckdb.connect(
        config={
            "threads": 1,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "temp_directory": private,  # else one that is open to all, where the command works
        }
    )
    weakref.finalize(database, shutil.rmtree, private, ignore_errors=True)
    database.execute("SET enable_progress_bar = false")
    return database


def _typed(columns: Columns) -> str:
    """Return the query for all of them; a column of texts is one where it is empty too."""
    return "FROM found SELECT " + ", ".join(
        f'"{name}"::VARCHAR AS "{name}"' if column.dtype == object else f'"{name}"'
        for name, column in columns.items()
    )


def _copy(database: DuckDBPyConnection, path: Path, query: str) -> Path:
    """Write what a query finds."""
    import duckdb

    with by_library(path) as made:
        target = str(made).replace("'", "''")
        try:
            database.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
        except duckdb.Error as error:
            raise OSError(f"{path} cannot be written: {error}") from error
    return path


def _events(database: DuckDBPyConnection, measured: MeasuredTrace) -> str:
    """Return the query for all events with a duration, and for marks, which have none."""
    trace = measured.trace
    times = {
        "start_ns": trace.spans["start"] + measured.base_ns,
        "duration_ns": trace.spans["length"],
    }
    database.register("spans", {**trace.spans, **times, "mark": _marked(database, measured)})
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
    """Register what marks there are, kinds with domains; return which of them each event is."""
    kinds, found = {("", ""): 0}, measured.marks
    place = np.zeros(len(measured.trace.spans["start"]), np.int64)
    both = zip((KINDS[kind] for kind in found.kind.tolist()), found.domain, strict=True)
    place[found.span] = [kinds.setdefault(one, len(kinds)) for one in both]
    names = {name: _texts([one[at] for one in kinds]) for at, name in enumerate(("kind", "domain"))}
    database.register("marks", {"id": np.arange(len(kinds)), **names})
    return place


def phase_column(phase: str) -> str:
    """Return what the column of a phase is called."""
    return f"{phase.replace(' ', '_')}_ns"


def _steps(measured: MeasuredTrace) -> Columns:
    """Return a row for each step on each device; phases are those of the host."""
    phases = dict(zip(measured.marked, measured.phases, strict=True))
    steps = measured.steps
    mine = [phases[step.number, step.begin, step.length] for step in steps]
    times = ("length", "computing", "communication", "overlapped", "free", "stage", "preparing")
    return {
        "rank": np.full(len(steps), measured.rank),
        "world_size": np.full(len(steps), measured.world_size),
        "host": _texts([measured.host] * len(steps)),
        "step": np.array([-1 if step.number is None else step.number for step in steps], np.int64),
        "device": _texts([str(step.device_id) for step in steps]),
        **{f"{name}_ns": _whole([getattr(step, name) for step in steps]) for name in times},
        "receiving_ns": _whole([-1 if s.receiving is None else s.receiving for s in steps]),
        **{phase_column(name): _whole([one[name] for one in mine]) for name in NAMES},
    }


def _collectives(measured: MeasuredTrace) -> Columns:
    """Return the collectives of each process group in order; times are those since the epoch.

    Messages from one rank to another are in a group of their own, named for the two; those whose
    other end is not known, in one that no other rank is in.
    """
    trace, found = measured.trace, measured.messages
    chosen, own = found.span, measured.rank
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
        "sender": _whole([_end(message, own, SEND) for message in known]),
        "receiver": _whole([_end(message, own, RECEIVE) for message in known]),
    }


def message_group(message: Message, own: int) -> str:
    """Return what the two ranks of a message are called; empty for what more take part in."""
    if message.kind not in (SEND, RECEIVE):
        return ""
    sender, receiver = _end(message, own, SEND), _end(message, own, RECEIVE)
    if sender < 0 or receiver < 0:
        return f"between rank {own} and one that is not named"
    return f"from rank {sender} to rank {receiver}"


def _end(message: Message, own: int, kind: str) -> int:
    """Return which rank sends a message, or receives it; -1 where unknown, or none does."""
    if message.kind == kind:
        return own
    return message.sender if kind == SEND else message.receiver


def _members(measured: MeasuredTrace, group: int) -> str:
    return b" ".join(measured.trace.tables["group"][group]).decode(errors="replace")


def _launch_steps(measured: MeasuredTrace, chosen: Any) -> Any:
    """Return in which step the host began each; -1 where steps are not marked."""
    spans, started = measured.trace.spans, measured.launches
    numbers = _whole([-1 if number is None else number for number, _, _ in measured.marked])
    if not len(numbers) or numbers[0] < 0:
        return np.full(len(chosen), -1, np.int64)
    begins = _whole([begin for _, begin, _ in measured.marked])
    when = spans["start"].copy()
    called = started.call != UNKNOWN
    when[started.work[called]] = spans["start"][started.call[called]]
    place = np.searchsorted(begins, when[chosen], side="right") - 1
    return np.where(place < 0, numbers[0] - 1, numbers[place])


def _operators(measured: MeasuredTrace) -> Columns:
    """Return the count and the own time of each operator and kernel in a step."""
    rows = list(step_work(measured))
    return {
        "rank": np.full(len(rows), measured.rank),
        "name": _texts([row[0] for row in rows]),
        "place": _texts([row[1] for row in rows]),
        "count": np.array([row[2] for row in rows], np.float64),
        "own_ns": np.array([row[3] for row in rows], np.float64),
    }


def _places(group: Any) -> Any:
    """Return the place of each among those of its group."""
    place = np.zeros(len(group), np.int64)
    for code in distinct(group):
        mine = group == code
        place[mine] = np.arange(mine.sum())
    return place


def _texts(values: list[str]) -> Any:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _whole(values: list[int]) -> Any:
    return np.array(values, np.int64)
