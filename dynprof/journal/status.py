"""The status of one process, for operators and their scripts, and the file that has it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import msgspec
import psutil

from dynprof.errors import CaptureError, reason
from dynprof.journal.edit_outcomes import Answer  # noqa: TC001 - read at run time, to check what is loaded
from dynprof.journal.memory_growth import MemoryStatus
from dynprof.journal.pace_changes import PaceChange, RecentPace
from dynprof.requests.capabilities import Capabilities  # noqa: TC001
from dynprof.runtime.file_system import why_unwritable, why_write_fails
from dynprof.runtime.job_files import check_values
from dynprof.runtime.layout import HISTORY_SUFFIX, host_name, pid_namespace, rank_in_words
from dynprof.runtime.plural import counted
from dynprof.runtime.safe_open import read_from, read_inside
from dynprof.runtime.safe_write import remove, write_atomic
from dynprof.runtime.threads import state_of_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from dynprof.runtime.layout import Layout

HEARTBEAT_S = 5.0
"""Longest interval between two writes of a live process, in seconds."""
LONG_STEP_S = 30.0
"""Seconds of a step from which the status says what it executes; no shorter step is stuck."""
LIVE = ("alive", "starting", "stuck", "unknown")
"""Health of ranks that accept requests."""
RUNNING = (*LIVE, "ending")
"""Health of ranks whose process has not ended."""
STANDING_STEPS = 10
"""Usual steps in which one must end; the status names longer ones. A stuck step is far longer."""
LONG_STEPS = 3
"""Usual steps without the end of one after which their time is no longer recent."""
MAX_STEP_S = 1800.0
"""Most seconds that the first step may take, or that an earlier long step justifies."""
MAX_BYTES = 1 << 20
"""Largest status file in bytes; only its problems and last edits vary in size."""
NO_SOURCE = "no source of steps"
"""Start of ``steps_from`` while no step ends."""
JOURNAL_THREAD = "dynprof-journal"
"""Name of the thread that writes the status, up to 15 characters."""
LEADS = "leads"
"""The ``agreement`` of the rank that proposes the edits in its directory to the others."""


@dataclass(frozen=True)
class WindowStatus:
    """One request on all ranks, as last reported to the leader.

    Attributes:
        request: Its number; 0 for none.
        asked: Number of ranks that were asked to record.
        saved: Number of ranks that have saved it.
        unsaved: Number of ranks with another final outcome, by outcome, without stragglers.
        pending: Number of ranks that are still in progress; None before the ranks agreed.
        stragglers: A message for some of the ranks that delay the others or are missing.
        problems: Why no rank opens; empty if ranks open or have not agreed yet.
        remarks: Remarks from the agreement, and captures that do not have all steps.
        record: Path of the window's record, relative to the config's directory; empty for none.
    """

    request: int = 0
    asked: int = 0
    saved: int = 0
    unsaved: dict[str, int] = field(default_factory=dict)
    pending: int | None = 0
    stragglers: dict[int, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    record: str = ""

    @property
    def unsaved_in_words(self) -> str:
        """How it ended on ranks that did not save it, to append to a message."""
        return "".join(f", {outcome} on {count:,}" for outcome, count in self.unsaved.items())


@dataclass(frozen=True)
class JobStatus(WindowStatus):
    """All ranks of a job, and the newest request that was proposed to them.

    Attributes:
        ranks: Number of ranks.
        states: Number of ranks in each state; ``missing`` ranks do not answer.
        heard_at: Time of the last reports, in seconds since the epoch.
        earlier: Earlier requests.
    """

    ranks: int = 0
    states: dict[str, int] = field(default_factory=dict)
    heard_at: float = 0.0
    earlier: tuple[WindowStatus, ...] = ()

    def of(self, request: int) -> WindowStatus | None:
        """Return one request; None if it is unknown or no longer kept."""
        return next((one for one in self.requests if one.request == request), None)

    @property
    def requests(self) -> tuple[WindowStatus, ...]:
        """All known requests, newest first."""
        return (self, *self.earlier)


@dataclass(frozen=True)
class SlowStepStatus:
    """A slow step, as its record has it.

    Attributes:
        step: Its number.
        ms: How long it took, in ms.
        usual_ms: The median of the steps before it, in ms; 0 if unknown.
        waited_ms: How long of that it waited for other ranks or the device, in ms.
        text: What it did more than usual, in words.
        record: Path of its record, relative to the config's directory; empty if that failed.
        ended_at: When it ended, in seconds since the epoch.
    """

    step: int
    ms: float
    usual_ms: float
    waited_ms: float
    text: str
    record: str = ""
    ended_at: float = 0.0


@dataclass(frozen=True)
class WatchStatus:
    """The watch for slow steps, while it is on.

    Attributes:
        limit_ms: Time from which on a step is slow, in ms; 0 until the usual time is known.
        interval_ms: Mean time between two samples, in ms.
        share_percent: Recent share of one CPU that the watch uses, in percent.
        slow_steps: Number of slow steps since it is on.
        records: Number of them that have a record.
        last: The last one whose cause is known; None for none.
        budget_percent: The share that it may use; 0 if unknown.
        is_limit_raised: Whether varying step times make the limit longer than the setting.
        unexplained: Number of slow steps that are only counted, as their cause is not known.
        earlier: Those before it, newest first. The ranks write their statuses at different times,
            so the last ones of two ranks may be different steps.
    """

    limit_ms: float = 0.0
    interval_ms: float = 0.0
    share_percent: float = 0.0
    slow_steps: int = 0
    records: int = 0
    last: SlowStepStatus | None = None
    budget_percent: float = 0.0
    is_limit_raised: bool = False
    unexplained: int = 0
    earlier: tuple[SlowStepStatus, ...] = ()


@dataclass(frozen=True)
class Status:
    """The status of a process: ``dp.status()`` returns it, ``status/rank_<r>.json`` stores it.

    Attributes:
        state: ``disabled``, ``idle``, ``waiting``, ``warmup``, ``recording``, ``saving``,
            ``sending`` or ``stopped``.
        step: The number of the running step.
        steps_from: What ends the steps: ``dp.step()``, an optimizer, a function, a period.
        rank: Rank of the process.
        world_size: Number of ranks.
        host: Name of the machine.
        pid: Id of the process.
        pid_namespace: Namespace of that id; empty if the system does not tell.
        role: Role of its ranks in a job with several roles; empty in other jobs.
        agreement: ``leads`` if it proposes edits to the other ranks; ``follows`` with the leader if
            another rank does; empty if each rank serves what it reads.
        job: All ranks, if it leads them; else None.
        request: Number of the request being served or waiting; 0 for none.
        progress: Steps done and steps requested of the open window, including warm-up.
        warmup: Number of warm-up steps among them.
        watching: How the config is watched, and why.
        profilers: Capabilities of each backend in this process.
        prof_dirs: Allowed places for captures, in addition to the config's directory.
        follow_symlinks: Whether it reads the config through symbolic links.
        baselines: The interval of baselines, when the next is due, and how many are kept; empty if
            none are requested here.
        edits: The newest edits with their outcomes, oldest first.
        problems: What was wrong with the last edit, one message each.
        remarks: Settings of the last edit that have no effect or were downgraded, and slower or
            reduced ways in which its window is recorded.
        last_capture: Manifest of the last capture, relative to the config's directory.
        ending: Why it ends, and what it waits for; empty while it takes requests.
        process_exits: Whether the session ended because the process ends.
        failure: Type and place of the exception that ended the script; empty if none did.
        last_error: The last failure of dynprof itself since a request was accepted, one line.
        stuck_at: Where the training thread is, while a step takes longer than half a minute.
        training_thread_runs: Whether it runs Python code, while a step takes longer than
            usual.
        waits_for: The rank that computes, while this one waits for it longer than a step may take.
        step_ms: Recent mean step time, in milliseconds; None while unknown.
        recent_steps: The step counter over the last 15 s: pairs of seconds since the epoch and
            step, about one a second, oldest first.
        death: What this rank saw when the next rank of its machine died; empty for nothing.
        death_at: When it saw that, in seconds since the epoch.
        memory: Its memory, at most some seconds before.
        recent_pace: The pace of the last hour, or since the first step.
        hour_ms: Median time of a step in the last hour, in milliseconds, without windows; None
            while unknown.
        pace_change: The last change of the pace; None while there was none in this process.
        since_last_step_s: Seconds since the step counter last changed, at the time of writing.
        longest_s: Longest time that the step counter stood still so far, in seconds; None before
            the first step has ended.
        watch: The watch for slow steps; None while it is off.
        heartbeat: Time of writing, in seconds since the epoch.
        unwritable: Why the disk of its file takes no write now, as the reader of the file has
            found; empty if it does.
    """

    state: str
    step: int = 0
    steps_from: str = ""
    rank: int = 0
    world_size: int = 1
    host: str = ""
    pid: int = 0
    pid_namespace: str = ""
    role: str = ""
    agreement: str = ""
    job: JobStatus | None = None
    request: int = 0
    progress: tuple[int, int] | None = None
    warmup: int = 0
    watching: str = ""
    profilers: tuple[Capabilities, ...] = ()
    prof_dirs: tuple[str, ...] = ()
    follow_symlinks: bool = False
    baselines: str = ""
    edits: tuple[Answer, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    last_capture: str | None = None
    ending: str = ""
    process_exits: bool = False
    failure: str = ""
    last_error: str | None = None
    stuck_at: str = ""
    training_thread_runs: bool = False
    waits_for: str = ""
    step_ms: float | None = None
    recent_steps: tuple[tuple[float, int], ...] = ()
    recent_pace: RecentPace = field(default_factory=RecentPace)
    hour_ms: float | None = None
    pace_change: PaceChange | None = None
    death: str = ""
    death_at: float = 0.0
    since_last_step_s: float = 0.0
    longest_s: float | None = 0.0
    watch: WatchStatus | None = None
    memory: MemoryStatus = field(default_factory=MemoryStatus)
    heartbeat: float = 0.0
    unwritable: str = ""

    @property
    def named(self) -> str:
        """Rank and role, in words."""
        return rank_in_words(self.role, self.rank)

    @property
    def process(self) -> tuple[int, str, int]:
        """The identity of the process: rank, host and pid."""
        return self.rank, self.host, self.pid

    def is_live(self, now_s: float) -> bool:
        """Return whether the process is running, as far as this process can tell.

        On this machine the process must exist; elsewhere its status must be recent.

        Args:
            now_s: Seconds since the epoch.
        """
        if self.state == "stopped":
            return False
        there = self._is_there()
        return self.is_fresh(now_s) if there is None else there

    def writes(self, now_s: float) -> bool:
        """Return whether the process is running and has written its status recently."""
        return self.is_fresh(now_s) and self.is_live(now_s)

    def health(self, now_s: float) -> str:
        """Return its health: alive, starting, ending, stuck, unknown, dead, failed or stopped.

        A dead process is gone; on another machine, it has not written for three heartbeats. If the
        disk takes no write, the health of a process that exists is unknown. A stuck process is
        stopped, or in a step for longer than the limit. The limit is the longest of three times:
        30 s, 20 usual steps, and 1.5 times the longest step so far (up to 30 min). The longest step
        may have been a compilation or an evaluation. While the training thread computes and runs
        Python code, as in an evaluation, or waits for such a rank, it is 30 min. A process that
        does not write has as long as a step: a call may hold the GIL. An ending process takes no
        more requests and waits for captures to be saved and sent. A starting process is in its
        first step for up to 30 min, because the usual duration is unknown. If an exception has
        ended the script, it has failed.

        Args:
            now_s: Seconds since the epoch.
        """
        if self.state == "stopped":
            return "failed" if self.failure else "stopped"
        state, is_fresh = self.process_state(), self.is_fresh(now_s)
        if state == "" or (state is None and not is_fresh and not self.unwritable):
            return "dead"
        is_stopped = state in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        if not is_fresh and self.unwritable and not is_stopped:
            return "unknown"
        if is_fresh and self.ending:
            return "ending"
        limit_s = stuck_after_s(self.longest_s, self.step_ms)
        if is_fresh and (self.training_thread_runs or self.waits_for):
            limit_s = max(limit_s, MAX_STEP_S)
        since_last_step_s = self.since_last_step_s if is_fresh else self.stuck_s(now_s)
        if since_last_step_s > limit_s or (is_stopped and not is_fresh):
            return "stuck"
        if self.ending:
            return "ending"
        return "starting" if self.longest_s is None else "alive"

    def step_at(self, moment_s: float) -> int:
        """Return the step that was running at a moment, interpolated between readings.

        Args:
            moment_s: Seconds since the epoch, in the 15 s before the status was written.
        """
        points = [*self.recent_steps, (self.heartbeat, self.step)]
        for (from_s, first), (to_s, last) in itertools.pairwise(points):
            if from_s <= moment_s < to_s:
                return int(first + (last - first) * (moment_s - from_s) / (to_s - from_s))
        return points[0][1] if moment_s < points[0][0] else self.step

    @property
    def runs_on(self) -> bool:
        """Whether it stopped (``shutdown()``, ``dynprof detach``) while its process still runs."""
        return self.state == "stopped" and self._is_there() is True

    def stuck_s(self, now_s: float) -> float:
        """Return the seconds since its step counter last changed, as far as is known."""
        return self.since_last_step_s + max(0.0, now_s - self.heartbeat)

    def recent_ms(self, now_s: float) -> float | None:
        """Return the recent time of a step; None while unknown, or if none has ended for long."""
        if self.step_ms is None:
            return None
        longest_s = max(LONG_STEP_S, LONG_STEPS * self.step_ms / 1e3)
        return None if self.stuck_s(now_s) > longest_s else self.step_ms

    def standing_s(self, now_s: float) -> float:
        """Return the seconds in which no step has ended, if that is unusual here; 0 otherwise."""
        if self.longest_s is None or self.ending or not self.writes(now_s):
            return 0.0
        least_s = max(HEARTBEAT_S, STANDING_STEPS * (self.step_ms or 0.0) / 1e3)
        seconds = self.stuck_s(now_s)
        return seconds if self.since_last_step_s > HEARTBEAT_S / 2 and seconds >= least_s else 0.0

    def is_fresh(self, now_s: float) -> bool:
        """Return whether the status was written recently.

        Args:
            now_s: Seconds since the epoch.
        """
        return now_s - self.heartbeat < 3 * HEARTBEAT_S

    def _is_there(self) -> bool | None:
        """Return whether the process exists; None if that cannot be seen from here."""
        state = self.process_state()
        return None if state is None else bool(state)

    def process_state(self) -> str | None:
        """Return the state of the process; empty if it is gone, None if that cannot be seen."""
        if self.host != host_name() or self.pid_namespace != pid_namespace():
            return None
        try:
            process = psutil.Process(self.pid)
            if process.create_time() > self.heartbeat + HEARTBEAT_S:
                return ""  # another process with the same id
            state = str(process.status())
        except psutil.NoSuchProcess:
            return "" if psutil.pid_exists(1) else None  # /proc may hide other users' processes
        except (psutil.Error, ValueError, OverflowError):
            return None
        return "" if state == psutil.STATUS_ZOMBIE else state


def stuck_after_s(longest_s: float | None, step_ms: float | None) -> float:
    """Return how many seconds a step may take, from the longest one so far and the usual one."""
    if longest_s is None:
        return MAX_STEP_S
    return max(LONG_STEP_S, 0.02 * (step_ms or 0.0), min(1.5 * longest_s, MAX_STEP_S))


def stage_progress(status: Status) -> tuple[int, int]:
    """Return the steps done and requested of the warm-up, or of the recording after it."""
    done, asked = status.progress or (0, 0)
    if status.state == "warmup":
        return done, status.warmup
    return done - status.warmup, asked - status.warmup


def of_present_run(found: Sequence[Status], now_s: float) -> list[Status]:
    """Return statuses without those of ranks that a job no longer has.

    A job that starts again with fewer ranks leaves the files of the others. If no rank runs, the
    run that has written last counts.

    Args:
        found: The statuses of a directory.
        now_s: Seconds since the epoch.
    """
    kept = list[Status]()
    for role in dict.fromkeys(one.role for one in found):
        those = [one for one in found if one.role == role]
        if len({one.world_size for one in those}) > 1:  # else no health is looked up
            live = {id(one) for one in those if one.health(now_s) in RUNNING}
            newest = max(those, key=lambda one: one.heartbeat)
            size = max(one.world_size for one in those if id(one) in live or one is newest)
            those = [one for one in those if id(one) in live or one.rank < size]
        kept += those
    return kept


def common_moment(found: Iterable[Status], now_s: float) -> float | None:
    """Return the newest moment at which the step of every live process is known.

    Ranks write their status every five seconds, at different moments, so that their newest steps
    cannot be compared. All of them read their step at each whole second; this moment is one.

    Args:
        found: The status of the processes.
        now_s: Seconds since the epoch.

    Returns:
        Seconds since the epoch; None if no process writes.
    """
    heartbeats = [one.heartbeat for one in found if one.writes(now_s)]
    return float(math.floor(min(heartbeats))) if heartbeats else None


_Record = TypeVar("_Record")
_READER = msgspec.json.Decoder(Status)


def load_status(path: Path, folder: int | None = None, *, may_write: bool = False) -> Status:
    """Read a status file without trusting it.

    Args:
        path: The file.
        folder: The descriptor of its folder, if that is open already.
        may_write: As :func:`with_disk` takes it.

    Raises:
        CaptureError: The file does not exist or is not a status file.
    """
    try:
        status = load_record(_READER, path, folder, MAX_BYTES, "a status file")
        check_values(status)
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path} is not a status file: {reason(error)}") from None
    return with_disk(status, path.parent, time.time(), may_write=may_write)


def with_disk(status: Status, folder: Path, now_s: float, *, may_write: bool = False) -> Status:
    """Return the status of a silent process with why the disk takes no write now.

    Args:
        status: The status.
        folder: The folder of its file.
        now_s: Seconds since the epoch.
        may_write: Whether a write may be tried, if nothing else tells.
    """
    is_silent = status.state != "stopped" and not status.is_fresh(now_s)
    why = _why_disk_fails(status, folder, may_write=may_write) if is_silent else ""
    return status if why == status.unwritable else replace(status, unwritable=why)


def _why_disk_fails(status: Status, folder: Path, *, may_write: bool) -> str:
    """Return why a disk takes no write; a write is tried only if a process of this machine runs.

    A write to a disk that hangs would hang, too. So it is not tried while the process waits in one.
    If its main thread also waits for a disk, the training makes no progress.
    """
    why, state = why_unwritable(folder, MAX_BYTES), status.process_state()
    if why or not state:
        return why
    if state_of_thread(status.pid, JOURNAL_THREAD) == "D":
        return "" if state == psutil.STATUS_DISK_SLEEP else "the disk does not answer"
    return why_write_fails(folder) if may_write else ""


def load_record(
    reader: msgspec.json.Decoder[_Record], path: Path, folder: int | None, max_bytes: int, what: str
) -> _Record:
    """Read a file of a rank without trusting it; the caller checks its values.

    Args:
        reader: Decodes the content.
        path: The file.
        folder: The descriptor of its folder, if that is open already.
        max_bytes: The largest size in bytes.
        what: What the file should be, for the error message.

    Raises:
        CaptureError: The file is not JSON with the fields.
        OSError: It cannot be read.
    """
    if folder is None:
        content = read_inside(path, max_bytes, linked_folder=True)
    else:
        content = read_from(folder, path, max_bytes)
    try:
        return reader.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # msgspec's message may quote the file, which another user may have replaced.
        raise CaptureError(f"{path} is not {what}: it is not JSON with its fields") from None


class StatusFile:
    """Writes ``status/rank_<r>.json``, or another name if another live process writes that file.

    Args:
        layout: Where to write.
        warn: Called with a warning for the operator, once for each change.

    Attributes:
        path: The file that was written last; None if there is none.
    """

    def __init__(self, layout: Layout, warn: Callable[[str], None]) -> None:
        self._layout, self._warn = layout, warn
        self.path: Path | None = None
        self._trouble: str | None = None
        self._conflict = ""
        self._checked_former = False

    def write(self, status: Status) -> None:
        """Write the status; warn if that fails."""
        try:
            self._write(status)
            self._trouble = None
        except OSError as error:
            if error.strerror != self._trouble:  # its text has the name of a temporary file
                self._trouble = error.strerror
                self._warn(f"the status file cannot be written: {reason(error)}")

    def remove(self) -> None:
        """Remove the file if it is still this process's own."""
        path, self.path = self.path, None
        if path is None:
            return
        with contextlib.suppress(OSError, CaptureError):
            if load_status(path).pid == self._layout.pid:
                remove(path)

    def move(self, layout: Layout) -> None:
        """Write for another rank from now on."""
        self.remove()
        self._layout = layout

    def _write(self, status: Status) -> None:
        path = self._choose(status)
        if not self._checked_former:
            self._checked_former = True
            if lost := _lost_request(self._layout, status.heartbeat):
                self._warn(lost)
        if self.path == self._layout.duplicate_status != path:
            self.remove()
        if path.parent.parent.exists():  # do not create a removed directory again
            self._layout.make_dir(path.parent)
        write_atomic(path, json.dumps(dataclasses.asdict(status), indent=2) + "\n")
        self.path = path

    def _choose(self, status: Status) -> Path:
        """Return the path of the rank's file, or another one if a live process writes that."""
        conflict = _conflict(self._layout, status.heartbeat)
        if conflict != self._conflict:
            self._warn(conflict or f"no other process is {status.named} any more")
        self._conflict = conflict
        return self._layout.duplicate_status if conflict else self._layout.status


def remove_stale(layout: Layout, now_s: float) -> None:
    """Remove status files with other names that ended processes have left."""
    for path in layout.status.parent.glob("*rank_*.*_*.json"):
        with contextlib.suppress(OSError, CaptureError):
            if not load_status(path).is_live(now_s):
                remove(path)
                remove(path.with_suffix(HISTORY_SUFFIX))


def _lost_request(layout: Layout, now_s: float) -> str:
    """Return what the previous, killed process of this rank has lost; empty for nothing.

    A capture that it was saving has a manifest that says so.
    """
    with contextlib.suppress(CaptureError):
        former = load_status(layout.status)
        if former.state not in ("waiting", "warmup", "recording") or former.is_live(now_s):
            return ""
        what = "with a waiting request"
        if former.progress:
            done, asked = former.progress
            what = f"inside a window, last seen at {done:,} of {counted(asked, 'step')}"
        return (
            f"process {former.pid} on {former.host}, which was {former.named} here before, was "
            f"killed {what}; nothing of that is left, save the config again"
        )
    return ""


def _conflict(layout: Layout, now_s: float) -> str:
    """Return a warning if another live process writes the rank's status file; else empty."""
    try:
        other = load_status(layout.status)
    except CaptureError:
        return ""
    if (other.host, other.pid) == (layout.host, layout.pid) or not other.is_live(now_s):
        return ""
    return (
        f"process {other.pid} on {other.host} is {other.named} in this directory too: two "
        "jobs share it, or their ranks are unknown; see init(rank=...)"
    )
