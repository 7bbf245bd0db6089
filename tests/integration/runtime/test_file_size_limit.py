"""dynprof's other processes cannot fill the job's disk with one file."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.deliveries import Order
from tests.integration.troubled import small_disk
from tests.processes import start

if TYPE_CHECKING:
    from pathlib import Path

MORE_THAN_ALLOWED = 65 << 20
"""Bytes. A disk with less free space than the reserve, as here, allows files of 64 MB."""
ANALYSIS = f"""
from pathlib import Path
from dynprof.analysis import __main__ as analysis
def write(trace, _):
    trace.with_name("large").write_bytes(bytes({MORE_THAN_ALLOWED}))
analysis.MeasuredTrace, analysis.write_analysis = Path, write
analysis.main()
"""
DELIVERY = f"""
import pathlib, runpy, shutil
def copy(source, *_):
    trace = pathlib.Path("/proc/self/fd", str(source.fileno())).resolve()
    trace.with_name("large").write_bytes(bytes({MORE_THAN_ALLOWED}))
shutil.copyfileobj = copy
runpy.run_module("dynprof.captures.sender", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("kind", ["analysis", "delivery"])
def test_a_file_that_would_fill_the_disk_is_cut_off_with_a_message(
    tmp_path: Path, kind: str
) -> None:
    """The analysis and the sending process stop at the limit, and say it."""
    disk = tmp_path / "disk"
    with small_disk(disk, "100m"):
        trace = disk / "a.trace.json"
        trace.touch()
        arguments, told = [str(trace)], ""
        if kind == "delivery":
            order = Order(
                str(disk), (trace.name,), f"{disk}/there", str(disk), (), False, 9.0, 99.0
            )
            (disk / "there").mkdir()
            arguments, told = [], order.to_text()
        code = ANALYSIS if kind == "analysis" else DELIVERY
        with start([sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE) as process:
            said = process.communicate(told)[1].splitlines()[-1]
        (large,) = [path for path in disk.rglob("*") if path.is_file() and path != trace]
        assert large.stat().st_size == 64e6
    assert (
        "file too large; files are limited to 64 MB here, to keep space on the job's disk" in said
    )
