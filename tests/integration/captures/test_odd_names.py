"""Names with quotes, backslashes and any letters, in traces of real torch jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.captures.manifest import load_manifest
from tests.integration.running import TORCH_JOB, RunningJob, below
from tests.real_traces import read

torch = pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LABELS = ['merge {"layer": "model.0"}', 'x",\n    "pid": 1', 'a", "cat": "b', "C:\\a\\b", '"']
REPLACED = ["t\tb", "ünï", "前向", "\x01"]
MARKS = ['mark "ü" \\ \t 前', 'phase {"é": 1}']
ODD = (
    TORCH_JOB
    + """
import json
from torch.profiler import record_function
from dynprof import mstx, phases
labels, marks = json.loads(sys.argv[1])
code = compile("def f(x): return x * 2", '{"device": "cpu"}', "exec")
exec(code)
def work():
    mstx.mark(marks[0])
    with phases.phase(marks[1]):
        for label in labels:
            with record_function(label):
                f(torch.ones(2))
"""
)
ENDLESS = (
    ODD
    + """
dp.init("prof_config")
while True:
    work()
    time.sleep(0.01)
    dp.step()
"""
)
STATIC = (
    ODD
    + """
from dynprof.profiler import profile, tensorboard_trace_handler
for number, packed in enumerate((False, True)):
    with profile(with_stack=True) as prof:
        work()
    prof.export_chrome_trace("trace.json.gz" if packed else "trace.json")
    prof.key_averages()
    handler = tensorboard_trace_handler(str(packed), analyse_flag=False, use_gzip=packed)
    with profile(with_stack=True, on_trace_ready=handler):
        work()
"""
)


def written(label: str) -> str:
    """Return a label in the form that torch writes."""
    return label.replace("\\", "/").replace("\n", "")


def assert_has(trace: dict[str, Any], labels: Sequence[str], times: int) -> None:
    """Compare the labels of a trace with those of the script, in order."""
    found = [e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
    found = [name for name in found if not name.startswith("ProfilerStep#")]
    kept = [written(label) for label in labels if label not in REPLACED]
    quote = '"' if any('"' in name for name in found) else "'"  # torch 2.14 writes the latter
    kept = [name.replace('"', quote) for name in kept]
    expected = [*kept, *["unknown"] * (len(labels) - len(kept))]
    assert found == expected * times


@pytest.mark.parametrize("closing", ["detached", "inline"])
def test_odd_labels_of_a_running_job(tmp_path: Path, closing: str) -> None:
    """The trace has all labels, the manifest counts the replaced ones, and dynprof's marks stay."""
    given = json.dumps([[*LABELS, *REPLACED], MARKS])
    script = ENDLESS.replace("sys.argv[1]", repr(given))
    with RunningJob(tmp_path, script, DYNPROF_CLOSE=closing) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(active=3, with_stack=True, experimental_config={"mstx": True})
        manifest, trace = job.capture()
    assert manifest.complete
    assert_has(trace, [*LABELS, *REPLACED], times=3)
    marks = [e["name"] for e in trace["traceEvents"] if e.get("cat") == "mstx"]
    assert [marks.count(mark) for mark in MARKS] == [3, 3]
    assert f'{3 * len(REPLACED)} names in the trace read "unknown"' in " ".join(manifest.lost)


def test_odd_labels_in_profiles_of_a_script(tmp_path: Path) -> None:
    """The labels are there after an export and with a handler, compressed and not."""
    script = STATIC.replace("sys.argv[1]", repr(json.dumps([LABELS, MARKS])))
    with RunningJob(tmp_path, script) as job:
        job.end()
    paths = [path for path in below(tmp_path, "*.json*") if "trace.json" in path.name]
    assert len(paths) == 4
    for path in paths:
        trace = read(path)
        assert_has(trace, LABELS, times=1)
        names = {e.get("name") for e in trace["traceEvents"]}
        assert names & {'{"device": "cpu"}(1): f', "{'device': 'cpu'}(1): f"}
    for path in below(tmp_path, "*.info.json"):
        assert load_manifest(path).complete
