"""What a device can do at most, and how near operators came to it: its roofline."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dynprof.analysis.measures.efficiency.flops import DEVICE
from dynprof.errors import CaptureError, reason

if TYPE_CHECKING:
    from dynprof.analysis.measures.efficiency.flops import Work

COMPUTE, MEMORY = "compute", "memory"
"""What keeps an operator from being faster."""
_HALVES = {"c10::Half": "float16", "c10::BFloat16": "bfloat16"}


@dataclass(frozen=True)
class RooflinePoint:
    """What an operator's work could be at most, on the device that did it.

    Attributes:
        peak_tflops: The device's peak in the type and on the units that were used; None where one
            of these is not known.
        bound: Whether arithmetic or memory takes longer at the device's peaks; empty where one of
            them is not known.
        share: What the work takes at the device's peaks, of the time that it took; None where it
            is not known.
    """

    peak_tflops: float | None
    bound: str
    share: float | None


def roofline_point(work: Work, peak: Peak | None) -> RooflinePoint:
    """Return how an operator's work stands to the peaks of the device.

    Args:
        work: The work.
        peak: What the device can do; None where it is not known.
    """
    if peak is None or work.where != DEVICE or not work.time_ns or work.moved is None:
        return RooflinePoint(None, "", None)
    moving = work.count * work.moved / peak.gb_s
    if not work.is_product:
        return RooflinePoint(None, MEMORY, moving / work.time_ns)
    kind = peak_kind(work, peak)
    if kind is None or work.flops is None:
        return RooflinePoint(None, "", None)
    most = peak.tflops[kind]
    computing = work.count * work.flops / most / 1000
    bound = COMPUTE if computing >= moving else MEMORY
    return RooflinePoint(most, bound, max(computing, moving) / work.time_ns)


def peak_kind(work: Work, peak: Peak) -> str | None:
    """Return which of a device's peaks a product is to be measured by; None if it is not known.

    Products of halves are measured by the units for matrices, whether they used them or not;
    those of ``float`` by the units that they used: which of them may is a setting of the job.
    """
    if work.dtype.startswith("c10::Float8"):
        return _if_known("float8", peak)
    if work.dtype in _HALVES:
        return _if_known(_HALVES[work.dtype], peak)
    plain, matrix = {
        "float": ("float32", "tf32"),
        "double": ("float64", "float64 matrix"),
    }.get(work.dtype, ("", ""))
    if matrix not in peak.tflops:
        return _if_known(plain, peak)
    if work.on_tensor_cores is None:
        return None
    return matrix if work.on_tensor_cores > 0 else _if_known(plain, peak)


def _if_known(kind: str, peak: Peak) -> str | None:
    return kind if kind in peak.tflops else None


VARIABLE = "DYNPROF_PEAKS"
"""The environment variable that names a file of more devices, in the form of ``peaks.json``."""
_OWN = Path(__file__).with_name("peaks.json")


class Peak(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a kind of device can do at most.

    Attributes:
        names: What it calls itself.
        gb_s: The traffic of its memory, in 10^9 bytes a second.
        tflops: Its arithmetic without sparsity by type, in 10^12 operations a second: ``float16``,
            ``bfloat16``, ``float8``, ``tf32`` and ``float64 matrix`` on the units for matrices,
            ``float32`` and ``float64`` without them.
        source: Where that is written.
    """

    names: tuple[str, ...]
    gb_s: float
    tflops: dict[str, float]
    source: str


def peak_of(device: str) -> Peak | None:
    """Return what a device can do at most; None for one that no table has.

    Args:
        device: What it calls itself.

    Raises:
        CaptureError: The user's own table cannot be read.
    """
    named = os.environ.get(VARIABLE)
    tables = [Path(named)] if named else []
    for table in (*tables, _OWN):
        for peak in _read(table):
            if device in peak.names:
                return peak
    return None


def _read(table: Path) -> list[Peak]:
    try:
        found = msgspec.json.decode(table.read_bytes(), type=list[Peak])
    except (OSError, msgspec.MsgspecError) as error:
        raise CaptureError(
            f"{table}, which {VARIABLE} names, cannot be used: {reason(error)}"
        ) from error
    for peak in found:
        if not peak.names or not all(
            0 < one < _INFINITY for one in (peak.gb_s, *peak.tflops.values())
        ):
            raise CaptureError(
                f"{table}: a device there has no name, or a peak that is not above 0"
            )
    return found


_INFINITY = float("inf")
