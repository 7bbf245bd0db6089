"""Baselines of a real job, over requests of an operator and a kill, and their trend."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import statistics
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.running import RunningJob, wait_for
from tests.processes import DYNPROF, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
import os, time, torch, dynprof as dp
torch.set_num_threads(1)
dp.init("prof_config")
one, other = torch.randn(256, 256), torch.randn(256, 256)
while True:
    with torch.profiler.record_function("forward"):
        until = time.perf_counter() + (0.2 if os.path.exists("slow") else 0.002)
        while time.perf_counter() < until:
            one @ other
    time.sleep(0.004)
    dp.step()
"""
"""A job whose products of matrices take 100 times as long once a file exists."""
SLOW_MS = 100.0
"""A step that takes longer is a slow one, even on a busy machine."""
OFTEN = 0.02
"""Minutes between two baselines: 1.2 s."""
KEEP, MANY = 3, 12


def saved(root: Path) -> dict[Path, bool]:
    """Return the folders of saved windows, in the order of their steps, and which are baselines."""
    found = {}
    for path in root.glob("step_*/info/rank_0.info.json"):
        with contextlib.suppress(OSError):  # removed since
            manifest = json.loads(path.read_text())
            if manifest["trace"]:
                repeats = bool(manifest["request"]["config"].get("every"))
                found[path.parent.parent] = repeats
    return dict(sorted(found.items(), key=lambda one: first_step(one[0])))


def first_step(folder: Path) -> int:
    """Return the first step in the name of a folder."""
    return int(folder.name.removeprefix("step_").split("-")[0])


def baselines(root: Path) -> list[Path]:
    """Return the folders of the windows whose config has an interval."""
    return [folder for folder, repeats in saved(root).items() if repeats]


def others(root: Path) -> list[Path]:
    """Return the folders of all other windows."""
    return [folder for folder, repeats in saved(root).items() if not repeats]


def arm(root: Path, *options: str) -> None:
    """Run ``dynprof arm`` on a directory, and wait for the capture."""
    done = run([*DYNPROF, "arm", str(root), *options, "--wait"])
    assert done.returncode == 0, done.stderr


def test_the_newest_baselines_stay_and_all_other_captures(tmp_path: Path) -> None:
    """Baselines continue after a request and after a kill; only baselines are removed."""
    with RunningJob(tmp_path, JOB) as job:
        job.when("training", lambda status: status.step > 5)
        arm(job.root, "--every", "0.6s", "--keep", str(KEEP), "--active", "2")
        first = baselines(job.root)[0]
        arm(job.root, "--active", "1")
        (own,) = others(job.root)
        copy = job.root / "pinned"
        pinned = wait_for("another", lambda: [*baselines(job.root)[1:], None][0])
        pinned.rename(copy)
        wait_for("the removal", lambda: None if first.exists() else True)
        later = job.when("the number kept", lambda status: f"{KEEP} kept" in status.baselines)
        assert re.fullmatch(r"baseline every 0.6 s, next at [\d:]+; 3 kept", later.baselines)
        shown = run([*DYNPROF, "status", str(job.root)]).stdout
        assert "rank 0: baseline every 0.6 s, next at " in shown
        log = job.log()
        assert "dynprof cancel ends the baselines" in log
        assert f"removed the baseline {first.name}; newer ones are kept" in log
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait()
    before = baselines(job.root)
    with RunningJob(tmp_path, JOB) as job:
        job.when("the next run", lambda status: "every 0.6 s" in status.baselines)
        again = "it was requested before; dynprof cancel ends it"
        wait_for("the line", lambda: again in job.log() or None)
        wait_for("new ones", lambda: None if {*before} & {*baselines(job.root)} else True)
        assert run([*DYNPROF, "cancel", str(job.root), "--wait"]).returncode == 0
        wait_for("the line", lambda: re.search("cancel: .*ends the baselines", job.log()))
        job.when("no more", lambda status: not status.baselines)
    assert len(baselines(job.root)) in (KEEP, KEEP + 1)  # one may be cut short by the cancel
    assert own.exists()
    assert (copy / "info/rank_0.info.json").exists()
    assert not (job.root / "baselines_config.json").exists()
    with RunningJob(tmp_path, JOB) as job:
        job.when("the last run", lambda status: status.step > 5)
        assert "requested before" not in job.log()


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the complete events of the trace in a folder."""
    (path,) = folder.glob("*.pt.trace.json.gz")
    with gzip.open(path) as file:
        return [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]


def plain_times(folder: Path) -> tuple[float, float]:
    """Return the median step, and the time of ``aten::mm`` in a step, in ms: the oracle."""
    found = events(folder)
    steps = [e for e in found if e["name"].startswith("ProfilerStep#")]
    products = [e for e in found if e["name"] == "aten::mm" and any(_is_in(e, s) for s in steps)]
    inner = [e for e in found if e["name"] == "aten::resolve_conj"]
    own = sum(
        product["dur"] - sum(e["dur"] for e in inner if _is_in(e, product)) for product in products
    )
    return statistics.median(step["dur"] for step in steps) / 1e3, own / len(steps) / 1e3


def _is_in(event: dict[str, Any], outer: dict[str, Any]) -> bool:
    return bool(outer["ts"] <= event["ts"] < outer["ts"] + outer["dur"])


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Return a directory with baselines, and the step at which their job became slow."""
    folder = tmp_path_factory.mktemp("slowed")
    with RunningJob(folder, JOB) as job:
        job.when("training", lambda status: status.step > 5)
        job.edit(every={"minutes": OFTEN}, keep=100, active=3, warmup=1)
        wait_for("half of them", lambda: len(baselines(job.root)) >= MANY // 2 or None)
        (folder / "slow").touch()
        step = job.when("a slow step", lambda status: (status.step_ms or 0) > SLOW_MS).step
        wait_for("all", lambda: len(baselines(job.root)) >= MANY or None)
        job.edit(cancel=True)
        job.when("no more", lambda status: not status.baselines)
        job.edit(cancel=False, every=None, active=3, warmup=1)
        wait_for("a window", lambda: others(job.root) or None)
        job.when("the end", lambda status: status.state == "idle")
    return job.root, step


def test_trend_names_the_baseline_from_which_steps_are_slow(slowed: tuple[Path, int]) -> None:
    """Its values are those of the raw traces; pace, forward and ``aten::mm`` change there."""
    from dynprof.analysis.runs.trend import read_trend

    root, slow_step = slowed
    found = read_trend(root)
    folders = [one.folder for one in found.baselines]
    assert folders == [path for path in baselines(root) if path in folders]
    assert len(folders) >= MANY
    times = [plain_times(folder) for folder in folders]
    named = {one.name: one for one in reversed(found.series)}  # a phase comes before a label
    assert named["step"].values == pytest.approx([step * 1e6 for step, _ in times], rel=0.01)
    assert named["aten::mm"].values == pytest.approx([mm * 1e6 for _, mm in times], rel=0.02)
    (first,) = (change.first for change in named["step"].changes)
    is_slow = [step > SLOW_MS for step, _ in times]
    assert first == is_slow.index(True)
    assert first_step(folders[first - 1]) < slow_step
    assert [change.first for change in named["aten::mm"].changes] == [first]
    assert [change.first for change in named["forward"].changes] == [first]
    said = found.sentences()[0]
    assert f"(step {first_step(folders[first])}) on; aten::mm went from " in said


def test_trend_is_shown_in_the_terminal_and_on_a_page(slowed: tuple[Path, int]) -> None:
    """The table has a sparkline of each quantity; the page has all of its numbers."""
    root, _ = slowed
    output = root.parent / "trend.html"
    done = run([*DYNPROF, "trend", str(root), "--output", str(output)])
    *remarks, path = done.stderr.strip().splitlines()  # one may be open when they are cancelled
    assert (done.returncode, path) == (0, str(output))
    assert all(": cancelled by request" in one for one in remarks)
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("step "))
    assert re.search(r"[▁▂▃▄▅▆▇█]{12}", row)
    assert re.search(r": \S+ to \S+$", row.strip())
    data = json.loads(re.search(r'id="data">(.*?)</script>', output.read_text())[1])  # type: ignore[index]
    assert data["series"][0]["name"] == "step"
    assert data["verdict"].startswith("A step took ")


def test_report_compares_with_the_last_baseline(slowed: tuple[Path, int]) -> None:
    """A slow window is as slow as the last baseline; a slow baseline says what grew."""
    root, _ = slowed
    folders = baselines(root)
    times = [plain_times(folder)[0] for folder in folders]
    first = next(place for place, step in enumerate(times) if step > SLOW_MS)
    said = run([*DYNPROF, "report", str(folders[first])]).stdout
    grown = r"A step takes ([\d.]+) ms; the baseline of [\d:]+ took ([\d.]+) ms; aten::mm grew most"
    match = re.search(grown, said)
    assert match, said
    assert float(match[1]) == pytest.approx(times[first], rel=0.02)
    assert float(match[2]) == pytest.approx(times[first - 1], rel=0.02)
    (own,) = others(root)
    own_said = run([*DYNPROF, "report", str(own)]).stdout
    assert re.search(r", as usual: the baseline of |, like the baseline of ", own_said), own_said
