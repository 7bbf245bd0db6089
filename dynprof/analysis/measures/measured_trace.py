"""One trace, read, with its manifest and all that is measured of it, each once it is asked for."""

from __future__ import annotations

import contextlib
import re
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.measures.allocations import allocations
from dynprof.analysis.measures.breakdown import Breakdown
from dynprof.analysis.measures.call_tree import call_tree
from dynprof.analysis.measures.collectives import messages
from dynprof.analysis.measures.kernels import kinds
from dynprof.analysis.measures.launches import launches
from dynprof.analysis.measures.nesting import ROOT
from dynprof.analysis.measures.operators import STEPS, averages, calls, operators
from dynprof.analysis.measures.phases import phase_times
from dynprof.analysis.measures.steps import HOST_NAME, marked_steps, step_times
from dynprof.analysis.reading.categories import FRAMES, KERNELS, LABELS
from dynprof.analysis.reading.trace import load_trace
from dynprof.captures.manifest import load_manifest
from dynprof.errors import CaptureError
from dynprof.files.layout import INFO_DIR

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.analysis.measures.allocations import Allocation
    from dynprof.analysis.measures.call_tree import CallTree
    from dynprof.analysis.measures.collectives import Messages
    from dynprof.analysis.measures.kernels import Kind
    from dynprof.analysis.measures.launches import Launches
    from dynprof.analysis.measures.operators import Average, Calls, Operators
    from dynprof.analysis.measures.phases import Phases
    from dynprof.analysis.measures.steps import Marked, Step
    from dynprof.analysis.reading.two_processes import Partner
    from dynprof.captures.manifest import Manifest


_RANK = re.compile(r"\.rank(\d+)\.")
"""In the names of traces, as dynprof gives them."""


class MeasuredTrace:
    """A trace, and what is measured of it.

    Args:
        path: Where it lies; its manifest is looked for beside it.
        partner: Leads to a process that reads the same trace at the same time.

    Attributes:
        path: Where it lies.
        trace: Its events.
        manifest: Who recorded it, and what; None for a trace of anybody's.

    Raises:
        CaptureError: It cannot be read.
    """

    def __init__(self, path: Path, partner: Partner | None = None) -> None:
        self.path = path
        if not _is_text(str(path)):
            raise CaptureError(f"{str(path)!a} is not UTF-8: rename it")
        self.trace = load_trace(path, partner)
        self.manifest: Manifest | None = find_manifest(path)[1]

    @property
    def base_ns(self) -> int:
        """What is to be added to its times for ns since the epoch."""
        return _whole(self.trace.members.get("baseTimeNanoseconds")) or 0

    @property
    def rank(self) -> int:
        """The rank that recorded it: as the trace says, else its manifest, else 0."""
        rank = self._distributed("rank")
        if rank is not None:
            return rank
        return self.manifest.rank if self.manifest else 0

    @property
    def world_size(self) -> int:
        """How many ranks there are, as far as it is known; 0 where it is not."""
        size = self._distributed("world_size")
        return size or (self.manifest.world_size if self.manifest else 0)

    def _distributed(self, name: str) -> int | None:
        said = self.trace.members.get("distributedInfo")
        return _whole(said.get(name)) if isinstance(said, dict) else None

    @property
    def host(self) -> str:
        """The name of the machine that recorded it, as far as it is known."""
        named = self.manifest.host if self.manifest else self.trace.members.get("host_name", "")
        return str(named)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the user wrote about it."""
        if self.manifest:
            found = self.manifest.request.config.get("metadata", {})
        else:
            found = self.trace.members.get("metadata", {})
        return found if isinstance(found, dict) else {}

    @property
    def first_device(self) -> int | str:
        """The number of the device that worked; ``host`` where none did."""
        devices = self.trace.spans["device"][self.trace.category(KERNELS)]
        return int(devices[0]) if len(devices) else HOST_NAME

    @property
    def device_memory(self) -> dict[int, int]:
        """How many bytes of memory each device has, by its number."""
        said = self.trace.members.get("deviceProperties")
        devices = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
        found = [(_whole(one.get("id")), _whole(one.get("totalGlobalMem"))) for one in devices]
        return {number: size for number, size in found if number is not None and size}

    @cached_property
    def operators(self) -> Operators:
        """The operators of the host."""
        return operators(self.trace, self.launches)

    @cached_property
    def launches(self) -> Launches:
        """What devices did, and which calls of the host started it."""
        return launches(self.trace)

    @cached_property
    def messages(self) -> Messages:
        """What is known of its collectives."""
        return messages(self.trace, self.launches)

    @cached_property
    def averages(self) -> list[Average]:
        """The operators of each name together, the one with the most time of its own first."""
        return averages(self.trace, self.operators)

    @property
    def work(self) -> list[Average]:
        """The same without the steps, whose own time is what no operator covers."""
        return [average for average in self.averages if average.name != STEPS]

    @cached_property
    def kinds(self) -> list[Kind]:
        """The kernels of each name together, or the operators where no device worked."""
        return kinds(self.trace, self.operators)

    @cached_property
    def steps(self) -> list[Step]:
        """Where the time of each step goes."""
        return step_times(self.trace, self.marked, self.launches)

    @cached_property
    def marked(self) -> list[Marked]:
        """The steps as they are marked."""
        return marked_steps(self.trace)

    @cached_property
    def phases(self) -> list[Phases]:
        """How long each phase of each marked step took."""
        return phase_times(self.trace, self.marked)

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time of the mean step goes."""
        return Breakdown(self)

    @cached_property
    def calls(self) -> Calls:
        """The operators of the host together with the Python frames they lie in."""
        return calls(self.trace)

    @cached_property
    def tree(self) -> CallTree:
        """The same by the path that leads to each."""
        return call_tree(self.trace, self.calls, self.marked)

    @cached_property
    def allocations(self) -> list[Allocation]:
        """Every allocation of tensor memory."""
        return allocations(self.trace)

    @cached_property
    def call_stacks(self) -> Callable[[int], str]:
        """What names the Python frames that an operator lies in, the innermost first.

        Labels have none: they begin in one frame and end after it.
        """
        trace, found = self.trace, self.operators
        frames = np.flatnonzero(trace.category(FRAMES))
        if not len(frames):
            return lambda _: ""
        labels = trace.category(LABELS)[found.span].tolist()
        outer, chosen = self.calls.parent.tolist(), self.calls.span
        code = trace.spans["name"][chosen].tolist()
        is_frame = np.isin(chosen, frames).tolist()
        places = np.searchsorted(chosen, found.span).tolist()
        names, known = trace.tables["name"], dict[int, str]()

        def stack(place: int) -> str:
            """Return the frames above a place, each followed by a line break as the vendor does."""
            if place == ROOT:
                return ""
            if place not in known:
                rest = stack(outer[place])
                own = names[code[place]] if is_frame[place] else ""
                known[place] = f"{own};\r\n{rest}" if own and rest else own or rest
            return known[place]

        return lambda operator: "" if labels[operator] else stack(outer[places[operator]])


def _is_text(name: str) -> bool:
    """Return whether a name can be written into files; a file system may hold any bytes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _whole(value: object) -> int | None:
    """Return a number that 64 bits hold; None for anything else that a file may say."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return value
    return None


def find_manifest(path: Path) -> tuple[Path, Manifest] | tuple[None, None]:
    """Return the manifest of a trace, and where it lies.

    That of the rank in the trace's name is tried first.
    """
    folder = path.parent / INFO_DIR
    rank = _RANK.search(path.name)
    likely = [folder / f"rank_{rank[1]}.info.json"] if rank else []
    for candidate in chain(likely, sorted(folder.glob("*.info.json")) if folder.is_dir() else ()):
        with contextlib.suppress(CaptureError):
            manifest = load_manifest(candidate)
            if manifest.trace == path.name:
                return candidate, manifest
    return None, None
