"""The critical path's csv files, as a reader of csv sees them."""

from __future__ import annotations

import csv
from decimal import Decimal
from typing import TYPE_CHECKING

from dynprof.analysis.runs.one_trace import write_analysis
from tests.unit.analysis.made_jobs import STEP, Job

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_add_up_to_their_step(tmp_path: Path) -> None:
    """Each step has rows, the longest first; a second file has the what-if times."""
    job = Job()
    for number in range(2):
        begin = number * STEP
        job.step(number)
        job.host("forward", begin, 100, "user_annotation")
        job.host("aten::mm", begin + 5, 30)
        job.launch("gemm, large", begin + 10, begin + 20, 900)
        job.call("cudaDeviceSynchronize", begin + 40, 890)
    files = list(write_analysis(job.measured(tmp_path), ("text",), ("critical path",)))
    parts, what_ifs = (
        list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
        for file in files
        if file.name.startswith("critical_path")
    )
    for step in ("0", "1"):
        mine = [row for row in parts if row["Step"] == step]
        assert sum(Decimal(row["Time(us)"]) for row in mine) == STEP
        assert sum(Decimal(row["Ratio(%)"]) for row in mine) == 100
        first = mine[0]
        assert (first["Part"], first["Name"], first["Count"]) == ("kernels", "gemm, large", "1")
        assert first["Time(us)"] == "900.000"
    by_name = {(row["Part"], row["Phase"], row["Name"]): row["Time(us)"] for row in parts}
    assert by_name["host", "forward", "aten::mm"] == "5.000"
    assert by_name["launches", "", "cudaLaunchKernel"] == "10.000"
    assert by_name["return to the host", "", "cudaDeviceSynchronize"] == "10.000"
    # The host reaches its call after 40 us, and needs 70 us after it.
    kernel = next(row for row in what_ifs if row["What"] == "gemm, large")
    assert kernel["On Path(us)"] == "900.000"
    assert (kernel["Step(us)"], kernel["Step If It Cost Nothing(us)"]) == ("1000.000", "110.000")
    assert kernel["Saving(%)"] == "89.000"
