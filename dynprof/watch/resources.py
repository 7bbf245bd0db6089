"""What the process used: CPUs, faults, disks, garbage collections, the clocks of GPUs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import resource
import time
import warnings
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pynvml: Any = None
"""NVIDIA's library for its devices, of the package nvidia-ml-py; None if it is not installed."""
with contextlib.suppress(ImportError), warnings.catch_warnings():  # now, as no thread may import
    warnings.simplefilter("ignore")  # an older package of the same name is deprecated
    import pynvml  # type: ignore[import-not-found, no-redef]

SHORTEST_NS = 50_000
"""Shortest collection that is kept, in ns: shorter ones are many, and make no step slow."""
MAX_COLLECTIONS = 4096
"""Collections kept; with the shortest ones they cover at least 0.2 s of collecting."""
_LIMITS = {
    0x4: "its power limit",
    0x8: "its hardware",
    0x20: "its temperature",
    0x40: "its temperature (hardware)",
    0x80: "the power supply",
}
"""The bits of NVML's reasons for lower clocks."""
_READ_BYTES = 4096
_SCHEDSTAT_BYTES = 80
_pread = ctypes.PyDLL(None).pread  # a PyDLL holds the GIL
_pread.argtypes = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long
_pread.restype = ctypes.c_ssize_t


class Usage(NamedTuple):
    """What was used so far; reading it is cheap and holds the GIL.

    Attributes:
        thread_ns: CPU time of the training thread.
        process_ns: CPU time of all threads.
        major_faults: Page faults that had to wait for a disk.
        minor_faults: Other page faults.
        queued_ns: How long the training thread could run and got no CPU.
    """

    thread_ns: int
    process_ns: int
    major_faults: int
    minor_faults: int
    queued_ns: int


def usage(clock: int | None, run_queue: RunQueue) -> Usage:
    """Return what was used so far.

    Args:
        clock: The CPU clock of the training thread, of :func:`clock_of`.
        run_queue: The same of its waits for a CPU.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    faults = used.ru_majflt, used.ru_minflt
    return Usage(thread_ns(clock), time.process_time_ns(), *faults, run_queue.waited_ns())


def thread_ns(clock: int | None) -> int:
    """Return the CPU time of the thread with this clock, in ns; 0 if it has ended."""
    if clock is not None:
        with contextlib.suppress(OSError):
            return time.clock_gettime_ns(clock)
    return 0


class RunQueue:
    """Reads how long a thread of this process could run and got no CPU.

    ``os.pread`` would give the GIL away for each reading.

    Args:
        native_id: The thread; 0 if unknown.
    """

    def __init__(self, native_id: int) -> None:
        self._text = ctypes.create_string_buffer(_SCHEDSTAT_BYTES)
        self._file = -1
        with contextlib.suppress(OSError):
            path = f"/proc/self/task/{native_id}/schedstat"
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def waited_ns(self) -> int:
        """Return the time in ns; 0 if the thread has ended or the system does not tell."""
        size = _pread(self._file, self._text, _SCHEDSTAT_BYTES, 0)
        return int(self._text.raw[:size].split()[1]) if size > 0 else 0

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Counters:
    """Reads the system's counters that need a system call each.

    Every call gives the GIL away, so they are read once a second, and around slow steps.
    """

    def __init__(self) -> None:
        sources: dict[str, Callable[[str], dict[str, float]]] = {
            "/proc/self/io": _disk,
            **{f"/proc/pressure/{name}": _pressure(name) for name in ("cpu", "io", "memory")},
            **dict.fromkeys(_cgroup_files(), _throttled),
        }
        self._open: list[tuple[int, Callable[[str], dict[str, float]]]] = []
        for path, parse in sources.items():
            with contextlib.suppress(OSError):
                self._open.append((os.open(path, os.O_RDONLY | os.O_CLOEXEC), parse))

    def read(self) -> dict[str, float]:
        """Return all counters by name; those that this system does not have are missing."""
        found: dict[str, float] = {}
        for descriptor, parse in self._open:
            with contextlib.suppress(OSError, ValueError, IndexError):
                found |= parse(os.pread(descriptor, _READ_BYTES, 0).decode())
        return found

    def close(self) -> None:
        """Close the files."""
        while self._open:
            os.close(self._open.pop()[0])


def _disk(text: str) -> dict[str, float]:
    values = dict(re.findall(r"(\w+): (\d+)", text))
    read, written = int(values["read_bytes"]), int(values["write_bytes"])
    return {"read_mb": read / 1e6, "written_mb": written / 1e6}


def _pressure(name: str) -> Callable[[str], dict[str, float]]:
    """Return a parser of the time that tasks of the machine waited for a resource, in ms."""
    return lambda text: {f"pressure_{name}_ms": int(re.findall(r"total=(\d+)", text)[0]) / 1e3}


def _throttled(text: str) -> dict[str, float]:
    values = dict(re.findall(r"(\w+) (\d+)", text))
    if "throttled_usec" in values:
        return {"throttled_ms": int(values["throttled_usec"]) / 1e3}
    return {"throttled_ms": int(values["throttled_time"]) / 1e6}


def _cgroup_files() -> Iterator[str]:
    """Yield the file with the throttling of this process's group, of either version."""
    with contextlib.suppress(OSError):
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8")
        for number, names, path in re.findall(r"^(\d+):([^:]*):(.*)$", groups, re.MULTILINE):
            if number == "0" or "cpu" in names.split(","):
                root = Path("/sys/fs/cgroup", "" if number == "0" else names)
                for folder in (root / path.lstrip("/"), root):  # a container sees its group as root
                    if (folder / "cpu.stat").exists():
                        yield str(folder / "cpu.stat")
                        return


def gpu_readers() -> list[Callable[[], dict[str, Any]]]:
    """Return a reader for each GPU that CUDA sees; none without nvidia-ml-py and its library."""
    if pynvml is None:
        return []
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    try:
        pynvml.nvmlInit()
        numbers = list(range(pynvml.nvmlDeviceGetCount()))
        if re.fullmatch(r"\d+(,\d+)*", shown):
            numbers = [number for number in map(int, shown.split(",")) if number in numbers]
        return [_gpu_reader(number) for number in numbers]
    except pynvml.NVMLError:
        return []


def _gpu_reader(number: int) -> Callable[[], dict[str, Any]]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)

    def read() -> dict[str, Any]:
        found: dict[str, Any] = {"gpu": number}
        with contextlib.suppress(pynvml.NVMLError):
            found["sm_mhz"] = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
            found["most_mhz"] = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
            found["busy_percent"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
            reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            found["limited_by"] = [name for bit, name in _LIMITS.items() if reasons & bit]
        return found

    return read


class Collection(NamedTuple):
    """A garbage collection.

    Attributes:
        began_ns: Its start, by the monotonic clock.
        ended_ns: Its end.
        generation: The oldest generation that it collected.
    """

    began_ns: int
    ended_ns: int
    generation: int


class CollectionLog:
    """Notes the newest garbage collections."""

    def __init__(self) -> None:
        self.found: deque[Collection] = deque(maxlen=MAX_COLLECTIONS)
        self._began_ns = 0

    def start(self) -> None:
        """Register a callback for collections."""
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Remove the callback; takes no lock, as in a forked child."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        now_ns = time.perf_counter_ns()
        if phase == "start":
            self._began_ns = now_ns
        elif self._began_ns and now_ns - self._began_ns >= SHORTEST_NS:
            self.found.append(Collection(self._began_ns, now_ns, info["generation"]))
