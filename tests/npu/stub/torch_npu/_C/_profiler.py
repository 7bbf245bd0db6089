"""A stub that writes every call of the native profiler to ``NPU_CALLS``, as lines of JSON."""

import enum
import json
import os
import struct
import threading
import time
from pathlib import Path


class ProfilerActivity(enum.Enum):
    """The activities of the profiler."""

    CPU = 0
    NPU = 1


class _Noted:
    """A native object that keeps its arguments."""

    def __init__(self, *args, **settings):
        self.made_of = [*args, settings] if args else settings


class _ExperimentalConfig(_Noted):
    """Settings as the driver gets them."""


class NpuProfilerConfig(_Noted):
    """Path, switches and experimental settings as the driver gets them."""


def note(name, *args):
    """Append a call to the file of calls."""

    def plain(value):
        if isinstance(value, _Noted):
            return value.made_of
        if isinstance(value, (set, frozenset)):
            return sorted(map(plain, value))
        return getattr(value, "name", str(value))

    with Path(os.environ["NPU_CALLS"]).open("a") as file:
        file.write(json.dumps([name, *args], default=plain) + "\n")


_place = [""]


def _init_profiler(path, activities):
    _place[0] = path
    if os.environ.get("NPU_FAILS") == "init":
        raise RuntimeError("the driver is busy")
    note("init", path, activities)


def _warmup_profiler(config, activities):
    note("warmup", config, activities)


def _start_profiler(config, activities):
    note("start", config, activities)


def _stop_profiler():
    note("stop")


def _record(kind, value):
    """Return a value in the driver's format: kind, length, bytes."""
    return struct.pack("<HI", kind, len(value)) + value


def _write_operator():
    """Write an operator of 5 us with its call stack, as the driver does for the host."""
    now, me = time.monotonic_ns(), threading.get_native_id()
    facts = struct.pack("<3q4QB?", now, now + 5000, 1, os.getpid(), me, me, 0, 0, False)
    name = _record(2, b"aten::addmm") + _record(3, b"aten::addmm")  # 3 up to version 2.1
    fields = name + _record(8, b"train.py(7): step;train.py(9): main")
    folder = Path(_place[0], "FRAMEWORK")
    folder.mkdir(exist_ok=True)
    (folder / "torch.op_range").write_bytes(_record(1, facts + fields))


def _finalize_profiler():
    note("finalize")
    if os.environ.get("NPU_FAILS") != "data":
        _write_operator()
    if os.environ.get("NPU_FAILS") == "finalize":
        raise RuntimeError("the driver is gone")


def _supported_npu_activities():
    return {ProfilerActivity.CPU, ProfilerActivity.NPU}


def _get_syscnt_enable():
    return False


def _get_freq():
    return 100


def _get_syscnt():
    return 0


def _get_monotonic():
    return time.monotonic_ns()


def _get_host_uid():
    return 0


def _enable_profiler_in_child_thread(config):
    note("enable in child", config)


def _disable_profiler_in_child_thread():
    note("disable in child")
