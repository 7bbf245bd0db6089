"""Views and columns that SQL reads, with types, units and meaning.

``start`` and ``stop`` are for reading and comparing: they are cut to whole microseconds.
``start_ns`` and ``duration_ns`` are exact.
"""

from __future__ import annotations

from typing import NamedTuple

EVENTS, OPERATORS, KERNELS, LAUNCHES = "events", "operators", "kernels", "launches"
IDLE, MEMORY, COLLECTIVES, STEPS = "idle", "memory", "collectives", "steps"
RANKS, WINDOWS = "ranks", "windows"
TEXT, WHOLE, REAL, BOOLEAN, TIME = "VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP"
NS, BYTES = "ns", "bytes"
_OPERATOR = "the innermost operator or label of the host"
_DEFINED = "line 22 has its `def`; none if it was entered before the steps, or is a module"
_UNTIL = "`start` plus the duration"


class Column(NamedTuple):
    """A column of a view.

    Attributes:
        name: The name, which needs no quotes in SQL.
        type: DuckDB's type.
        meaning: What it holds, for the page; and when it is NULL.
        unit: The unit; empty for a name, a count or a flag.
    """

    name: str
    type: str
    meaning: str
    unit: str = ""


class View(NamedTuple):
    """A view.

    Attributes:
        meaning: What a row is, for the page.
        columns: The columns, in order.
    """

    meaning: str
    columns: tuple[Column, ...]

    @property
    def declared(self) -> str:
        """The columns for ``CREATE TABLE``."""
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)


_WINDOW = Column(
    "window_name",
    TEXT,
    "folder of the window, below the path that was given; of several paths, the path",
)
_RANK = Column("rank", WHOLE, "rank that recorded it")
_ID = Column("id", WHOLE, "number of the event in its trace; the other views use the same")
_STEP = Column("step", WHOLE, "step of the job; device work counts where it was launched; NULL "
               "outside of the marked steps")  # fmt: skip
_TIMES = (
    Column("start", TIME, "begin, UTC", "us"),
    Column("stop", TIME, f"end, UTC: {_UNTIL}", "us"),
    Column("start_ns", WHOLE, "begin, since 1970", NS),
    Column("duration_ns", WHOLE, "duration", NS),
)
_THREAD = (
    Column("pid", TEXT, "process, as the trace names it"),
    Column("tid", TEXT, "thread, as the trace names it"),
)
_CODE = (
    Column("line", TEXT, "innermost frame of your own code at its begin, such as `train.py:22 "
           f"(main)`: {_DEFINED}; NULL without stacks"),
    Column("stack", TEXT, "Python frames around the operator, innermost first, separated by `; `; "
           "NULL without stacks"),
)  # fmt: skip
_BY = (
    Column("operator", TEXT, f"{_OPERATOR} that launched it; NULL if unknown"),
    Column("operator_id", WHOLE, "`operators.id` of it"),
)
_EVENT = (_WINDOW, _RANK, _STEP, _ID, *_TIMES)

VIEWS: dict[str, View] = {
    EVENTS: View(
        "Every span and mark of a trace. Allocations are in `memory`.",
        (
            *_EVENT,
            Column("name", TEXT, "name"),
            Column("category", TEXT, "category in the trace, such as `cpu_op` or `kernel`"),
            *_THREAD,
            Column("device", WHOLE, "device; NULL on the host"),
            Column("stream", WHOLE, "stream; NULL on the host"),
            Column("correlation", WHOLE, "number that device work shares with its launch"),
            Column("external_id", WHOLE, "Kineto's number of an operator"),
            Column("sequence", WHOLE, "autograd's number, which forward and backward share"),
            Column("domain", TEXT, "domain of a mark"),
            Column("mark", TEXT, "kind of a mark"),
        ),
    ),
    OPERATORS: View(
        "Each run of an operator, label or call on the host, without the labels of steps. An "
        "operator that only repeats the one around it is left out, as in torch's tables.",
        (
            *_EVENT,
            Column("name", TEXT, "name"),
            Column("category", TEXT, "category in the trace: `cpu_op`, `user_annotation`, ..."),
            Column("own_ns", WHOLE, "duration without operators inside it", NS),
            Column("device_own_ns", WHOLE, "device work that it launched itself; NULL if the trace "
                   "has no launches", NS),
            Column("device_ns", WHOLE, "the same with operators inside it", NS),
            Column("parent_id", WHOLE, "`operators.id` of the operator around it; NULL for none"),
            Column("shapes", TEXT, "shapes of its inputs, such as `4,5;5,6`; NULL without shapes"),
            Column("types", TEXT, "types of its inputs, separated by `;`"),
            *_THREAD,
            *_CODE,
        ),
    ),
    KERNELS: View(
        "Each kernel, copy and memset on a device.",
        (
            *_EVENT,
            Column("name", TEXT, "name"),
            Column("kind", TEXT, "`KERNEL`, `COMMUNICATION`, `MEMCPY` or `MEMSET`"),
            Column("category", TEXT, "what it computes: `GEMM`, `attention`, `elementwise` ..."),
            Column("device", WHOLE, "device"),
            Column("stream", WHOLE, "stream"),
            Column("grid", TEXT, "blocks of the grid, such as `108,1,1`; NULL if not recorded"),
            Column("block", TEXT, "threads of a block, such as `256,1,1`"),
            Column("blocks", WHOLE, "number of blocks"),
            Column("registers", WHOLE, "registers of a thread"),
            Column("shared_memory", WHOLE, "shared memory of a block", BYTES),
            Column("occupancy", REAL, "estimated occupancy of the multiprocessors", "%"),
            Column("tensor_cores", BOOLEAN, "computes on tensor cores; NULL if the name does not "
                   "tell"),
            Column("bytes", WHOLE, "size of a copy or memset; NULL for kernels", BYTES),
            Column("queued_ns", WHOLE, "time from the end of its launch to its begin; NULL if the "
                   "launch is unknown", NS),
            Column("idle_before_ns", WHOLE, "how long its stream was idle before it", NS),
            Column("launch_id", WHOLE, "`launches.id` of its launch; NULL if unknown"),
            *_BY,
            Column("shapes", TEXT, "shapes of the inputs of that operator"),
            *_CODE,
        ),
    ),
    LAUNCHES: View(
        "Each call of the device's runtime or driver that launched device work.",
        (
            *_EVENT,
            Column("name", TEXT, "name, such as `cudaLaunchKernel`"),
            *_THREAD,
            Column("works", WHOLE, "number of kernels, copies and memsets; many for a graph"),
            Column("device_ns", WHOLE, "their durations together", NS),
            Column("queued_ns", WHOLE, "time from its end to the begin of the first of them", NS),
            *_BY,
            *_CODE,
        ),
    ),
    IDLE: View(
        "Gaps within the steps in which a device ran nothing: the first that worked. A piece of a "
        "gap has one cause, one operator and one line of the host. "
        "[Why the device was idle](analysis.md#why-the-device-was-idle) explains kinds and causes. "
        "Empty if no device worked.",
        (
            *(column for column in _EVENT if column is not _ID),
            Column("device", WHOLE, "device"),
            Column("gap", WHOLE, "number of the gap on this rank; its pieces share it"),
            Column("kind", TEXT, "`host blocked`, `host late`, `queued`, `nothing to do` or "
                   "`unknown`"),
            Column("cause", TEXT, "cause, such as `data loading` or `launching`"),
            Column("call", TEXT, "call that made the host wait for the device; NULL for none. In a "
                   "piece of kind `host late` it has ended, and the host launches again"),
            Column("host_operator", TEXT, "operator that your code called, or label, during it on "
                   "the thread that launches next"),
            Column("line", TEXT, "innermost frame of your own code on that thread, as for "
                   "operators; NULL without stacks"),
        ),
    ),
    MEMORY: View(
        "Each allocation of tensor memory, until its release. Needs `profile_memory`. "
        "`stop` and `duration_ns` are NULL if it was not released within the trace.",
        (
            *(column for column in _EVENT if column is not _ID),
            Column("bytes", WHOLE, "size", BYTES),
            Column("device", TEXT, "device, such as `cpu` or `cuda:0`"),
            Column("allocated_bytes", WHOLE, "all that was allocated on the device then", BYTES),
            Column("reserved_bytes", WHOLE, "all that the allocator had reserved then", BYTES),
            Column("operator", TEXT, "innermost operator that allocated it; NULL for none"),
            Column("operator_id", WHOLE, "`operators.id` of it"),
            *_CODE,
        ),
    ),
    COLLECTIVES: View(
        "Each collective or message: the kernel, or without a device the host's label.",
        (
            *_EVENT,
            Column("name", TEXT, "name; `send and receive` for both ends of a message"),
            Column("kind", TEXT, "kind, such as `all reduce`; NULL if unknown"),
            Column("process_group", TEXT, "process group, as the trace names it"),
            Column("number", WHOLE, "number in its group on this rank, from 0"),
            Column("bytes", WHOLE, "size as nccl-tests counts it; NULL if unknown", BYTES),
            Column("members", WHOLE, "number of ranks that took part; NULL if unknown"),
            Column("bus_gb_s", REAL, "bus bandwidth, with the wait for other ranks; NULL if "
                   "unknown", "GB/s"),
            Column("sender", WHOLE, "rank that sent a message; NULL if unknown"),
            Column("receiver", WHOLE, "rank that received a message; NULL if unknown"),
            Column("late_ns", WHOLE, "how long after the median rank this rank began it, on "
                   "aligned clocks; negative if before; NULL if ranks cannot be compared", NS),
            Column("is_last", BOOLEAN, "this rank came last, by more than 1 ms and more than the "
                   "uncertainty of the clocks; NULL if ranks cannot be compared"),
        ),
    ),
    STEPS: View(
        "Each step on each device, or on the host if no device worked. Without marked steps, one "
        "row for the whole trace. Its device work is what it launched, which may run long after "
        "its label on the host.",
        (
            _WINDOW,
            _RANK,
            Column("step", WHOLE, "step of the job, or iteration of an inference server; NULL if "
                   "neither is marked"),
            Column("kind", TEXT, "kind of the iteration, such as `prefill`, `decode` or `mixed`; "
                   "NULL for a step"),
            Column("requests", WHOLE, "its requests, the batch size; NULL if unknown"),
            Column("tokens", WHOLE, "its tokens that go through the model; NULL if unknown"),
            *_TIMES[:3],
            Column("duration_ns", WHOLE, "from begin to end of the step's label on the host", NS),
            Column("took_ns", WHOLE, "[how long it takes](analysis.md#how-long-a-step-takes) in "
                   "the report; NULL if the device is behind and did nothing for it", NS),
            Column("recording_ns", WHOLE, "of that, the work of the profiler itself; 0 if unknown, "
                   "as without stacks", NS),
            Column("device", TEXT, "device, or `host`"),
            Column("computing_ns", WHOLE, "time in which its kernels computed, also after its "
                   "label; on the host, operators", NS),
            Column("communication_ns", WHOLE, "time in which its collectives ran", NS),
            Column("overlapped_ns", WHOLE, "time in which both did", NS),
            Column("free_ns", WHOLE, "time in which neither did, within `stage_ns`", NS),
            Column("stage_ns", WHOLE, "span on the device: from the begin of its first kernel or "
                   "collective to the end of the last", NS),
            Column("preparing_ns", WHOLE, "from the begin of the label to that of its first kernel "
                   "or collective", NS),
            Column("receiving_ns", WHOLE, "when messages were received; NULL if unknown", NS),
            Column("data_loading_ns", WHOLE, "phases of the host: loading data", NS),
            Column("forward_ns", WHOLE, "forward", NS),
            Column("backward_ns", WHOLE, "backward", NS),
            Column("recomputation_ns", WHOLE, "forward work that the backward pass repeats", NS),
            Column("optimizer_ns", WHOLE, "optimizer", NS),
            Column("checkpoint_ns", WHOLE, "checkpoint", NS),
            Column("rest_ns", WHOLE, "what no phase covers", NS),
        ),
    ),
    RANKS: View(
        "Each rank of a window.",
        (
            _WINDOW,
            _RANK,
            Column("world_size", WHOLE, "number of ranks of the job; NULL if unknown"),
            Column("host", TEXT, "machine; NULL if unknown"),
            Column("device_name", TEXT, "device that worked; NULL if unknown"),
            Column("trace", TEXT, "file"),
            *_TIMES,
            Column("events", WHOLE, "number of events"),
            Column("complete", BOOLEAN, "no event of any step may be missing"),
        ),
    ),
    WINDOWS: View(
        "Each window, from `steps`: to compare windows, whose names do not sort.",
        (
            _WINDOW,
            Column("age", WHOLE, "1 for the newest, 2 for the one before, ...; of several paths, 1 "
                   "is the last"),
            *_TIMES[:3],
            Column("ranks", WHOLE, "number of ranks"),
            Column("rank_steps", WHOLE, "number of marked steps, over all ranks: sums divided by "
                   "it are means of a step; a rank without marked steps counts once"),
        ),
    ),
}  # fmt: skip
"""The views, in the order of the page."""
