"""Log and status for a step that does not end."""

from __future__ import annotations

from logging import LogRecord
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dynprof.journal.status import Status
    from tests.fake_job import Job

BEGINNINGS = ("stuck", "long", "no longer stuck", "the long step", "nothing was written")


def begin(job: Job) -> None:
    """Let the job take its first step."""
    pass_seconds(job, 1)
    job.step()
    pass_seconds(job, 1)


def pass_seconds(job: Job, seconds: int) -> None:
    """Let time pass in which the journal ticks and no step ends."""
    for _ in range(seconds):
        job.clock.advance(1)
        job.session._periodic_checks.tick()


def about_standing(job: Job) -> list[str]:
    """Return the new log lines on a long step."""
    return [line for line in job.log().splitlines() if line.startswith(BEGINNINGS)]


def test_a_step_that_takes_too_long_is_logged_once_and_again_as_it_ends(job: Job) -> None:
    """The line has the main thread's place, which the status shows until then as well."""
    begin(job)
    for allowed_s in (30, 196):  # 1.5 times the longest
        job.step()
        pass_seconds(job, 1)
        step = job.session.inbox.step
        pass_seconds(job, allowed_s)
        assert about_standing(job) == []
        assert bool(job.session.status().stuck_at) == (allowed_s > 30)
        pass_seconds(job, 100)
        (line,) = about_standing(job)
        assert line.startswith(
            f"stuck: step {step} has taken {allowed_s + 1} s (limit {allowed_s} s); the "
        )
        assert f"dynprof dump {job.root}" in line
        assert f"called at {__file__}:" in line
        assert f"called at {__file__}:" in job.session.status().stuck_at
        job.step()
        pass_seconds(job, 1)
        assert about_standing(job) == [
            f"no longer stuck: step {step} ended after {allowed_s + 101} s"
        ]
        assert job.session.status().stuck_at == ""


def move(job: Job, seconds: int, cpu: float = 0.5, each_s: int = 1) -> None:
    """Let time pass in which the main thread computes, and runs Python code now and then."""
    for second in range(seconds):
        job.main_runs = second % each_s == 0
        job.main_cpu_s += cpu
        pass_seconds(job, 1)
    job.main_runs = False


def test_a_long_step_that_runs_is_not_stuck(job: Job) -> None:
    """An evaluation is long. If it hangs, it is stuck within 20 s."""
    begin(job)
    step = job.session.inbox.step
    move(job, 31)
    (line,) = about_standing(job)
    assert line.startswith(
        f"long: step {step} has taken 31 s (limit 30 s); the training thread runs"
    )
    assert job.session.status().training_thread_runs
    assert job.session.status().stuck_at
    pass_seconds(job, 12)
    assert about_standing(job) == []
    pass_seconds(job, 8)
    assert [line[:6] for line in about_standing(job)] == ["stuck:"]
    assert not job.session.status().training_thread_runs
    job.step()
    pass_seconds(job, 1)
    assert about_standing(job) == [f"no longer stuck: step {step} ended after 52 s"]


def test_the_end_of_a_long_step_is_logged(job: Job) -> None:
    """The status forgets that it ran."""
    begin(job)
    step = job.session.inbox.step
    move(job, 40)
    about_standing(job)
    job.step()
    pass_seconds(job, 1)
    assert about_standing(job) == [f"the long step {step} took 41 s"]
    assert not job.session.status().training_thread_runs


def test_a_step_that_runs_for_half_an_hour_is_stuck(job: Job) -> None:
    """A loop without end also runs."""
    begin(job)
    move(job, 1810)
    assert [line[:6] for line in about_standing(job)] == ["long: ", "stuck:"]


def test_a_step_that_computes_in_calls_of_some_seconds_is_not_stuck(job: Job) -> None:
    """Between two calls it runs Python code, as an evaluation of large matrices does."""
    begin(job)
    move(job, 31, cpu=0.95, each_s=5)
    assert [line[:6] for line in about_standing(job)] == ["long: "]


@pytest.mark.parametrize(
    ("cpu", "each_s"),
    [
        pytest.param(0.5, 5, id="a data loader whose worker is dead polls every 5 s"),
        pytest.param(0.001, 1, id="a loop sleeps until a file exists"),
        pytest.param(1.0, 10_000, id="a call spins until a device is ready"),
    ],
)
def test_a_step_that_polls_or_spins_is_stuck(job: Job, cpu: float, each_s: int) -> None:
    """Each runs Python code too rarely, or hardly computes."""
    begin(job)
    move(job, 31, cpu, each_s)
    assert [line[:6] for line in about_standing(job)] == ["stuck:"]


def test_the_first_step_may_take_half_an_hour(job: Job) -> None:
    """A compilation does not count as stuck; the status has the place after half a minute."""
    pass_seconds(job, 30)
    assert job.session.status().stuck_at == ""
    pass_seconds(job, 1770)
    assert f"called at {__file__}:" in job.session.status().stuck_at
    assert about_standing(job) == []
    pass_seconds(job, 1)
    assert len(about_standing(job)) == 1


def test_an_ending_process_has_no_stuck_step(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ending process waits for captures; the status says so, and the log has no long step."""
    begin(job)
    pass_seconds(job, 31)
    seen: list[Status] = []

    def wait(_: float) -> bool:
        pass_seconds(job, 60)
        seen.append(job.session.status())
        return True

    monkeypatch.setattr(job.session._deliveries, "wait", wait)
    about_standing(job)
    job.session.end("the process ended")
    assert about_standing(job) == []
    assert seen[0].stuck_at == ""
    assert seen[0].ending == (
        "the process ended; it waits up to 600 s for what is being saved and sent"
    )


def levels(job: Job) -> list[str]:
    """Return the new log lines on a long step, each with its level."""
    queue, found = job.session._journal._lines, []
    while not queue.empty():
        record = queue.get()
        if isinstance(record, LogRecord) and record.getMessage().startswith(BEGINNINGS):
            found.append(f"{record.levelname} {record.getMessage()}")
    return found


def test_a_pause_of_all_threads_is_logged_afterwards(job: Job) -> None:
    """The process was stopped, or a call held the GIL; a warning if no step takes as long."""
    begin(job)
    job.clock.advance(14)
    pass_seconds(job, 1)
    (line,) = levels(job)
    assert line.startswith("INFO nothing was written for 15 s: the process was stopped")
    pass_seconds(job, 28)
    assert about_standing(job) == []  # the step has taken less than 30 s without the pause
    job.step(5)
    job.clock.advance(40)
    job.step()
    pass_seconds(job, 1)
    gap, end = levels(job)
    assert gap.startswith("WARNING nothing was written for 41 s")
    step = job.session.inbox.step  # those before it ended after the last look, before the pause
    assert end.startswith(f"WARNING no longer stuck: about step {step} ended after ")


def test_a_disk_that_hangs_while_the_job_trains_is_no_long_step(job: Job) -> None:
    """Only this thread waited for it: the log names the silence, and the limit stays."""
    begin(job)
    for _ in range(20):
        job.step(90)
        pass_seconds(job, 1)
    about_standing(job)
    job.step(90)
    for _ in range(40):
        job.clock.advance(1)
        job.step(90)
    pass_seconds(job, 1)
    (line,) = levels(job)
    assert line.startswith("WARNING nothing was written for ")
    assert job.session.status().longest_s == 2
    pass_seconds(job, 31)
    assert [line[:6] for line in about_standing(job)] == ["stuck:"]
