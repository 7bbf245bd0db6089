"""Peaks of a device, and how close operators came to them: its roofline."""

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
"""The limit of an operator's speed."""
_MEMORY_ERROR = 0.05
"""Share of a device's memory that it may not report, as for error correction."""
VARIABLE = "DYNPROF_PEAKS"
"""The environment variable that names a file of more devices, in the form of ``peaks.json``."""
_OWN = Path(__file__).with_name("peaks.json")
_INFINITY = float("inf")
_HALVES = {"c10::Half": "float16", "c10::BFloat16": "bfloat16"}


@dataclass(frozen=True)
class RooflinePoint:
    """An operator's work, compared with the peaks of the device that did it.

    Attributes:
        peak_tflops: The device's peak for the type and the units used; None if unknown.
        bound: Whether arithmetic or memory takes longer at the device's peaks; empty if unknown.
        share: Time at the device's peaks, as a share of the time taken; None if unknown.
    """

    peak_tflops: float | None
    bound: str
    share: float | None


def roofline_point(work: Work, peak: Peak | None) -> RooflinePoint:
    """Return an operator's work compared with the peaks of the device.

    Args:
        work: The work.
        peak: The peaks of the device; None if unknown.
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
    """Return the peak of a device that applies to a product; None if unknown.

    For 8-bit and 16-bit types it is the peak of the matrix units, whether used or not. For
    ``float`` it is the peak of the units used, which depend on a setting of the job.
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


class Peak(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The peaks of a kind of device.

    Attributes:
        names: The names that such devices report.
        gb_s: Memory bandwidth, in 10^9 bytes a second.
        tflops: Arithmetic without sparsity by type, in 10^12 operations a second. ``float16``,
            ``bfloat16``, ``float8``, ``tf32`` and ``float64 matrix`` are of the matrix units,
            ``float32`` and ``float64`` of the other units.
        source: Where the figures are published.
        memory_gib: Memory that tells devices of one name apart; 0 if the name is enough.
    """

    names: tuple[str, ...]
    gb_s: float
    tflops: dict[str, float]
    source: str
    memory_gib: float = 0

    def is_of(self, device: str, memory: int) -> bool:
        """Return whether these are the peaks of a device with a name and bytes of memory."""
        difference = abs(memory / 2**30 - self.memory_gib)
        fits = not self.memory_gib or difference <= _MEMORY_ERROR * self.memory_gib
        return device in self.names and fits


def peak_of(device: str, memory: int = 0) -> Peak | None:
    """Return the peaks of a device; None if no table has it.

    Args:
        device: The name that it reports.
        memory: The bytes of its memory; 0 if unknown.

    Raises:
        CaptureError: The user's own table cannot be read.
    """
    named = os.environ.get(VARIABLE)
    tables = [Path(named)] if named else []
    for table in (*tables, _OWN):
        for peak in _read(table):
            if peak.is_of(device, memory):
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
            raise CaptureError(f"{table}: a device has no name, or a peak that is not above 0")
    return found
