"""One reading of all jobs at a time, which all browsers share."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from dynprof.fleet.page_data import Verdicts, in_full, in_short, named
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from dynprof.fleet.jobs import Fleet, Job
    from dynprof.fleet.page_data import Data

EVERY_S = 3.0
"""Seconds between two readings; ranks write their status every five."""
REST = 2.0
"""A reading that takes long is followed by a rest of that many times as long."""
IDLE_S = 60.0
"""Seconds after the last request from which on nothing is read, until the next one."""
AGAIN_S = 1.0
"""Seconds after which a request that waits for a reading asks for it again."""
FAST = 1
"""Level of compression: of 1,000 jobs, 10 ms; the network is this machine's, or fast."""
MAX_KEPT = 32
"""Pages of jobs that are kept in their final form, of the newest reading."""


@dataclass(frozen=True)
class Snapshot:
    """One reading of all jobs.

    Attributes:
        number: Its number, from 1.
        read_at: When it began, in seconds since the epoch.
        jobs: The jobs by their names.
        listed: The list of all jobs: JSON, compressed.
    """

    number: int = 0
    read_at: float = 0.0
    jobs: dict[str, Job] = field(default_factory=dict)
    listed: bytes = b""


def as_body(content: Data) -> bytes:
    """Return the compressed JSON of an answer."""
    text = json.dumps(content, separators=(",", ":"))  # a path may have bytes that are no text
    return gzip.compress(text.encode(), FAST)


class Snapshots:
    """Reads the jobs again and again on a thread of its own, while browsers ask.

    Args:
        fleet: The jobs.
        every_s: Seconds between two readings.

    Attributes:
        verdicts: The verdicts of captures.
    """

    def __init__(self, fleet: Fleet, every_s: float = EVERY_S) -> None:
        self.verdicts = Verdicts()
        self._fleet, self._every_s = fleet, every_s
        self._now = Snapshot()
        self._asked_s = time.monotonic()
        self._wanted, self._ready, self._ended = (threading.Event() for _ in range(3))
        self._kept: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start to read."""
        own_thread(self._read_on, "fleet").start()

    def end(self) -> None:
        """Read no more."""
        self._ended.set()
        self._wanted.set()
        self._ready.set()

    def newest(self) -> Snapshot:
        """Return the newest reading; wait for one if there is none, or only that of long ago."""
        self._asked_s = time.monotonic()
        self._wanted.set()
        while not self._ready.wait(AGAIN_S):  # a pause began between the two lines above
            self._wanted.set()
        return self._now

    def full(self, name: str) -> bytes | None:
        """Return all about a job: JSON, compressed; None if there is no such job."""
        now = self.newest()
        with self._lock:
            number, body = self._kept.get(name, (0, b""))
            if number != now.number:
                if (job := now.jobs.get(name)) is None:
                    return None
                head = {"number": now.number, "read_at": now.read_at}
                body = as_body({**head, **in_full(job, self.verdicts)})
                self._kept[name] = now.number, body
                self._kept.move_to_end(name)
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            return body

    def read(self) -> Snapshot:
        """Read all jobs once."""
        number, read_at = self._now.number + 1, time.time()
        jobs = sorted(self._fleet.read(), key=attrgetter("urgency"))
        rows = [in_short(job, self.verdicts) for job in jobs]
        self.verdicts.keep({one.folder for job in jobs for one in job.captures})
        listed = as_body({"number": number, "read_at": read_at, "jobs": rows})
        self._now = Snapshot(number, read_at, {named(job): job for job in jobs}, listed)
        self._ready.set()
        return self._now

    def _read_on(self) -> None:
        while not self._ended.is_set():
            began_s = time.monotonic()
            self.read()
            took_s = time.monotonic() - began_s
            self._ended.wait(max(self._every_s - took_s, REST * took_s))
            self._wanted.clear()  # before the time is looked at, so that no request is missed
            if time.monotonic() - self._asked_s > IDLE_S:
                self._ready.clear()
                self._wanted.wait()
