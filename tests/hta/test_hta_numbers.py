"""Numbers of real device traces, next to those of the real HolisticTraceAnalysis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip(
    "hta.version", reason="HolisticTraceAnalysis is not installed; CI compares with it"
)

from dynprof.analysis.measures.timeline.steps import step_times
from dynprof.analysis.reading.events import ON_DEVICE
from dynprof.analysis.reading.spans import cover, covered

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

pytestmark = [
    pytest.mark.hta,
    pytest.mark.filterwarnings("ignore"),  # from HTA's use of pandas
]


def test_computing_and_idle_time(both: tuple[MeasuredTrace, Any]) -> None:
    """Computing is the union of kernels. Idle is the rest between the first and last event."""
    measured, analysis = both
    (theirs,) = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
    spans, chosen = measured.trace.spans, measured.trace.category(ON_DEVICE)
    busy = cover(spans["start"][chosen], (spans["start"] + spans["length"])[chosen])
    whole = int(busy[1][-1] - busy[0][0])
    (ours,) = step_times(measured.trace, [(None, int(busy[0][0]), whole)], measured.launches)
    assert ours.computing / 1000 == pytest.approx(theirs["compute_time(us)"], rel=1e-5)
    assert whole / 1000 == pytest.approx(theirs["kernel_time(us)"], rel=1e-5)
    assert (whole - covered(busy)) / 1000 == pytest.approx(theirs["idle_time(us)"], rel=1e-5)


def test_overlap_of_communication_and_computing(both: tuple[MeasuredTrace, Any]) -> None:
    """The share of communication that computing hides matches, in percent."""
    measured, analysis = both
    starts = measured.trace.spans["start"]
    (ours,) = step_times(measured.trace, [(None, int(starts[0]), 1)], measured.launches)
    if not ours.communication:
        pytest.skip("nothing communicates, which HTA divides by")
    (theirs,) = analysis.get_comm_comp_overlap(visualize=False).to_dict("records")
    percent = 100 * ours.overlapped / ours.communication
    assert percent == pytest.approx(theirs["comp_comm_overlap_pctg"], abs=0.006)


def test_kernels_by_name(both: tuple[MeasuredTrace, Any]) -> None:
    """Sum, maximum and minimum of every kernel and copy match."""
    measured, analysis = both
    _, theirs = analysis.get_gpu_kernel_breakdown(
        visualize=False, num_kernels=1000, duration_ratio=1.0, include_memory_kernels=True
    )
    ours = {kind.name: kind for kind in measured.kinds}
    compared = 0
    for row in theirs.to_dict("records"):
        if row["name"] in ours:
            kind = ours[row["name"]]
            assert kind.total / 1000 == pytest.approx(row["sum (us)"], rel=1e-6, abs=0.01)
            assert kind.longest / 1000 == pytest.approx(row["max (us)"], rel=1e-6, abs=0.01)
            assert kind.shortest / 1000 == pytest.approx(row["min (us)"], rel=1e-6, abs=0.01)
            compared += 1
    assert compared > 10
