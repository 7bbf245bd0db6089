"""Whatever fails costs a capture, never the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.errors import BackendError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fake_job import Job


def test_a_manifest_that_cannot_be_written_is_no_capture(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status goes on naming the capture before it; the log says what failed."""
    job.edit(active=1)
    job.step(2)
    before = job.session.status().last_capture

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path), len(text))

    monkeypatch.setattr("dynprof.captures.manifest.write_atomic", full)
    job.edit(active=1)
    job.step(2)
    status = job.session.status()
    assert status.last_capture == before is not None
    assert (status.edits[-1].outcome, status.edits[-1].capture) == ("failed", None)
    assert "rank_0.info.json: no space left on device" in status.edits[-1].text
    monkeypatch.undo()
    job.step(1100)
    job.session._tick()
    assert [m.reason for m in job.manifests()][1:] == [
        "saving it has begun and not ended; a process that was killed leaves it so"
    ]


@pytest.mark.parametrize("what", ["memory_mb", "free_mb"])
def test_a_window_that_fails_before_it_is_open_is_answered(
    job: Job, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Where the process has too many files open, say; the next request is served."""

    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(job.session._process, what, fail)
    job.edit(active=1)
    job.step(2)
    answer = job.session.status().edits[-1]
    assert (answer.outcome, job.session.status().state) == ("failed", "idle")
    assert answer.text == "not opened: too many open files"
    assert not job.session._loop.busy
    monkeypatch.undo()
    job.edit(active=1)
    job.step(2)
    assert job.session.status().edits[-1].outcome == "saved"


@pytest.mark.parametrize("call", ["prepare", "start", "begin_step", "close", "save", "discard"])
def test_a_failing_backend_costs_a_capture_never_the_job(job: Job, call: str) -> None:
    """Whatever the backend raises, steps go on, a manifest says why, the next window works."""
    job.backend.fail_at = {call}
    warmup = 3 if call == "discard" else 0
    job.edit(active=2, warmup=warmup)
    job.step()
    if call == "discard":
        job.edit(cancel=True)
    job.step(5)
    manifest = job.manifests()[0]
    assert not manifest.complete
    if call != "discard":
        assert f"{call} was told to fail" in manifest.reason
    assert manifest.trace is None
    assert job.backend.running == 0
    assert f"{call} was told to fail" in str(job.session.status().last_error)
    assert "Traceback" in job.log()
    job.backend.fail_at = set()
    job.edit(active=1)
    job.step(2)
    assert job.manifests()[-1].complete


def test_a_window_of_which_not_even_a_manifest_can_be_made_is_answered(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for the request is told that it failed, and why."""

    def unknown() -> dict[str, str]:
        raise LookupError("no version")

    monkeypatch.setattr(job.backend, "versions", unknown)
    job.edit(active=1)
    job.step(5)
    (answer,) = job.session.status().edits
    assert answer.outcome == "failed"
    assert "LookupError: no version" in answer.text


def test_a_backend_that_says_why_it_cannot_is_a_refusal(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy profiler is refused in words, without a traceback."""

    def busy(*_: object) -> None:
        raise BackendError("another profiler is active")

    monkeypatch.setattr(job.backend, "prepare", busy)
    job.edit(active=1)
    job.step(2)
    assert job.session.status().problems == ("/backend: another profiler is active.",)
    assert "Traceback" not in job.log()
    assert not job.session.inbox.due


def test_a_backend_that_keeps_failing_rests_until_the_next_edit(job: Job) -> None:
    """After three failures ``start()`` no longer tries; an edit does."""
    (job.root / "other.json").write_text('{"active": 1}')
    job.backend.fail_at = {"close"}
    for _ in range(5):
        job.session.start(job.root / "other.json")
        job.step(2)
    assert len(job.backend.recordings) == 3
    assert "rests until the next edit" in job.session.status().problems[0]
    job.edit(active=1)
    job.step(2)
    assert len(job.backend.recordings) == 4


def test_refusals_are_no_failures(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that asks beside its own profiler again and again is served once that has ended."""
    (job.root / "other.json").write_text('{"active": 1}')

    def busy(*_: object) -> None:
        raise BackendError("another profiler is active")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(job.backend, "prepare", busy)
        for _ in range(5):
            job.session.start(job.root / "other.json")
            assert job.session.status().problems == ("/backend: another profiler is active.",)
    job.session.start(job.root / "other.json")
    job.step(2)
    assert job.manifests()[-1].complete


def test_only_failures_in_a_row_count(job: Job) -> None:
    """A window that works in between clears the count."""
    (job.root / "other.json").write_text('{"active": 1}')
    for fails in (True, True, False, True, True, False):
        job.backend.fail_at = {"close"} if fails else set()
        job.session.start(job.root / "other.json")
        job.step(2)
    assert len(job.backend.recordings) == 6


def test_a_backend_that_cannot_be_prepared_leaves_nothing_open(job: Job) -> None:
    """A later cancel finds nothing to close."""
    job.backend.fail_at = {"prepare"}
    job.edit(active=1)
    job.step()
    job.log()
    job.edit(cancel=True)
    assert "cancel, but nothing is open or waiting" in job.log()
