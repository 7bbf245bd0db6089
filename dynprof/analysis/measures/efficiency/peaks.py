"""What devices can do at most, by the sheets of those who make them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dynprof.errors import CaptureError, reason

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
            0 < one < _ENDLESS for one in (peak.gb_s, *peak.tflops.values())
        ):
            raise CaptureError(
                f"{table}: a device there has no name, or a peak that is not above 0"
            )
    return found


_ENDLESS = float("inf")
