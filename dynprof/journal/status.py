"""Where one process stands, as operators and their scripts see it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import psutil

from dynprof.errors import CaptureError, reason
from dynprof.journal.edit_outcomes import Answer  # noqa: TC001 - read at run time, to check what is loaded
from dynprof.requests.capabilities import Capabilities  # noqa: TC001
from dynprof.runtime.layout import host_name, pid_namespace, rank_in_words
from dynprof.runtime.record_values import check_values
from dynprof.runtime.safe_open import read_from, read_inside

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


HEARTBEAT_S = 5.0
"""A live process writes its status at least this often."""
MAX_STEP_S = 1800.0
"""A step that takes longer is stuck, though it be the first, or another was as long once."""
MAX_BYTES = 1 << 20
"""Of a status file; its problems and its last edits are all that varies."""


NOBODY_YET = "nobody yet"
"""How ``steps_from`` begins where no step has ended for long."""
LEADS = "leads"
"""The ``agreement`` of a rank that proposes to the others what is saved where it watches."""


@dataclass(frozen=True)
class WindowStatus:
    """One request on all ranks, as the one that leads has last heard of it.

    Attributes:
        request: Its number; 0 for none.
        asked: How many were asked to record.
        saved: How many have saved it.
        unsaved: How many it ended on otherwise, by how, as ``disarmed``, and are not stragglers.
        pending: How many are on their way to that; None before they have agreed.
        stragglers: What is to be said of some of the ranks that hold the others up, or are missing.
        problems: Why none opens; empty where they do, or have not agreed yet.
        remarks: What was noticed as they agreed, and whose capture has not all the steps.
        record: The record of the window, relative to the config's directory; empty for none.
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


@dataclass(frozen=True)
class JobStatus(WindowStatus):
    """All ranks of a job, and the newest request that was proposed to them.

    Attributes:
        ranks: How many there are.
        states: How many are in each state; ``missing`` are those that do not answer.
        heard_at: When, in seconds since the epoch.
        earlier: Requests before that one.
    """

    ranks: int = 0
    states: dict[str, int] = field(default_factory=dict)
    heard_at: float = 0.0
    earlier: tuple[WindowStatus, ...] = ()

    def of(self, request: int) -> WindowStatus | None:
        """Return what is known of a request; None where it is not, or not any more."""
        return next((one for one in self.requests if one.request == request), None)

    @property
    def requests(self) -> tuple[WindowStatus, ...]:
        """All that are known, the newest first."""
        return (self, *self.earlier)


@dataclass(frozen=True)
class Status:
    """Where a process stands: what ``dp.status()`` returns and ``status/rank_<r>.json`` holds.

    Attributes:
        state: ``disabled``, ``idle``, ``waiting``, ``warmup``, ``recording``, ``saving``,
            ``sending`` or ``stopped``.
        step: The number of the step that is running.
        steps_from: Who ends the steps: ``dp.step()``, an optimizer, a function, a period.
        rank: Rank of the process.
        world_size: Number of ranks.
        host: Name of the machine.
        pid: Id of the process.
        pid_namespace: Where that id counts; empty where the system does not say.
        role: What its ranks do in a job of several roles; empty in any other.
        agreement: ``leads`` where it proposes to the other ranks what is saved here, ``follows``
            and whom where another does; empty where each serves what it reads.
        job: All ranks, where it leads them; None elsewhere.
        request: Number of the request being served or waiting; 0 for none.
        progress: Steps done and steps asked for of the open window, warm-up included.
        warmup: How many of those are warm-up.
        watching: How the config is watched, and why so.
        profilers: What each backend can do in this process.
        prof_dirs: Where captures may go besides the config's directory.
        follow_symlinks: Whether it reads the config through symbolic links.
        edits: The newest edits, the oldest first, and what became of each.
        problems: What was wrong with the last edit, each a sentence.
        remarks: What of the last edit has no effect or was downgraded, and in which slower or
            lesser ways its window is recorded.
        last_capture: Manifest of the last capture, relative to the config's directory.
        ending: Why it ends, and for what it waits; empty while it takes requests.
        last_error: The last failure of dynprof itself, one line.
        stands_in: Where the main thread is, while a step takes longer than half a minute.
        step_ms: Mean step time of late, in milliseconds; None while unknown.
        recent_steps: The step counter over the last 15 s: pairs of seconds since the epoch and
            step, about one a second, the oldest first.
        still_s: For how many seconds the step counter has stood still, at the time of writing.
        longest_s: How long a step took at most so far, as the counter was seen to stand still; None
            before the first has ended.
        heartbeat: Time of writing, seconds since the epoch.
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
    edits: tuple[Answer, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    last_capture: str | None = None
    ending: str = ""
    last_error: str | None = None
    stands_in: str = ""
    step_ms: float | None = None
    recent_steps: tuple[tuple[float, int], ...] = ()
    still_s: float = 0.0
    longest_s: float | None = 0.0
    heartbeat: float = 0.0

    @property
    def named(self) -> str:
        """Rank and role, in words."""
        return rank_in_words(self.role, self.rank)

    @property
    def process(self) -> tuple[int, str, int]:
        """What tells the process from every other: rank, host and pid."""
        return self.rank, self.host, self.pid

    def is_live(self, now_s: float) -> bool:
        """Return whether the process is there and has not ended, as far as can be told from here.

        One on this machine is looked for; another must have written its status of late.

        Args:
            now_s: Seconds since the epoch.
        """
        if self.state == "stopped":
            return False
        there = self._is_there()
        return self._is_fresh(now_s) if there is None else there

    def writes(self, now_s: float) -> bool:
        """Return whether the process has not ended and has written its status of late."""
        return self._is_fresh(now_s) and self.is_live(now_s)

    def health(self, now_s: float) -> str:
        """Return ``stopped``, ``dead``, ``stuck``, ``ending``, ``starting`` or ``alive``.

        Dead is a process that is gone, or not heard of for three heartbeats from another machine.
        Stuck is one that stands in a step for longer than steps may take here: half a minute,
        twenty usual ones, and half as long again as the longest (of which a compilation or an
        evaluation was one), where that makes no more than half an hour; or that is there but does
        not even write: it was stopped, or a call keeps Python's lock. Ending is one that takes no
        more requests, and waits for what is being saved and sent. Starting is one that stands
        in its first step, where nobody knows how long that takes, for half an hour.

        Args:
            now_s: Seconds since the epoch.
        """
        if self.state == "stopped":
            return "stopped"
        if not self.is_live(now_s):
            return "dead"
        if not self._is_fresh(now_s):
            return "stuck"
        if self.ending:
            return "ending"
        if self.still_s > step_limit_s(self.longest_s, self.step_ms):
            return "stuck"
        return "starting" if self.longest_s is None else "alive"

    def step_at(self, moment_s: float) -> int:
        """Return the step that was running at a moment, as exactly as once a second tells.

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
        """Whether it stopped, as ``shutdown()`` or ``dynprof detach`` asks, but not its process."""
        return self.state == "stopped" and self._is_there() is True

    def stuck_s(self, now_s: float) -> float:
        """Return for how long its step counter has stood still, as far as is known."""
        return self.still_s + max(0.0, now_s - self.heartbeat)

    def _is_fresh(self, now_s: float) -> bool:
        return now_s - self.heartbeat < 3 * HEARTBEAT_S

    def _is_there(self) -> bool | None:
        """Look for the process; None where it is not to be seen from here."""
        if self.host != host_name() or self.pid_namespace != pid_namespace():
            return None
        try:
            process = psutil.Process(self.pid)
            if process.create_time() > self.heartbeat + HEARTBEAT_S:
                return False  # another one, under the same number
            return bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False if psutil.pid_exists(1) else None  # /proc may hide what is not ours
        except (psutil.Error, ValueError, OverflowError):
            return None


def step_limit_s(longest_s: float | None, step_ms: float | None) -> float:
    """Return for how long a step may take, by the longest so far and the usual one."""
    if longest_s is None:
        return MAX_STEP_S
    return max(30.0, 0.02 * (step_ms or 0.0), min(1.5 * longest_s, MAX_STEP_S))


def stage_progress(status: Status) -> tuple[int, int]:
    """Return the steps done and asked for of the warm-up, or of what is recorded after it."""
    done, asked = status.progress or (0, 0)
    if status.state == "warmup":
        return done, status.warmup
    return done - status.warmup, asked - status.warmup


def common_moment(found: Iterable[Status], now_s: float) -> float | None:
    """Return the newest moment at which the step of each process is known that writes its status.

    A rank writes its status every five seconds, another rank at other moments: the newest steps of
    the two cannot be compared. Both look at their steps at each whole second, as this is one.

    Args:
        found: The status of the processes.
        now_s: Seconds since the epoch.

    Returns:
        Seconds since the epoch; None where no process writes.
    """
    told = [one.heartbeat for one in found if one.writes(now_s)]
    return float(math.floor(min(told))) if told else None


_READER = msgspec.json.Decoder(Status)


def load_status(path: Path, folder: int | None = None) -> Status:
    """Read a status file, trusting nothing that lies in its place.

    Args:
        path: The file.
        folder: The descriptor of its folder, where it is open already.

    Raises:
        CaptureError: The file is not there or not a status.
    """
    try:
        if folder is None:
            content = read_inside(path, MAX_BYTES, linked_folder=True)
        else:
            content = read_from(folder, path, MAX_BYTES)
        status = _READER.decode(content)
        check_values(status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # What msgspec says may quote the file, where another user may have put any other one.
        raise CaptureError(f"{path} is not a status file: it is not JSON with its fields") from None
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path} is not a status file: {reason(error)}") from None
    return status
