"""The watch of a process: how many records it writes, and what is in them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.requests.inbox import Inbox
from dynprof.requests.request import Edit
from dynprof.runtime.error_boundary import ErrorBoundary
from dynprof.runtime.layout import Layout
from dynprof.runtime.rank import Rank
from dynprof.watch import slow_steps
from dynprof.watch.resources import Usage
from dynprof.watch.sampler import Sample, SlowStep
from dynprof.watch.slow_steps import SlowSteps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Log:
    """A journal that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.warnings: list[str] = []
        self.info = self.error = self.lines.append
        self.events = self
        self.reported: list[tuple[str, str, int]] = []

    def warning(self, text: str) -> None:
        """Keep a warning."""
        self.lines.append(text)
        self.warnings.append(text)

    def report(self, kind: str, text: str, *, step: int) -> None:
        """Keep an event."""
        self.reported.append((kind, text, step))

    def set_status(self, **_: object) -> None:
        """Keep nothing."""


class Watch:
    """A watch whose slow steps the test makes."""

    def __init__(self, root: Path) -> None:
        self.log, self.root, self.requests = Log(), root, list[bytes]()
        self.triggers: list[str] = []
        self.slow_steps = SlowSteps(
            lambda: Layout(root, 3, "host", 42),
            lambda: Rank(3, 8, "test"),
            Inbox(lambda: None),
            self.log,  # type: ignore[arg-type]
            ErrorBoundary(self.log),
            at_start=b'{"active": 7, "cancel": true, "start_step": 9}',
            is_busy=lambda: True,  # so that only the test makes slow steps
            request=self._request,
        )
        self.slow_steps.begin()

    def _request(self, config: bytes, trigger: str) -> str:
        self.requests.append(config)
        self.triggers.append(trigger)
        return "" if len(self.requests) == 1 else "another one is open"

    def set(self, **watch: Any) -> None:
        """Save the watch."""
        self.slow_steps.take(Edit(json.dumps({"active": 7, "watch": watch}).encode(), 1.0))

    def step(
        self, number: int, *, is_sampled: bool = True, ms: int = 100, place: int | None = None
    ) -> None:
        """Make a slow step, and wait for its record.

        Args:
            number: The step.
            is_sampled: Whether there is a sample in it.
            ms: How long it takes.
            place: The line of code, which is that of no other step by default.
        """
        now_ns = time.perf_counter_ns()
        sampler = self.slow_steps._sampler
        assert sampler
        if is_sampled:
            for one in [one for one in sampler.ring if not one.is_regular]:
                sampler.ring.remove(one)  # the steps before, in the same time
            used, line = Usage(0, 0, 0, 0, 0), number if place is None else place
            code = compile("pass", f"/job/{line}.py", "exec")
            sampler.codes[id(code)] = code
            stack = ((1, (id(code), 0)),)
            sampler.ring.append(Sample(now_ns - 10**6, number, False, stack, (), used))
        self.slow_steps._on_slow(SlowStep(number, now_ns - ms * 10**6, now_ns, 10**7, 1))
        if writer := self.slow_steps._writer:
            writer.join()

    def records(self) -> list[dict[str, Any]]:
        """Return the records by step."""
        found = [json.loads(path.read_text()) for path in self.root.rglob("*.json")]
        return sorted(found, key=lambda one: int(one["step"]))


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    """Return a watch that is ended after the test."""
    made = Watch(tmp_path)
    yield made
    made.slow_steps.end(1.0)


def test_a_record_has_the_step_the_rank_and_a_page(watch: Watch) -> None:
    """The page is next to it, and the status names it."""
    watch.set(slower_than=2)
    watch.step(12)
    (record,) = watch.records()
    shown = {key: record[key] for key in ("step", "rank", "world_size", "ms", "usual_ms", "cause")}
    assert shown == {
        "step": 12, "rank": 3, "world_size": 8, "ms": 100, "usual_ms": 10, "cause": "code",
    }  # fmt: skip
    status = watch.slow_steps.status()
    assert status
    assert status.last
    assert (status.slow_steps, status.records) == (1, 1)
    ((kind, text, step),) = watch.log.reported
    assert (kind, text, step) == ("slow", watch.log.lines[-1], 12)
    page = (watch.root / status.last.record).read_text()
    assert "step 12 took 100 ms, 10 ms is usual" in page
    assert f"Rank 3 of 8: process 42 on host, with {watch.root}; the step ended at 20" in page
    assert "<p>Look at this line" in page


def test_a_phase_that_no_sample_shows_has_no_time(watch: Watch) -> None:
    """It may have been there: samples are further apart than a phase is long."""
    watch.set(slower_than=2)
    sampler = watch.slow_steps._sampler
    assert sampler
    used, at_ns = Usage(0, 0, 0, 0, 0), time.perf_counter_ns() - 10**9
    sampler.ring.append(Sample(at_ns, 1, True, ((1, ()),), ("forward",), used))
    watch.step(12)
    (page,) = watch.root.rglob("*.html")
    assert "<td>forward</td><td>in no sample</td><td>10.0 ms</td>" in page.read_text()


def test_records_are_limited_by_the_hour_and_in_total(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further slow steps are counted, and the log says once why they have no record."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(slow_steps, "MAX_RECORDS", 5)
    watch.set(slower_than=2, max_per_hour=3)
    for number in range(5):
        watch.step(number)
    assert [one["step"] for one in watch.records()] == [0, 1, 2]
    now_s += 3601
    for number in range(5, 10):
        watch.step(number)
    assert [one["step"] for one in watch.records()] == [0, 1, 2, 5, 6]
    status = watch.slow_steps.status()
    assert status
    assert (status.slow_steps, status.records) == (10, 5)
    said = [line.partition(": ")[2] for line in watch.log.warnings if "counted but not" in line]
    assert said == [
        "watch.max_per_hour is 3; one that takes twice as long as those recorded is still recorded",
        "5 records are written; change watch to write more",
    ]
    watch.set(slower_than=3)
    watch.step(10)
    assert len(watch.records()) == 6


def test_much_longer_steps_are_recorded_beyond_the_limit(watch: Watch) -> None:
    """Many small slow steps must not hide one of seconds; there is a limit for these, too."""
    watch.set(slower_than=2, max_per_hour=2)
    for number in range(4):
        watch.step(number)
    watch.step(4, ms=5000)
    watch.step(5, ms=5000)
    for number in range(6, 20):
        watch.step(number, ms=5000 * 2 ** (number - 5))
    assert [one["step"] for one in watch.records()] == [0, 1, 4, 6, 7, 8, 9]


def test_the_log_says_which_limit_applies_to_steps_that_vary(watch: Watch) -> None:
    """It is not the factor that the config asks for."""
    watch.set(slower_than=1.5)
    sampler = watch.slow_steps._sampler
    assert sampler
    sampler.usual_ns, sampler.limit_ns = 20_000_000, 70_000_000
    sampler._on_raised(sampler)
    line = "the limit for slow steps is 70 ms now, because step times vary"
    assert watch.log.lines[-1] == f"{line}; watch.slower_than alone gives 30 ms"


def test_steps_with_the_same_verdict_share_a_record(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has each, if they are rare; they request no window. A longer one has a record."""
    monkeypatch.setattr(slow_steps, "ALIKE_S", 0.0)
    watch.set(slower_than=2, then={"active": 2})
    for number in range(12):
        watch.step(number, place=1)
    watch.step(12, place=2)
    watch.step(13, place=1, ms=250)
    assert [one["step"] for one in watch.records()] == [0, 12, 13]
    assert len(watch.requests) == 3
    said = [line for line in watch.log.lines if " like step" in line]
    assert [line.partition(" took ")[0] for line in said] == [f"step {n}" for n in range(1, 12)]
    assert "; 11 slow steps like step 0, 12 samples in all (" in said[-1]
    monkeypatch.setattr(slow_steps, "ALIKE_S", 10.0)
    watch.step(14, place=1, ms=250)
    watch.slow_steps.tick()
    assert sum(" like step" in line for line in watch.log.lines) == len(said)
    status = watch.slow_steps.status()
    assert status
    assert (status.slow_steps, status.records) == (15, 3)
    assert status.last
    newest = [one.step for one in (status.last, *status.earlier)]
    assert newest == list(range(14, 14 - slow_steps.MAX_RECENT, -1))


@pytest.mark.parametrize("ends", [False, True])
def test_the_line_about_a_slow_step_does_not_wait_for_the_next_one(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """It comes ten seconds after the last one, or when the watch ends, and once."""
    watch.set(slower_than=2)
    for number in range(3):
        watch.step(number, place=1)
    assert not any(" like step" in line for line in watch.log.lines)
    monkeypatch.setattr(slow_steps, "ALIKE_S", 10.0 if ends else 0.0)
    if ends:
        watch.slow_steps.end(1.0)
    watch.slow_steps.tick()
    watch.slow_steps.tick()
    (said,) = [line for line in watch.log.lines if " like step" in line]
    assert said.startswith("step 2 took ")
    assert "; 2 slow steps like step 0, 3 samples in all (" in said


def test_records_wait_until_the_budget_has_covered_the_former_ones(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few are written at once, and a much longer step always."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(time, "thread_time", lambda: 0.03)
    watch.set(slower_than=2, budget_percent=1)
    for number in range(5):
        watch.step(number)
    watch.step(5, ms=200)
    assert [one["step"] for one in watch.records()] == [0, 1, 5]
    now_s += 15
    watch.step(6)
    assert [one["step"] for one in watch.records()] == [0, 1, 5, 6]


def test_the_window_after_a_slow_step_has_the_settings_of_the_file(watch: Watch) -> None:
    """It begins at the next step; a window that cannot be requested is logged."""
    watch.set(slower_than=2, then={"active": 2})
    watch.step(1)
    watch.step(2)
    assert json.loads(watch.requests[0]) == {"active": 2, "warmup": 0, "with_stack": False}
    assert watch.triggers == ["slow step 1 of rank 3", "slow step 2 of rank 3"]
    assert "after slow step 1, 2 steps are requested" in watch.log.lines
    assert "after slow step 2, no window is requested: another one is open" in watch.log.lines


def test_a_record_that_cannot_be_written_is_logged(watch: Watch) -> None:
    """The watch continues, and nothing reaches the training."""
    watch.set(slower_than=2)
    (watch.root / "slow_steps").write_text("in the way")
    watch.step(1)
    assert any("writing the record of a slow step failed" in line for line in watch.log.lines)
    (watch.root / "slow_steps").unlink()
    watch.step(2)
    assert [one["step"] for one in watch.records()] == [2]


def test_a_slow_step_without_a_sample_is_only_counted(watch: Watch) -> None:
    """A record without a cause helps no reader, and does not count for the limit."""
    watch.set(slower_than=2, max_per_hour=1)
    watch.step(1, is_sampled=False)
    watch.step(2)
    assert [one["step"] for one in watch.records()] == [2]
    status = watch.slow_steps.status()
    assert status
    assert (status.slow_steps, status.records, status.unexplained) == (2, 1, 1)


def test_the_log_counts_slow_steps_without_a_known_cause(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most once in ten seconds, with the reasons."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    watch.set(slower_than=2)
    sampler = watch.slow_steps._sampler
    assert sampler
    said: list[str] = []
    for number in range(5):
        watch.step(number, is_sampled=False)
        watch.slow_steps.tick()
        said.append(watch.log.lines[-1])
        sampler._overdue_debt_s = 1.0 if number >= 2 else 0.0
    first = "1 slow step has no record and no known cause: no sample covers the additional"
    assert said[0].startswith(f"{first} time, because the sampler did not get a CPU")
    assert set(said) == {said[0]}
    now_s += 10
    watch.slow_steps.tick()
    watch.slow_steps.tick()
    assert watch.log.warnings == [said[0], watch.log.lines[-1]]
    before, _, reasons = watch.log.lines[-1].partition(": ")
    said = reasons.split("; ")
    assert before == "4 slow steps have no record and no known cause"
    unseen = "for 2, no sample covers the additional time, because"
    assert sorted(said) == [
        f"{unseen} the sampler did not get a CPU or the GIL in time",
        f"{unseen} watch.budget_percent allows no more",
    ]


def test_a_save_without_the_section_switches_the_watch_off_with_a_warning(watch: Watch) -> None:
    """The line names the cause; ``arm --no-watch`` leaves an empty section, and no warning."""
    off = "the watch for slow steps is off"
    watch.set(slower_than=2)
    watch.set()
    assert (watch.log.lines[-1], watch.log.warnings) == (off, [])
    watch.set(slower_than=2)
    said = watch.slow_steps.take(Edit(b'{"active": 7}', 1.0))
    assert said == f"{off}: the saved config has no watch"
    assert watch.log.warnings == [f"{said}; dynprof arm --watch switches it on"]
    watch.slow_steps.take(Edit(b'{"active": 8}', 1.0))
    assert len(watch.log.warnings) == 1
