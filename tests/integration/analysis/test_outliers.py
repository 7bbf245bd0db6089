"""An injected slow step of a real job is named with its cause, as the job's own clock shows it."""

from __future__ import annotations

import json
import re

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.report.contents import contents, verdict
from tests.integration.running import DESCENT, RunningJob

Captured = tuple[MeasuredTrace, list[float], int, bool]

pytest.importorskip("torch", reason="torch is not installed")

FIRST, SLOW, LAST = 30, 34, 37
"""The recorded steps, and the one with the slow batch. The job logs times by this number."""
SCRIPT = f"""
import json, os, time, torch, dynprof as dp
torch.set_num_threads(1)
{DESCENT}
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * {LAST + 20}
    def __getitem__(self, index):
        return index, torch.randn(32)
def read_again():
    time.sleep(1)
def collate(samples):
    time.sleep(0.01)
    if samples[0][0] == 4 * {SLOW}:
        read_again()
    return torch.stack([row for _, row in samples])
loader = torch.utils.data.DataLoader(
    Numbers(), batch_size=4, collate_fn=collate, num_workers=WORKERS, prefetch_factor=PREFETCH)
dp.init("prof_config")
took, last = [], time.perf_counter()
for batch in loader:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    while len(took) == 4 and not os.path.exists("armed"):
        time.sleep(0.01)
    took.append(1000 * (time.perf_counter() - last))
    dp.step()  # opens and closes windows, which is no time of the steps
    last = time.perf_counter()
dp.shutdown()
print(json.dumps(took))
"""


@pytest.fixture(
    scope="module",
    params=[(0, False), (0, True), (1, False), (1, True)],
    ids=["here", "here, stacks", "worker", "worker, stacks"],
)
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """Return dynprof's figures for such a job, and the ms of its steps by its own clock."""
    workers, stacks = request.param
    folder = tmp_path_factory.mktemp("job")
    script = SCRIPT.replace("WORKERS", str(workers)).replace("PREFETCH", "2" if workers else "None")
    with RunningJob(folder, script) as job:
        job.when("training", lambda status: status.step >= 4)
        active = LAST + 1 - FIRST
        job.edit(active=active, warmup=1, start_step=FIRST - 1, with_stack=stacks)
        job.when("the request", lambda status: status.request > 0)
        (folder / "armed").touch()
        job.capture()
        took = json.loads(job.end())
    (path,) = job.root.glob("step_*/*.trace.json*")
    return MeasuredTrace(path), took, workers, stacks


def test_a_slow_step_is_named_as_the_job_saw_it(
    captured: Captured,
) -> None:
    """Number, length and median match the job's; a mark also includes a part of step()."""
    measured, took, *_ = captured
    assert [number for number, *_ in measured.marked] == list(range(FIRST, LAST + 1))
    assert measured.outliers[0][0] == SLOW  # a busy machine may add shorter ones
    steps = zip(measured.marked, took[FIRST:], strict=False)
    apart_ms = sorted(abs(length / 1e6 - logged) for (_, _, length), logged in steps)
    assert apart_ms[len(apart_ms) // 2] < 20  # the step that opens the window may be longer
    assert apart_ms[-1] < 500  # half of the injected sleep
    first = verdict(measured)[0]
    assert first.startswith("A step takes ")
    (shown,) = re.findall(rf"\(median of 8 steps\); step {SLOW} took ([\d,]+) ms", first)
    lengths = {number: length / 1e6 for number, _, length in measured.marked}
    assert float(shown.replace(",", "")) == pytest.approx(lengths[SLOW], rel=0.01)
    mine = sorted(lengths.values())
    assert float(first.split()[3]) == pytest.approx((mine[3] + mine[4]) / 2, rel=0.1)
    page = contents(measured)
    assert page["verdict"] == first
    assert SLOW in [row["number"] for row in page["steps"]["rows"] if row["outlier"]]


def test_the_cause_of_the_slow_step_is_found(
    captured: Captured,
) -> None:
    """With stacks, the function that slept is named; without, what the training waited for."""
    measured, _, workers, stacks = captured
    page = contents(measured)
    slow, *others = page["findings"]
    assert slow["title"] == f"Step {SLOW} takes longer than the others"
    assert slow["share"] > 0.5
    assert f"The data loader keeps step {SLOW} waiting for " in slow["detail"]
    assert ("(read_again)" in slow["detail"]) is (stacks and not workers)
    assert ("batches of its worker processes" in slow["detail"]) is bool(workers)
    assert ("py-spy record" in slow["advice"]) is bool(workers)
    dump = f"dynprof dump {measured.path.parents[1]} shows what they execute now"
    assert (dump in slow["advice"]) is bool(workers)
    said = json.dumps(page["findings"])
    assert "poll" not in said
    assert not any("dynprof" in one["detail"] for one in page["findings"])
    command = f"dynprof arm {measured.path.parents[1]} --with-stack."
    hints = said.count(f"To see which functions, record with stacks: {command}")
    assert hints == (0 if stacks else 1)
    assert others
