"""Collectors record along with the profiler: the host, garbage collections, marks.

Input: a window's start and stop. Output: events for its trace. A collector knows no profiler, and
a failure costs only its own track. Others use :func:`collectors_for`, ``base`` for their own
collectors, and the device interface of ``marks``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.backends.collectors.base import Collector, Collectors, Event, Events, Unavailable
from dynprof.backends.collectors.host import CollectionTrack, HostSampler
from dynprof.backends.collectors.marks import Domains, MarkTracks, StreamMarks
from dynprof.marks.nvtx import NVTX_MARKS
from dynprof.marks.record_functions import RECORD_FUNCTION_MARKS

if TYPE_CHECKING:
    from dynprof.backends.collectors.marks import Device
    from dynprof.config.sections import ExperimentalConfig


def collectors_for(
    settings: ExperimentalConfig, *, record_functions: bool = False, device: Device | None = None
) -> list[Collector]:
    """Return the collectors that a config requests and that need no particular profiler.

    Args:
        settings: The config's settings.
        record_functions: Whether to record torch's ``record_function``, where no profiler does.
        device: The recorded device whose streams can carry marks; None for none.
    """
    found: list[Collector] = []
    if settings.host_sys:
        found.append(HostSampler(settings.host_sys))
    if settings.gc_detect_threshold is not None:
        found.append(CollectionTrack(settings.gc_detect_threshold))
    if settings.marks:
        domains = Domains(settings.mstx_domain_include or (), settings.mstx_domain_exclude or ())
        sources = (NVTX_MARKS, RECORD_FUNCTION_MARKS) if record_functions else (NVTX_MARKS,)
        found += [MarkTracks(domains, sources), StreamMarks(device, domains)]
    return found


__all__ = ["Collector", "Collectors", "Event", "Events", "Unavailable", "collectors_for"]
