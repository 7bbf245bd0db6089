"""The page's roofline: what operators came to beside what the device can do, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.efficiency.flops import DEVICE
from dynprof.analysis.measures.efficiency.roofline import placed
from dynprof.analysis.output.tables import shapes_text

if TYPE_CHECKING:
    from dynprof.analysis.measures.efficiency.flops import Work
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

MOST_WORKS = 300
LONGEST_SHAPES = 120


def roofline_data(measured: MeasuredTrace) -> dict[str, Any]:
    """Return rows of operators with their rates, and the roofs of the device that worked."""
    works, peak = measured.works, measured.peak
    known = [work for work in works if work.tflops or work.gb_s]
    where = [work for work in known if work.where == DEVICE] or known
    busy = int(measured.trace.spans["length"][measured.launches.work].sum())
    return {
        "device": measured.device_name,
        "on_host": not busy,
        "peak": peak and {"gb_s": peak.gb_s, "tflops": peak.tflops, "source": peak.source},
        "covered": sum(work.device_ns for work in where) / busy if busy else None,
        "rows": [_row(measured, work) for work in where[:MOST_WORKS]],
        "count": len(where),
    }


def _row(measured: MeasuredTrace, work: Work) -> list[Any]:
    place = placed(work, measured.peak)
    shapes = shapes_text(work.dims).rstrip(";")
    if len(shapes) > LONGEST_SHAPES:
        shapes = f"{shapes[:LONGEST_SHAPES]}…"
    return [
        f"{work.name} {shapes}".strip(),
        work.dtype.removeprefix("c10::"),
        work.count,
        (work.time_ns or 0) / 1e6,
        work.tflops,
        work.gb_s,
        work.flops / work.moved if work.flops and work.moved else None,
        place.share and 100 * place.share,
        place.bound,
        None if work.on_tensor_cores is None else 100 * work.on_tensor_cores,
    ]
