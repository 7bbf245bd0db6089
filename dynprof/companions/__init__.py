"""What is recorded beside the profiler, over the same window: the host, collections, marks.

In come a window's start and stop; out go events for its trace. A companion knows no profiler, and
its failure costs its own track only. Others use :func:`companions_for`, and ``base`` for their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.companions.base import Companion, Companions, Event, Events

if TYPE_CHECKING:
    from dynprof.config.experimental import ExperimentalConfig


def companions_for(settings: ExperimentalConfig) -> list[Companion]:
    """Return the companions that a config asks for and that need no particular profiler."""
    found: list[Companion] = []
    if settings.host_sys:
        from dynprof.companions.host import HostSampler

        found.append(HostSampler(settings.host_sys))
    if settings.gc_detect_threshold is not None:
        from dynprof.companions.garbage_collections import CollectionTrack

        found.append(CollectionTrack(settings.gc_detect_threshold))
    if settings.marks:
        from dynprof.companions.marks import MarkTracks

        include, exclude = settings.mstx_domain_include, settings.mstx_domain_exclude
        found.append(MarkTracks(include or (), exclude or ()))
    return found


__all__ = ["Companion", "Companions", "Event", "Events", "companions_for"]
