"""Kernels that move the same data again and again, where one kernel could do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.findings.finding import Finding
from dynprof.analysis.measures.critical_path.critical_path import ALL_KERNELS
from dynprof.analysis.measures.efficiency.sequences import MOST
from dynprof.analysis.measures.sequence_sources import in_a_row, sources
from dynprof.analysis.measures.timeline.breakdown import ms
from dynprof.plural import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.efficiency.sequences import KernelSequence
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.breakdown import Breakdown


def fusible_kernels(measured: MeasuredTrace, steps: Breakdown) -> Finding | None:
    """Look for elementwise kernels in a row; the gaps between them are charged elsewhere."""
    fusible = [one for one in measured.sequences[:MOST] if one.saved_ns]
    found = [(one, _in_steps(one, measured, steps)) for one in fusible]
    saved = [int((one.busy_ns - one.longest_ns)[here].sum()) for one, here in found]
    if steps.on_host or not sum(saved):
        return None
    count = sum(int(here.sum()) * len(one.names) for one, here in found)
    worst, here = found[int(np.argmax(saved))]
    (source,) = sources(measured, [worst])
    where = f" at {source.line}" if source.line else ""
    operators = in_a_row(source.operators, 5)
    time = sum(saved) / steps.count
    each = counted(int(here.sum()) / steps.count, "time")
    return Finding(
        "Kernels that could be one",
        steps.share(time),
        f"{counted(count / steps.count, 'elementwise kernel')} of {steps.a_step} directly follow "
        f"one another, for {ms(time)} beyond the longest of each sequence. Of that "
        f"{ms(max(saved) / steps.count)} in one sequence, {each}{where}: {operators}.",
        "torch.compile fuses them; without it, one operator may do for several, such as "
        "torch.addcmul, F.gelu for its formula, or fused=True in the optimizer.",
        on_path=ALL_KERNELS,
        without="Fused,",
    )


def _in_steps(one: KernelSequence, measured: MeasuredTrace, steps: Breakdown) -> NDArray[np.bool_]:
    """Return which of a sequence ran within the steps, on their device."""
    inside = np.zeros(one.count, bool)
    for _, begin, length in steps.steps:
        inside |= (one.begin >= begin) & (one.begin < begin + length)
    inside &= measured.trace.spans["device"][one.kernels[:, 0]] == steps.device
    return inside
