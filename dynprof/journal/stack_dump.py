"""The stacks of one rank and of its child processes, in a file next to its log.

The rank writes the file when a step takes too long, and when :func:`request_stacks` asks. A process
whose interpreter does not run cannot: ``dynprof dump`` reads it from outside.

``faulthandler.dump_traceback_later`` is not used. It reads frames from a thread without the GIL,
while the interpreter may be changing them.

The file also has what torch's flight recorder knows of collectives that have not ended. Only its
JSON is read; nothing of it is ever unpickled. torch has two recorders: one for NCCL (from torch
2.5), one for other backends such as gloo (from 2.8). ``TORCH_FR_BUFFER_SIZE``, formerly
``TORCH_NCCL_TRACE_BUFFER_SIZE``, sets how many collectives they keep; 0 switches them off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from dynprof.errors import CaptureError, describe, reason
from dynprof.journal.status import HEARTBEAT_S, Status, load_status, stuck_after_s
from dynprof.runtime import fresh_interpreter
from dynprof.runtime.clock import local
from dynprof.runtime.job_files import check_values
from dynprof.runtime.layout import Layout, host_name, pid_namespace, rank_in_words
from dynprof.runtime.modules import imported_module
from dynprof.runtime.plural import counted
from dynprof.runtime.safe_open import read_inside
from dynprof.runtime.safe_write import write_atomic
from dynprof.runtime.stacks import (
    MAX_THREADS,
    ProcessStacks,
    ThreadStack,
    place_in,
    stacks_here,
    stacks_of,
)
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Sequence

    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.runtime.error_boundary import ErrorBoundary

MAX_BYTES = 4 << 20
"""Largest file of stacks in bytes; 200 threads of 30 frames take 0.3 MB."""
MAX_CHILDREN = 64
"""Child processes whose stacks are kept: torch.compile starts up to 32, data loaders as many."""
CHILDREN_S = 30.0
"""Seconds in which child processes are read: py-spy takes 0.1 s for one that has loaded torch."""
MAX_LOGGED = 2
"""Places of child processes in the log, the rarest."""
MAX_PLACES = 8
"""Places of child processes that are named; all stacks follow."""
MAX_NAMES = 3
"""Threads and processes with equal stacks that are named; the others are counted."""
RECORDERS = "_dump_nccl_trace_json", "_dump_fr_trace_json"
MAX_COLLECTIVES = 20
"""Collectives that are named: a hanging job waits in one or a few of each group."""
MAX_LINE_CHARACTERS = 300
"""Characters of a line: a coalesced collective has hundreds of sizes."""
BY_THE_JOB, BY_PY_SPY = "the job", "py-spy"
_OWN = str(
    Path(fresh_interpreter.__file__).absolute()
)  # In the command of dynprof's own processes.


@dataclass(frozen=True)
class StackDump:
    """The stacks of a rank.

    Attributes:
        rank: Its number.
        role: Its role in a job with several roles.
        host: Name of its machine.
        step: The step that was running.
        taken_at: When the stacks were read, in seconds since the epoch.
        taken_by: ``the job``, or ``py-spy`` from outside.
        process: The stacks of the rank.
        children: Those of its child processes.
        children_left_out: Number of further child processes.
        collectives: What torch's flight recorder knows of collectives that have not ended.
        request: Time of the request that it answers, in nanoseconds; 0 for none.
        silent: Since when it does not answer, and why, where it was read from outside.
        complete: Whether children and collectives have been added.
        heard_at: When the step was running, if it was read from a status; 0 if at ``taken_at``.
    """

    rank: int
    role: str
    host: str
    step: int
    taken_at: float
    taken_by: str
    process: ProcessStacks
    children: tuple[ProcessStacks, ...] = ()
    children_left_out: int = 0
    collectives: tuple[str, ...] = ()
    request: str = "0"
    silent: str = ""
    complete: bool = False
    heard_at: float = 0.0

    @property
    def blocking(self) -> ThreadStack | None:
        """The thread that the rank waits for: main, or that which holds the GIL if it is silent."""
        holders = [one for one in self.process.threads if one.holds_gil]
        runs = self.process.state not in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        return holders[0] if self.silent and runs and holders else self.process.training


class StackDumps:
    """Writes the stacks of this process.

    Args:
        layout: Returns the paths of this process.
        inbox: Has the running step and the thread that ends it.
        wall_s: Returns the seconds since the epoch.
        journal: The log.
        boundary: Keeps failures from other work.
    """

    def __init__(
        self,
        layout: Callable[[], Layout],
        inbox: Inbox,
        wall_s: Callable[[], float],
        journal: Journal,
        boundary: ErrorBoundary,
    ) -> None:
        self._layout, self._inbox, self._wall_s = layout, inbox, wall_s
        self._journal, self._boundary = journal, boundary
        self._answered = request_time(layout())  # a request of before is not for this process
        self._newest: StackDump | None = None
        self._completing: threading.Thread | None = None
        self._look_at_s = 0.0
        self._silent = 0.0  # the last heartbeat of a next rank that was read

    def answer_request(self) -> None:
        """Write stacks if an operator has requested them since the last call."""
        if self._completing and self._completing.is_alive():
            return
        asked = request_time(self._layout())
        if asked and asked != self._answered:
            self._answered = asked
            self._journal.info(f"stacks were requested; {self.take(asked)}")

    def take(self, request: str = "0") -> str:
        """Write the stacks of this process now, and those of its children a little later.

        Returns:
            Where they are or why not, for a log line.
        """
        layout = self._layout()
        self._newest = first = StackDump(
            rank=layout.rank,
            role=layout.role,
            host=layout.host,
            step=self._inbox.step,
            taken_at=self._wall_s(),
            taken_by=BY_THE_JOB,
            process=stacks_here(layout.pid, self._inbox.training_thread.ident),
            request=request,
        )
        try:
            write_dump(layout.stacks, first)
        except OSError as error:
            return f"the stacks of its threads cannot be written: {reason(error)}"
        self._completing = own_thread(self._complete_later, "dynprof-stacks", layout, first)
        self._completing.start()
        shown = layout.stacks.relative_to(layout.root)
        return f"the stacks of {counted(len(first.process.threads), 'thread')} are in {shown}"

    def look_at_next_rank(self) -> None:
        """Read the next rank of this machine from outside, once, if it has been silent too long."""
        layout, wall_s = self._layout(), self._wall_s()
        if (number := next_on_machine(layout.rank)) is None or wall_s < self._look_at_s:
            return
        self._look_at_s = wall_s + HEARTBEAT_S
        try:
            status = load_status(replace(layout, rank=number).status)
        except CaptureError:
            return
        limit_s = stuck_after_s(status.longest_s, status.step_ms)
        is_late = status.state != "stopped" and wall_s - status.heartbeat > limit_s
        if is_late and self._silent != status.heartbeat and is_here(layout.root, status):
            self._silent = status.heartbeat
            own_thread(self._read_next_rank, "dynprof-stacks", layout.root, status).start()

    def _read_next_rank(self, root: Path, status: Status) -> None:
        doing = f"reading the stacks of {status.named}"
        self._boundary.attempt(doing, lambda: self._report_silent(root, status))

    def _report_silent(self, root: Path, status: Status) -> None:
        text = _saved(root, status)
        self._journal.warning(text)
        about = {"rank": status.rank, "host": status.host, "pid": status.pid, "step": status.step}
        self._journal.events.report("stuck", text, **about)

    def _complete_later(self, layout: Layout, first: StackDump) -> None:
        doing = "reading the stacks of child processes"
        self._boundary.attempt(doing, lambda: self._complete(layout, first))

    def _complete(self, layout: Layout, first: StackDump) -> None:
        collectives: list[str] = []
        self._boundary.attempt(
            "reading torch's flight recorder", lambda: collectives.extend(unfinished_collectives())
        )
        whole = with_children(replace(first, collectives=tuple(collectives)))
        if self._newest is first:
            write_dump(layout.stacks, whole)
        if first.request == "0" and (places := where_children([whole])[:MAX_LOGGED]):
            self._journal.warning(f"in step {first.step}, {'; '.join(places)}")


def next_on_machine(rank: int) -> int | None:
    """Return the rank of the next process on this machine, as launchers number them; None if none.

    Each rank looks at one other, so that a silent one is noticed without another process.
    """
    try:
        number, count = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return rank - number + (number + 1) % count if 0 <= number < count > 1 else None


def with_children(dump: StackDump) -> StackDump:
    """Return a dump with the stacks of its child processes, those of dynprof left out."""
    children: list[int] = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(dump.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if _OWN not in child.cmdline() and child.name() != "py-spy":
                    children.append(child.pid)
    found: list[ProcessStacks] = []
    end_s = time.monotonic() + CHILDREN_S
    for pid in sorted(children)[:MAX_CHILDREN]:
        if time.monotonic() > end_s:
            break
        found.append(stacks_of(pid))
    left_out = len(children) - len(found)
    return replace(dump, children=tuple(found), children_left_out=left_out, complete=True)


def dump_from_outside(root: Path, status: Status) -> StackDump:
    """Return the stacks of a rank on this machine whose interpreter does not run.

    Args:
        root: The watched directory.
        status: The last status of the rank.

    Raises:
        CaptureError: The process is not this rank, or cannot be read; the message says why.
    """
    named = f"{status.named} (process {status.pid} on {status.host})"
    if not is_here(root, status):
        raise CaptureError(f"{named} does not answer, and is no process that this user may read")
    process = stacks_of(status.pid)
    silent = why_silent(status, process.state)
    if process.why_none:
        raise CaptureError(f"{named} {silent}; {process.why_none}")
    dump = StackDump(
        rank=status.rank,
        role=status.role,
        host=status.host,
        step=status.step,
        taken_at=time.time(),
        taken_by=BY_PY_SPY,
        process=process,
        silent=silent,
        heard_at=status.heartbeat,
    )
    return with_children(dump)


def where_children(dumps: Iterable[StackDump]) -> list[str]:
    """Return where the main threads of child processes are, the rarest place first."""
    owners: dict[str, list[str]] = {}
    for dump in dumps:
        for one in dump.children:
            if main := one.training:
                owners.setdefault(place_in(main.frames), []).append(owner_of(dump, one))
    order = sorted(owners.items(), key=lambda place: len(place[1]))
    return [
        f"{some_of(those)} {'is' if len(those) == 1 else 'are'} in {place or 'no Python function'}"
        for place, those in order[:MAX_PLACES]
    ]


def some_of(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f"; and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return f"{'; '.join(names[:MAX_NAMES])}{more}"


def owner_of(dump: StackDump, process: ProcessStacks) -> str:
    """Return a rank or one of its child processes, in words."""
    named = rank_in_words(dump.role, dump.rank)
    if process is dump.process:
        return named
    return f"child {process.pid} of {named} ({process.name}, {process.state})"


def _saved(root: Path, status: Status) -> str:
    """Save the stacks of a rank on this machine from outside; return what to log."""
    path = layout_of(root, status).stacks
    try:
        dump = dump_from_outside(root, status)
        write_dump(path, dump)
    except (CaptureError, OSError) as error:
        return describe(error)
    thread = dump.blocking
    place = (place_in(thread.frames) if thread else "") or "no Python function"
    where = f"its training thread is in {place}"
    if thread and thread is not dump.process.training:
        where = f"its thread {thread.name}, which holds the GIL, is in {place}"
    return f"{status.named} {dump.silent}; {where}; its stacks are in {path.relative_to(root)}"


def is_here(root: Path, status: Status) -> bool:
    """Return whether a process has the log of its rank open: a status file may name any process."""
    log = os.path.realpath(layout_of(root, status).log)
    with contextlib.suppress(OSError):
        if (status.host, status.pid_namespace) == (host_name(), pid_namespace()):
            entries = list(Path(f"/proc/{status.pid}/fd").iterdir())
            return any(os.path.realpath(entry) == log for entry in entries)
    return False


def layout_of(root: Path, status: Status) -> Layout:
    """Return the paths of a rank."""
    return Layout(root, status.rank, status.host, status.pid, status.role)


def why_silent(status: Status, state: str) -> str:
    """Return since when an interpreter does not answer, and why as far as the system shows it.

    Args:
        status: The last status of the rank.
        state: The state of its process.
    """
    since = f"does not answer since {local(status.heartbeat)[:8]}"
    if state == psutil.STATUS_STOPPED:
        return f"{since}: it is stopped (SIGSTOP); kill -CONT {status.pid} continues it"
    if state == psutil.STATUS_TRACING_STOP:
        return f"{since}: a debugger has stopped it"
    if state == psutil.STATUS_DISK_SLEEP:
        return f"{since}: it waits for a disk or a device (state D)"
    if status.unwritable:
        return f"cannot write its status since {local(status.heartbeat)[:8]}: {status.unwritable}"
    return f"{since}: a call holds the GIL, the disk does not answer, or the machine is too busy"


def request_stacks(layout: Layout) -> str:
    """Ask all ranks of a directory for their stacks; return the time that answers name.

    Raises:
        OSError: The request cannot be written.
    """
    write_atomic(layout.stacks_request, "")
    return request_time(layout)


def request_time(layout: Layout) -> str:
    """Return the time of the last request in nanoseconds; empty if there was none."""
    try:
        return str(layout.stacks_request.lstat().st_mtime_ns)
    except OSError:
        return ""


def write_dump(path: Path, dump: StackDump) -> None:
    """Write the stacks of a rank; with fewer threads of each process if they are too large.

    Raises:
        OSError: The file cannot be written.
    """
    for most in (MAX_THREADS, 20, 1):
        text = json.dumps(dataclasses.asdict(_shortened(dump, most)), indent=1)
        if len(text) < MAX_BYTES:
            break
    write_atomic(path, f"{text}\n")


def _shortened(dump: StackDump, threads: int) -> StackDump:
    process, *children = _with_threads((dump.process, *dump.children), threads)
    return replace(dump, process=process, children=tuple(children))


def _with_threads(processes: Sequence[ProcessStacks], most: int) -> list[ProcessStacks]:
    return [
        replace(one, threads=one.threads[:most], left_out=one.left_out + len(one.threads[most:]))
        for one in processes
    ]


_READER = msgspec.json.Decoder(StackDump)


def load_dump(path: Path) -> StackDump:
    """Read a file of stacks without trusting it.

    Raises:
        CaptureError: It does not exist or is no such file.
    """
    try:
        dump = _READER.decode(read_inside(path, MAX_BYTES, linked_folder=True))
        check_values(dump)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CaptureError(f"{path} has no stacks: it is not JSON with their fields") from None
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path} has no stacks: {reason(error)}") from None
    return dump


def unfinished_collectives() -> tuple[str, ...]:
    """Return a line for each process group and each collective that has not ended.

    Empty if torch is not loaded or the recorder is off. Call it only when the job stands still or
    an operator asks: the recorder of NCCL queries the device.
    """
    c10d = imported_module("torch._C._distributed_c10d")
    dumps = [getattr(c10d, name, None) for name in RECORDERS]
    lines: list[str] = []
    for dump in filter(None, dumps):
        lines += _recorder_lines(json.loads(dump(includeCollectives=True, onlyActive=True)))
    return tuple(line[:MAX_LINE_CHARACTERS] for line in lines[:MAX_COLLECTIVES])


def _recorder_lines(recorded: dict[str, Any]) -> list[str]:
    groups = [
        f"group {name}: {status['last_enqueued_collective']} collectives enqueued, "
        f"{status['last_completed_collective']} completed"
        for name, status in recorded.get("pg_status", {}).items()
        if int(status["last_enqueued_collective"]) > 0
    ]
    active = (one for one in recorded.get("entries", ()) if not one.get("retired"))
    return [*groups, *map(_collective, itertools.islice(active, MAX_COLLECTIVES))] if groups else []


def _collective(entry: dict[str, Any]) -> str:
    group = ", ".join(map(str, entry.get("process_group", ())))
    number = entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id")
    return (
        f"{entry.get('profiling_name')} number {number} of group {group}: {entry.get('state')}, "
        f"inputs {entry.get('input_sizes')}, outputs {entry.get('output_sizes')}"
    )
