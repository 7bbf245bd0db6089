"""Tracks of the host in a window: CPU, memory, disk, network, garbage collections."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from typing import TYPE_CHECKING

import psutil

from dynprof.backends.collectors.base import Collector, named_track
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dynprof.backends.collectors.base import Event, Events

INTERVAL_S = 0.1
"""Seconds between two samples; a sample takes about 0.2 ms of a CPU."""

_MAX_RATE = {"CPU": 100.0}
"""Highest rate shown: the system counts in ticks, so a share can seem to exceed 100 percent."""
_PER_SECOND = {"CPU": (psutil.cpu_count() or 1) / 100, "DISK": 1e6, "NETWORK": 1e6}
"""Gauges that count up, and the count per second that is one unit of the track."""

Gauge = dict[str, float]
TRACK = 0x6763_0000
"""Thread id of the track, above all thread ids of Linux."""


class HostSampler(Collector):
    """Samples the host on its own thread.

    Args:
        parts: Parts to sample, by their names in ``host_sys``; ``osrt`` and ``numa`` are left out.
    """

    def __init__(self, parts: Iterable[str]) -> None:
        asked = dict.fromkeys(part.upper() for part in parts)
        self._gauges = {part: _GAUGES[part] for part in asked if part in _GAUGES}
        self._unsupported = tuple(
            f"host_sys {part} is not sampled: dynprof samples {', '.join(_GAUGES)}"
            for part in asked
            if part not in _GAUGES
        )
        self._lost: set[str] = set()
        self._found: list[Event] = []
        self._totals: dict[str, tuple[int, Gauge]] = {}
        self._ended = threading.Event()
        self._thread = own_thread(self._run, "dynprof-host")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end; does not wait for it."""
        self._ended.set()

    def events(self) -> Events:
        """Return the samples; the last one is from the end of the window."""
        if self._thread.ident is not None:
            self._thread.join(timeout=5)
        found, self._found = self._found, []
        return found

    def save(self, stem: Path) -> tuple[str, ...]:  # noqa: ARG002
        """Return what could not be sampled."""
        return (*self._unsupported, *sorted(self._lost))

    def _run(self) -> None:
        self._sample(time.time_ns())  # the base of the first rates
        self._found = [event for event in self._found if event["name"] == "host mem"]
        while not self._ended.wait(INTERVAL_S):
            self._sample(time.time_ns())
        self._sample(time.time_ns())

    def _sample(self, now_ns: int) -> None:
        for part, gauge in self._gauges.items():
            try:
                reading = gauge()
            except (OSError, RuntimeError, psutil.Error) as error:
                self._lost.add(f"host_sys {part} cannot be sampled here: {error}")
                continue
            if part in _PER_SECOND:
                since_ns, reading = self._rates(part, now_ns, reading)
            else:
                since_ns = now_ns
            self._found.append(_counter(f"host {part.lower()}", since_ns, reading))

    def _rates(self, part: str, now_ns: int, totals: Gauge) -> tuple[int, Gauge]:
        """Return the time of the last sample, and the growth per second since then.

        Viewers draw a value forwards, so the rate has the time at which its interval begins.
        """
        since_ns, before = self._totals.get(part, (now_ns, totals))
        self._totals[part] = now_ns, totals
        per_unit = max(now_ns - since_ns, 1) / 1e9 * _PER_SECOND[part]
        grown = {name: (total - before[name]) / per_unit for name, total in totals.items()}
        most = _MAX_RATE.get(part, float("inf"))
        return since_ns, {name: min(rate, most) for name, rate in grown.items()}


def _counter(name: str, now_ns: int, reading: Gauge) -> Event:
    values = {key: round(value, 3) for key, value in reading.items()}
    return {
        "ph": "C",
        "cat": "host",
        "name": name,
        "pid": os.getpid(),
        "tid": 0,
        "ts": now_ns,
        "args": {**values},
    }


def _cpu() -> Gauge:
    times = psutil.cpu_times()  # cpu_percent() keeps state that the script's own calls share
    busy_s = sum(times) - times.idle - getattr(times, "iowait", 0.0)
    return {"busy percent": busy_s}


def _memory() -> Gauge:
    resident = psutil.Process().memory_info().rss
    return {"used MB": psutil.virtual_memory().used / 1e6, "this process MB": resident / 1e6}


def _disk() -> Gauge:
    counters = psutil.disk_io_counters()
    if counters is None:
        raise OSError("the system counts nothing")
    return {"read MB/s": counters.read_bytes, "written MB/s": counters.write_bytes}


def _network() -> Gauge:
    counters = psutil.net_io_counters()
    return {"received MB/s": counters.bytes_recv, "sent MB/s": counters.bytes_sent}


_GAUGES: dict[str, Callable[[], Gauge]] = {
    "CPU": _cpu,
    "MEM": _memory,
    "DISK": _disk,
    "NETWORK": _network,
}


class CollectionTrack(Collector):
    """Records long garbage collections.

    Args:
        threshold_ms: Shortest collection to keep, in ms; 0 keeps all.
    """

    def __init__(self, threshold_ms: float) -> None:
        self._threshold_ns = threshold_ms * 1e6
        self._began_ns = 0
        self._found: list[Event] = []

    def start(self) -> None:
        """Register a callback for collections."""
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Remove the callback."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._note)

    abandon = stop

    def events(self) -> Events:
        """Return the collections."""
        found, self._found = self._found, []
        return [named_track(TRACK, "garbage collections"), *found]

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.time_ns()
            return
        took_ns = time.time_ns() - self._began_ns
        if self._began_ns and took_ns >= self._threshold_ns:
            self._found.append(
                {
                    "ph": "X",
                    "cat": "gc",
                    "name": f"collection of generation {info['generation']}",
                    "pid": os.getpid(),
                    "tid": TRACK,
                    "ts": self._began_ns,
                    "dur": took_ns,
                    "args": {**info, "thread": threading.get_native_id()},
                }
            )
