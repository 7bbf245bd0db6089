"""Any failure costs a capture, never the job."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from dynprof.backends import Backend, Recording
from dynprof.errors import BackendError
from dynprof.testing import FakeBackend, FakeRecording

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fake_job import Job


def test_a_manifest_that_cannot_be_written_is_no_capture(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status still names the previous capture; the log has the error."""
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
        "saving began and has not ended; the process may have been killed"
    ]


@pytest.mark.parametrize("what", ["memory_mb", "free_mb"])
def test_a_window_that_fails_before_it_is_open_is_answered(
    job: Job, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The process may have too many open files; the next request works."""

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


METHODS = [
    (fake, name)
    for fake, protocol in ((FakeRecording, Recording), (FakeBackend, Backend))
    for name, member in vars(protocol).items()
    if callable(member) and not name.startswith("_")
]


@pytest.mark.parametrize(("fake", "call"), METHODS)
def test_a_failing_backend_costs_a_capture_never_the_job(
    job: Job, monkeypatch: pytest.MonkeyPatch, fake: type, call: str
) -> None:
    """After any exception steps continue, an answer has the reason, and the next window works."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"{call} was told to fail")

    is_dropped = call in ("discard", "abandon")
    with monkeypatch.context() as failing:
        failing.setattr(fake, call, fail)
        job.edit(active=2, warmup=3 if is_dropped else 0)
        if call == "abandon":  # only if the thread of the window has ended
            thread = threading.Thread(target=job.step)
            thread.start()
            thread.join()
        job.step()
        if call == "discard":
            job.edit(cancel=True)
        job.step(5)
        (answer,) = job.session.status().edits[:1]
    log = job.log()
    assert answer.outcome in ("failed", "refused", "saved")
    assert not [manifest for manifest in job.manifests() if manifest.complete]
    assert job.state == "idle"
    assert f"{call} was told to fail" in str(job.session.status().last_error)
    assert "Traceback" in log
    if not is_dropped:
        assert f"{call} was told to fail" in answer.text
    job.edit(active=1)
    job.step(2)
    assert job.manifests()[-1].complete
    assert job.session.status().last_error is None
    assert "given up" not in job.log()


def test_a_window_without_a_manifest_is_answered(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting client gets the failure and the reason."""

    def unknown() -> dict[str, str]:
        raise LookupError("no version")

    monkeypatch.setattr(job.backend, "versions", unknown)
    job.edit(active=1)
    job.step(5)
    (answer,) = job.session.status().edits
    assert answer.outcome == "failed"
    assert "LookupError: no version" in answer.text


def test_a_busy_backend_is_a_refusal(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy profiler is refused with a reason, without a traceback."""

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
    assert "the next save tries it again" in job.session.status().problems[0]
    job.edit(active=1)
    job.step(2)
    assert len(job.backend.recordings) == 4


def test_a_backend_whose_check_fails_counts_as_failing(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request is given up; after three the backend rests until the next edit."""
    (job.root / "other.json").write_text('{"active": 1}')

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no answer")

    with monkeypatch.context() as failing:
        failing.setattr(job.backend, "blocked_by", fail)
        for _ in range(3):
            job.session.start(job.root / "other.json")
            job.step()
            assert job.state == "idle"
            assert "no answer" in job.session.status().edits[-1].text
    job.session.start(job.root / "other.json")
    assert "the next save tries it again" in job.session.status().problems[0]
    job.edit(active=1)
    job.step(2)
    assert job.manifests()[-1].complete


def test_refusals_are_not_failures(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that requests repeatedly during its own profiler is served after it."""
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
    """A window that works in between resets the count."""
    (job.root / "other.json").write_text('{"active": 1}')
    for fails in (True, True, False, True, True, False):
        job.backend.fail_at = {"close"} if fails else set()
        job.session.start(job.root / "other.json")
        job.step(2)
    assert len(job.backend.recordings) == 6


def test_a_backend_that_cannot_be_prepared_leaves_nothing_open(job: Job) -> None:
    """A later cancel finds no window."""
    job.backend.fail_at = {"prepare"}
    job.edit(active=1)
    job.step()
    job.log()
    job.edit(cancel=True)
    assert "cancel: nothing is open or waiting" in job.log()
