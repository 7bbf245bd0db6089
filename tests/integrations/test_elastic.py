"""Ranks that torchrun restarts continue with their step numbers."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.integrations.jobs import log, noted, windows

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
import os
from torch.profiler import record_function

rank, kept = int(os.environ["RANK"]), Path("kept.json")
# The first time there is nothing to go on from, however late this rank begins.
first = json.loads(kept.read_text()) if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0" else 0
dp.init("prof_config")
dp.set_state({"cur_step": first})
if first:
    Path(f"again_{rank}").touch()
layer = torch.nn.Linear(8, 1)
for step in range(first, 50):
    if step == 24 and rank == 0:
        kept.write_text("24")
    if step == 30 and not first:
        wait(lambda: rank == 1 and kept.exists())
        os._exit(1)
    if step == 33:
        wait(Path("again_1").exists)  # what is saved before it watches is no request to it
        ask(start_step=40) if rank == 0 else wait(ready)
    with record_function(f"batch of {step}"):
        layer(torch.randn(2, 8)).square().mean().backward()
    dp.step()
Path(f"noted_{rank}.json").write_text(
    json.dumps([os.environ["TORCHELASTIC_RESTART_COUNT"], first]))
"""


@pytest.mark.slow
def test_restarted_ranks_continue_with_their_numbers(tmp_path: Path) -> None:
    """A rank died at step 30. Both restart with step 24, and their windows begin at step 41."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")
    once_more = ("--max-restarts=1", "--standalone", "--local-addr=127.0.0.1")
    found = windows(tmp_path, JOB, *torchrun, *once_more, OMP_NUM_THREADS="1")
    assert [noted(tmp_path, f"noted_{rank}.json") for rank in (0, 1)] == [["1", 24]] * 2
    assert [window.manifest.rank for window in found] == [0, 1]
    for window in found:
        assert window.steps == (41, 42)
        assert window.inside("batch of") == {
            step: Counter({f"batch of {step}": 1}) for step in (41, 42)
        }
    assert log(tmp_path).count("the script set the step from 0 to 24") == 2
