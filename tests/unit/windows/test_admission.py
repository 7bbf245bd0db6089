"""Reasons that delay or refuse a window before it opens or ends a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.backends.base import Blocked

if TYPE_CHECKING:
    from tests.fake_job import Job


def test_a_later_step_is_waited_for(job: Job) -> None:
    """Nothing opens before the start step, and the window opens exactly there."""
    job.edit(start_step=20, active=1)
    job.step(19)
    assert (job.state, job.backend.recordings) == ("waiting", [])
    job.step()
    assert job.state == "recording"
    job.step()
    assert job.backend.recordings[0].steps == [20]


def test_while_a_save_runs_the_next_window_waits(slow_job: Job) -> None:
    """Nothing is recorded while the last capture is being saved; then the request is served."""
    slow_job.edit(active=1)
    slow_job.step(2)
    assert slow_job.state == "saving"
    slow_job.edit(active=1)
    slow_job.step(3)
    assert len(slow_job.backend.recordings) == 1
    slow_job.saving.finish()
    slow_job.step()
    assert len(slow_job.backend.recordings) == 2
    assert "waits, the last capture is being saved" in slow_job.log()


def test_a_start_step_that_went_by_while_waiting_is_refused(slow_job: Job) -> None:
    """A request that could not be served in time is refused with the reason."""
    slow_job.edit(active=1)
    slow_job.step(2)
    slow_job.edit(start_step=4)
    slow_job.step(6)
    slow_job.saving.finish()
    slow_job.step()
    assert len(slow_job.backend.recordings) == 1
    assert "step 4 has begun already" in slow_job.session.status().problems[0]


def test_a_blocked_window_waits(job: Job) -> None:
    """While a graph is captured nothing opens and no step ends."""
    job.backend.in_the_way = "a CUDA graph is being captured"
    job.edit(active=2)
    job.step(3)
    assert job.backend.recordings == []
    job.backend.in_the_way = None
    job.step()
    job.backend.in_the_way = "a CUDA graph is being captured"
    job.step()
    assert job.session.status().progress == (0, 2)
    job.backend.in_the_way = None
    job.step(2)
    assert job.manifests()[0].complete
    assert job.log().count("a CUDA graph is being captured") == 2


def test_a_request_that_can_wait_waits_for_a_cheaper_close(job: Job) -> None:
    """A request for the next step waits for the self-test; a named step is kept."""
    job.backend.blocked = (Blocked("the self-test is still running", "prefer wait"),)
    job.edit(active=1)
    job.step(3)
    assert job.backend.recordings == []
    assert "request 1: waits, the self-test is still running" in job.log()
    job.edit(active=1, start_step=5)
    job.step(3)
    assert job.backend.recordings[0].steps == [5]
    (job.root / "other.json").write_text('{"active": 1}')
    job.session.start(job.root / "other.json")
    assert len(job.backend.recordings) == 2


def test_a_lasting_obstacle_refuses_a_request(job: Job) -> None:
    """The answer has the backend's reason, and the next request works after the cause has gone."""
    job.backend.blocked = (Blocked("another profiler is on", "refused"),)
    job.edit(active=1)
    job.step(2)
    assert job.session.status().edits[-1].outcome == "refused"
    assert "/backend: another profiler is on." in job.log()
    job.backend.blocked = ()
    job.edit(active=1)
    job.step(2)
    assert job.session.status().edits[-1].outcome == "saved"


def test_joined_steps_are_in_the_manifest(job: Job) -> None:
    """The manifest names steps that were joined around a graph capture."""
    job.edit(active=3)
    job.step(2)
    job.backend.in_the_way = "a CUDA graph is being captured"
    job.step()
    job.backend.in_the_way = None
    job.step(3)
    (manifest,) = job.manifests()
    text = "step 3 is counted with step 2: a CUDA graph is being captured"
    assert f"{text}; the manifest names all such steps" in job.log()
    assert manifest.remarks == (text, "the recorded steps are 1, 2, 4")
    assert (manifest.steps.first, manifest.steps.last, manifest.steps.recorded) == (1, 4, 3)
