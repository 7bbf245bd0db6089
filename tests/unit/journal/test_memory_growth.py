"""Growth of memory in imagined jobs, and what is written when memory grows or is used up."""

from __future__ import annotations

import json
import math
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.backends.torch import out_of_memory
from dynprof.backends.torch.out_of_memory import OutOfMemory, OutOfMemoryObserver
from dynprof.journal import memory_growth
from dynprof.journal.memory_growth import Growth, GrowthSearch, MemoryWatch
from dynprof.requests.inbox import Inbox
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.layout import Layout
from dynprof.runtime.memory import Limit
from dynprof.testing import FakeClock
from tests.memory_series import BEGAN_S, Memory, quiet
from tests.unit.backends.torch.fake_torch import FakeTorch

if TYPE_CHECKING:
    from pathlib import Path


def found(job: Memory, left_mb: float = math.inf) -> list[tuple[int, Growth]]:
    """Return the growth that is logged in a day, each with its minute."""
    search, logged = GrowthSearch("resident"), []
    for at_s, step, mb in job.minutes():
        if growth := search.add(at_s, step, mb, left_mb):
            logged.append(((at_s - BEGAN_S) // 60, growth))
    return logged


@pytest.mark.slow
def test_quiet_jobs_give_at_most_one_false_alarm_a_day() -> None:
    """Fifteen jobs that could double; only a cache that fills for hours grows like a leak."""
    jobs = [quiet(seed) for seed in range(15)]
    alarms = [found(job, left_mb=2 * job.base_mb) for job in jobs]
    assert max(map(len, alarms)) <= 1
    noisy = [job for job, logged in zip(jobs, alarms, strict=True) if logged]
    assert len(noisy) <= 4
    assert all(job.cache_mb and job.cache_minutes >= 60 for job in noisy)


@pytest.mark.parametrize(
    "job",
    [
        Memory(0, warm_up_mb=20_000),
        Memory(1, cache_mb=2000, cache_minutes=5),
        Memory(2, cache_mb=2000, cache_minutes=20),
        Memory(3, evaluation_mb=3000, every_minutes=90, evaluation_minutes=25),
        Memory(4, prefetch_mb=500),
        Memory(5, plateaus=((100, 400), (130, 300), (190, 200), (400, 100), (900, 50))),
        Memory(6, noise_mb=40),
    ],
    ids=["warm-up", "cache", "slow cache", "evaluation", "prefetch", "plateaus", "noise"],
)
def test_memory_that_does_not_leak_is_silent(job: Memory) -> None:
    """Each usual reason by itself."""
    assert found(job, left_mb=2 * job.base_mb) == []


@pytest.mark.parametrize("leak_mb", [120, 500, 3600])
def test_leak_is_found_within_an_hour_with_rate_and_onset(leak_mb: float) -> None:
    """The leak begins at minute 300, step 18,000."""
    job = Memory(0, leak_from=300, leak_mb=leak_mb)
    ((minute, growth),) = found(job)
    assert 300 < minute <= 360
    assert growth.mb_per_hour == pytest.approx(leak_mb, rel=0.15)
    assert abs(growth.since_s - BEGAN_S - 300 * 60) <= 600
    assert growth.step == (growth.since_s - BEGAN_S) / 60 * 60


def test_leak_that_leaves_half_an_hour_is_found_in_a_quarter() -> None:
    """A megabyte a second, 1.5 GB left."""
    ((minute, _),) = found(Memory(0, leak_from=300, leak_mb=3600), left_mb=1500)[:1]
    assert 300 < minute <= 315


def test_leak_from_the_beginning_is_found_once_the_job_is_warm() -> None:
    """Half an hour does not count."""
    ((minute, growth),) = found(Memory(0, leak_mb=600))
    assert minute <= 95
    assert growth.since_s - BEGAN_S <= 600


def test_growth_that_ends_is_over() -> None:
    """A cache that has filled is no longer growing; it is logged once."""
    search = GrowthSearch("resident")
    job = Memory(0, leak_from=300, leak_mb=600)
    states = []
    for place, (at_s, step, mb) in enumerate(job.minutes()):
        search.add(at_s, step, min(mb, 6000 + place % 2))
        states.append(search.growth is not None)
    began = states.index(True)
    assert not any(states[600:])
    assert all(states[began : states.index(False, began)])


class Rank:
    """A process whose memory the test sets."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.inbox = FakeClock(), Inbox(lambda: None)
        self.layout = Layout(root, 0, "host", 42)
        self.infos: list[str] = []
        self.warnings: list[str] = []
        self.resident_mb, self.left_mb = 1000.0, 50_000.0
        self.layout.log.parent.mkdir(parents=True, exist_ok=True)
        self.watch = MemoryWatch(
            lambda: self.layout,
            self.inbox,
            self.clock,
            self.infos.append,
            self.warnings.append,
            ErrorBoundary(StderrNotes()),
            lambda: self.resident_mb,
        )
        limit = lambda: [Limit("the machine", self.left_mb, 100_000.0, False)]  # noqa: E731
        monkeypatch.setattr(memory_growth, "limits", limit)

    def run(self, seconds: int, mb_per_s: float = 0.0) -> None:
        """Let time pass, one step a second."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.inbox.step += 1
            self.resident_mb += mb_per_s
            self.watch.check()

    def written(self, suffix: str = ".memory") -> dict[str, Any]:
        """Return the content of a file."""
        content: dict[str, Any] = json.loads(self.layout.log.with_suffix(suffix).read_text())
        return content


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    """Return a process."""
    return Rank(tmp_path, monkeypatch)


def test_growth_is_logged_once_with_its_file_and_shown_in_the_status(rank: Rank) -> None:
    """The file has the readings since the beginning, and says how to learn more."""
    rank.run(3600)
    assert rank.warnings == []
    rank.run(4200, mb_per_s=1)
    (line,) = rank.warnings
    assert line.startswith("resident memory grows by 3,6")
    assert "; more is in log/dp_host_42_rank_0.memory" in line
    (growth,) = rank.watch.status.growths
    assert 3000 < growth.step < 4300
    content = rank.written()
    assert content["resident_mb"] > 3000
    assert content["minutes"][0][2] == 1000
    assert content["python_allocations"] == ["unknown: start the job with PYTHONTRACEMALLOC=1"]
    rank.run(3600)
    assert rank.watch.status.growths == ()
    assert rank.infos[-1].startswith("resident memory has stopped growing")


def test_short_peaks_are_in_no_minute(rank: Rank) -> None:
    """An evaluation of half a minute leaves no trace in the history."""
    for _ in range(10):
        rank.run(30)
        rank.resident_mb += 5000
        rank.run(28)
        rank.resident_mb -= 5000
        rank.run(2)
    assert {one.resident_mb for one in list(rank.watch.minutes)[:-1]} == {1000}


def test_limit_is_named_once_until_there_is_enough_again(rank: Rank) -> None:
    """5% left is a warning; memory that goes up and down near it is not another one."""
    for left_mb in (6000, 4900, 5100, 4000, 11_000, 4000):
        rank.left_mb = left_mb
        rank.run(4)
    assert len(rank.warnings) == 2
    start = "memory is low: the machine has 4,900 of 100,000 MB left; this process has 1,000 MB"
    assert rank.warnings[0].startswith(start)
    assert rank.watch.status.low == "the machine has 4,000 of 100,000 MB left"


def test_lines_of_python_are_named_where_they_are_traced(rank: Rank) -> None:
    """The job has switched tracing on, and dynprof never does."""
    tracemalloc.start()
    try:
        kept = [bytearray(1000) for _ in range(5000)]
        rank.left_mb = 1000
        rank.run(4)
        lines = rank.written()["python_allocations"]
    finally:
        tracemalloc.stop()
    assert kept
    assert any(__file__ in line and line.startswith("5.") for line in lines)


def test_reading_the_traced_lines_needs_memory_that_is_left(rank: Rank) -> None:
    """A job that is nearly out of memory is not pushed over its limit."""
    tracemalloc.start()
    try:
        rank.left_mb = 0
        rank.run(4)
    finally:
        tracemalloc.stop()
    assert rank.written()["python_allocations"][0].startswith("not read: ")


def test_failed_allocation_is_written_at_once(rank: Rank) -> None:
    """Its thread writes; further ones are counted, as a script may try again and again."""
    rank.run(100)
    failed = OutOfMemory(3, 2000.0, 80_000.0, 500.0)
    for _ in range(3):
        rank.watch._note_out_of_memory(failed)
    (line,) = rank.warnings
    start = "out of memory on device 3: 2,000 MB were requested and 500 of 80,000 MB are free, at "
    assert line.startswith(start)
    assert line.endswith("more is in log/dp_host_42_rank_0.out_of_memory")
    assert rank.written(".out_of_memory")["step"] == 100
    rank.run(600)
    rank.watch._note_out_of_memory(failed)
    assert "2 earlier ones were not logged" in rank.warnings[-1]


def test_failed_allocation_of_torch_has_the_allocators_snapshot(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From torch's call to the files, with a fake of torch that records a history."""
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(out_of_memory, "OBSERVER", OutOfMemoryObserver())
    rank.run(4)
    assert torch.observers == []
    torch.is_initialized = torch.has_history = True
    rank.run(4)
    assert rank.watch.status.reserved_mb == 10
    (observe,) = torch.observers
    observe(0, 2_000_000_000, 80_000_000_000, 0)
    (line,) = rank.warnings
    assert f", at {__file__}:" in line
    name = "dp_host_42_rank_0.out_of_memory"
    ending = f"more is in log/{name}, and the allocator's snapshot in {name}.memory_snapshot.pickle"
    assert line.endswith(ending)
    assert rank.written(".out_of_memory")["device_reserved_mb"] == 10
    assert (rank.layout.log.parent / f"{name}.memory_snapshot.pickle").exists()


def test_failed_allocation_never_raises(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An exception would replace torch's own."""

    def fail(*_: object) -> None:
        raise RuntimeError("no allocator")

    monkeypatch.setattr(out_of_memory, "device_memory", fail)
    rank.watch._note_out_of_memory(OutOfMemory(0, 1.0, 1.0, 0.0))
    assert "no allocator" in capfd.readouterr().err


def test_folder_that_cannot_be_written_is_named_in_the_line(rank: Rank) -> None:
    """The numbers are in the log at least."""
    rank.layout.log.parent.rmdir()
    rank.left_mb = 0
    rank.run(4)
    assert "more cannot be written: " in rank.warnings[0]


def test_ended_session_takes_no_failed_allocations(rank: Rank) -> None:
    """Torch keeps the observer; the next session of the process uses it again."""
    rank.run(2)
    assert out_of_memory.OBSERVER.act is not None
    rank.watch.end()
    rank.run(4)  # the journal's thread ends later
    assert out_of_memory.OBSERVER.act is None
