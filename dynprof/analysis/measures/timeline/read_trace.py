"""One trace with its manifest, and what the two say about its origin."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dynprof.analysis.measures.timeline.categories import communication
from dynprof.analysis.measures.timeline.launches import launches
from dynprof.analysis.measures.timeline.operators import STEP, is_step
from dynprof.analysis.measures.timeline.steps import HOST_NAME
from dynprof.analysis.reading.events import KERNELS, LABELS, LAUNCHES, OPERATORS
from dynprof.analysis.reading.trace import load_trace
from dynprof.errors import CaptureError
from dynprof.runtime.layout import INFO_DIR, ROLE, is_vendors_view, rank_in_name, rank_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.trace import Partner, Trace
    from dynprof.captures.manifest import Manifest

Made = TypeVar("Made")
_RANK = re.compile(rf"\.(?:({ROLE})_)?rank(\d+)\.")
"""Finds role and rank in the trace names that dynprof gives."""

_STEP_LABEL = "user_annotation"
"""The category of labels of steps. In torch 1.8 they have that of operators."""
_VENDORS_INFO = re.compile(r"profiler_info_(\d{1,9})\.json")
_MERGED_RANK = re.compile(r"\[((?:TP|DP|PP|EP|CP|rank)\W?\d+[^\]]*)\] ", re.IGNORECASE)
"""Matches the rank that SGLang puts before a process when it merges ranks."""
_TO_SPLIT = (
    "{path} merges several ranks: {ranks}. Give the traces that it was made of, one for each rank. "
    "To take {one} out of it:\njq 'del(.distributedInfo) | .traceEvents |= "
    """map(select(.pid | tostring | startswith("[{one}]")))' {quoted} > rank-0.json"""
)


class ReadTrace:
    """A trace, and the rank and machine that recorded it.

    Args:
        path: Path of the trace. Its manifest is searched for next to it.
        partner: Connection to a process that reads the same trace at the same time.

    Attributes:
        path: Path of the trace.
        trace: Its events.
        manifest: Its manifest; None if dynprof did not record it.

    Raises:
        CaptureError: The trace cannot be read.
    """

    def __init__(self, path: Path, partner: Partner | None = None) -> None:
        self.path, self._partner = path, partner
        if why := _why_not_utf8(path):
            raise CaptureError(f"{str(path)!a} {why}")
        self.trace = load_trace(path, partner)
        of_steps = self.trace.category(OPERATORS) & self.trace.named(is_step)
        self.trace.set_category(of_steps, _STEP_LABEL)
        self.trace.communication = communication(self.trace, self.launches)
        if self._is_merged:
            raise CaptureError(f"{path} merges several ranks; open it with dynprof view")
        _refuse_merged(path, self.trace)
        self.manifest: Manifest | None = find_manifest(path)[1]

    @cached_property
    def launches(self) -> Launches:
        """Device activities and the calls of the host that launched them."""
        return launches(self.trace)

    def compute_once(self, make: Callable[[], Made]) -> Made:
        """Return the result of a slow function. If two processes share a trace, one computes it.

        Raises:
            CaptureError: The process that computes it has ended.
        """
        return self._partner.share(make) if self._partner else make()

    @property
    def _is_merged(self) -> bool:
        """Whether ``dynprof merge`` made it: its devices and steps come from many processes."""
        member = self.trace.members.get("dynprof")
        ranks = member.get("ranks") if isinstance(member, dict) else None
        return isinstance(ranks, list) and any(_int64(rank) is not None for rank in ranks)

    @cached_property
    def base_ns(self) -> int:
        """Offset from its times to ns since the epoch; 0 if a sum would not fit into 64 bits."""
        found = _int64(self.trace.members.get("baseTimeNanoseconds")) or 0
        spans, memory = self.trace.spans, self.trace.memory
        times = (spans["start"], spans["start"] + spans["length"], memory["time"])
        most = max(int(np.abs(column).max(initial=0)) for column in times)
        return found if abs(found) + most < 1 << 63 else 0

    @property
    def rank(self) -> int:
        """The rank: :attr:`recorded_rank`, else the one in the file's name, else 0."""
        recorded = self.recorded_rank
        return (rank_in_name(self.path.name) or 0) if recorded is None else recorded

    @property
    def recorded_rank(self) -> int | None:
        """The rank from the trace, else from its manifest; None if neither tells.

        torch_npu has it in the name of a file next to its folder of tables.
        """
        if (rank := self._distributed("rank")) is not None:
            return rank
        if self.manifest:
            return self.manifest.rank
        above = self.path.parent.parent
        files = above.glob("profiler_info_*.json") if is_vendors_view(self.path) else ()
        found = [_VENDORS_INFO.fullmatch(file.name) for file in files]
        return next((int(one[1]) for one in found if one), None)

    @property
    def rank_suffix(self) -> str:
        """Suffix for the rank in names of the vendor's files; empty if the job is one process."""
        if self.manifest:
            return self.manifest.rank_suffix
        return f"_{self.rank}" if self.world_size > 1 else ""

    @property
    def world_size(self) -> int:
        """The number of ranks; 0 if unknown."""
        size = self._distributed("world_size")
        return size or (self.manifest.world_size if self.manifest else 0)

    def _distributed(self, name: str) -> int | None:
        member = self.trace.members.get("distributedInfo")
        return _int64(member.get(name)) if isinstance(member, dict) else None

    @property
    def host(self) -> str:
        """The name of the machine that recorded it; empty if unknown."""
        named = self.manifest.host if self.manifest else self.trace.members.get("host_name", "")
        return str(named)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that the user attached to it."""
        if self.manifest:
            found = self.manifest.request.config.get("metadata", {})
        else:
            found = self.trace.members.get("metadata", {})
        return found if isinstance(found, dict) else {}

    @property
    def first_device(self) -> int | str:
        """The number of the first device that worked; ``host`` if none did."""
        devices = self.trace.spans["device"][self.trace.category(KERNELS)]
        return int(devices[0]) if len(devices) else HOST_NAME

    @property
    def device_memory(self) -> dict[int, int]:
        """Bytes of memory of each device, by its number."""
        rows = self.trace.members.get("deviceProperties")
        devices = [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []
        found = [(_int64(one.get("id")), _int64(one.get("totalGlobalMem"))) for one in devices]
        return {number: size for number, size in found if number is not None and size}

    @property
    def device_name(self) -> str:
        """The name of the device that worked; empty if unknown.

        If only one kind of device is described, it is of that kind: the numbers of visible devices
        may differ from those of all devices.
        """
        rows = self.trace.members.get("deviceProperties")
        devices = [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []
        names = {_int64(one.get("id")): str(one.get("name") or "") for one in devices}
        if self.first_device == HOST_NAME:
            return ""
        if self.first_device in names:
            return names[int(self.first_device)]
        kinds = set(names.values())
        return kinds.pop() if len(kinds) == 1 else ""


def _refuse_merged(path: Path, trace: Trace) -> None:
    """Refuse a trace that another tool made of the traces of several ranks.

    Raises:
        CaptureError: It names several ranks, several processes mark the same step, or one marks
            it twice at a time.
    """
    pids = dict.fromkeys(str(pid) for pid, _ in trace.tables["thread"])
    ranks = sorted({found[1] for pid in pids if (found := _MERGED_RANK.match(pid))})
    if len(ranks) > 1:
        named = {"path": path, "ranks": ", ".join(ranks), "one": ranks[0]}
        raise CaptureError(_TO_SPLIT.format(**named, quoted=shlex.quote(str(path))))
    marks = np.flatnonzero(trace.named(lambda name: name.startswith(STEP)) & trace.category(LABELS))
    pairs = zip(
        *(trace.spans[column][marks].tolist() for column in ("name", "thread")), strict=True
    )
    by_step: dict[int, set[str]] = {}
    for name, thread in set(pairs):
        by_step.setdefault(name, set()).add(str(trace.tables["thread"][thread][0]))
    most = max(by_step.values(), key=len, default=set())
    if len(most) > 1:
        raise CaptureError(
            f"{path} has the same step of several processes: {', '.join(sorted(most))}. Give the "
            "traces that it was made of, one for each rank"
        )
    if _runs_twice(trace, marks):
        raise CaptureError(
            f"{path} has the same steps and calls twice at a time: it merges several ranks. Give "
            "the traces that it was made of, one for each rank"
        )


def _runs_twice(trace: Trace, marks: NDArray[np.int64]) -> bool:
    """Return whether a thread marks a step again during the same step, with its calls' numbers.

    The processes of ranks may have the same number, as in containers.

    Args:
        trace: The trace.
        marks: The marks of its steps, in order of start.
    """
    start, spans = trace.spans["start"], trace.spans
    end, last = start + spans["length"], dict[tuple[int, int], int]()
    again = False
    for place in marks.tolist():
        which = int(spans["name"][place]), int(spans["thread"][place])
        before = last.setdefault(which, place)
        again = again or start[before] < start[place] < end[before]
    if not again:
        return False
    kind, column = (LAUNCHES, "correlation")
    if not trace.category(LAUNCHES).any():
        kind, column = (OPERATORS, "external_id")
    calls = np.flatnonzero(trace.category(kind) & (spans[column] > 0))
    keys = np.stack([spans[name][calls] for name in (column, "name", "thread")])
    return len(np.unique(keys, axis=1).T) < len(calls)


def _why_not_utf8(path: Path) -> str:
    """Return why a name cannot be written as UTF-8; a file system may hold any bytes."""
    if not any("\ud800" <= letter <= "\udfff" for letter in str(path)):
        return ""
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        return "is not UTF-8; rename it"
    return f"is UTF-8, but Python reads names as {sys.getfilesystemencoding()}; set PYTHONUTF8=1"


def _int64(value: object) -> int | None:
    """Return a value that is an integer of 64 bits; None for any other value in a file."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return value
    return None


def find_manifest(path: Path) -> tuple[Path, Manifest] | tuple[None, None]:
    """Return the path and the manifest of a trace.

    The manifest of the rank in the trace's name is tried first.
    """
    folder = path.parent / INFO_DIR
    rank = _RANK.search(path.name)
    likely = [folder / f"{rank_name(rank[1] or '', int(rank[2]))}.info.json"] if rank else []
    for candidate in chain(likely, sorted(folder.glob("*.info.json")) if folder.is_dir() else ()):
        from dynprof.captures.manifest import load_manifest  # its import takes as long as numpy's

        with contextlib.suppress(CaptureError):
            manifest = load_manifest(candidate)
            if manifest.trace == path.name:
                return candidate, manifest
    return None, None
