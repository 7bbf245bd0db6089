"""The timeline of a report has all of a trace's time, merged or not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.report import timeline as module
from dynprof.analysis.report.timeline import KINDS, timeline
from tests.real_traces import everything, on_each

if TYPE_CHECKING:
    from pathlib import Path

COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
ON_DEVICE = {"kernel": "computing", **dict.fromkeys(COPIES, "copying")}
MANY = 300  # Slices; with fewer, each kind on each track needs its own.


def shown(path: Path) -> tuple[Counter[tuple[str, str]], int]:
    """Return the ns on each stream by kind, and the number of slices on all tracks."""
    found: Counter[tuple[str, str]] = Counter()
    data = timeline(MeasuredTrace(path))
    assert data is not None
    for title, numbers in data["tracks"]:
        rows = list(zip(*[iter(numbers)] * 4, strict=True))
        for _, length, name, kind in rows:
            assert name < len(data["names"])
            if "stream" in title:
                found[title, KINDS[kind]] += length
    return found, sum(len(numbers) // 4 for _, numbers in data["tracks"])


def counted(path: Path) -> Counter[tuple[str, str]]:
    """Return the same from the raw events; NCCL's kernels are communication."""
    found: Counter[tuple[str, str]] = Counter()
    work = [one for one in everything(path) if one["kind"] in ON_DEVICE and one.get("ph") == "X"]
    devices = len({one["args"]["device"] for one in work}) > 1
    for one in work:
        args = one["args"]
        kind = "communication" if "nccl" in one["name"].lower() else ON_DEVICE[one["kind"]]
        of = f"device {args['device']}, " if devices else ""
        found[f"{of}stream {args['stream']}", kind] += one["end"] - one["begin"]
    return found


@on_each
def test_streams_have_all_their_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By kind; also where short slices are merged, because the page may have only a few."""
    if not (expected := counted(path)):
        pytest.skip("no device worked in it")
    whole, slices = shown(path)
    assert whole == expected
    if slices < MANY:
        return
    monkeypatch.setattr(module, "MAX_SLICES", slices // 3)
    merged, fewer = shown(path)
    assert merged == expected
    assert fewer <= slices // 3


def phases_shown(measured: MeasuredTrace) -> Counter[str]:
    """Return the ns of each phase on the timeline, within the marked steps."""
    found: Counter[str] = Counter()
    data = timeline(measured)
    assert data is not None
    (numbers,) = (numbers for title, numbers in data["tracks"] if title == "phases")
    at = int(measured.trace.spans["start"].min()) + data["begin"]
    for gap, length, _, kind in zip(*[iter(numbers)] * 4, strict=True):
        assert gap >= 0  # no slice covers another
        at += gap
        for _, begin, lasts in measured.marked:
            found[KINDS[kind]] += max(0, min(at + length, begin + lasts) - max(at, begin))
        at += length
    return found


@on_each
def test_phases_last_as_long_as_in_the_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where forward is guessed, the optimizer's operators look like those of forward."""
    measured = MeasuredTrace(path)
    expected: Counter[str] = Counter()
    for step in measured.phases:
        expected.update(step)
    if not any(expected[name] for name in expected.keys() - {"rest"}):
        pytest.skip("it shows no phase")
    monkeypatch.setattr(module, "MAX_SLICES", 10**9)
    found = phases_shown(measured)
    assert {name: found[name] for name in expected.keys() - {"rest"}} == {
        name: time for name, time in expected.items() if name != "rest"
    }
