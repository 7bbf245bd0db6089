"""A window that uses a fallback says so once, as soon as it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.requests.capabilities import inline_close

if TYPE_CHECKING:
    from tests.fake_job import Job

WHY = "the self-test crashed"
TEXT = inline_close(WHY)


def test_a_known_fallback_is_in_the_first_line_of_a_request(job: Job) -> None:
    """The fallback is not repeated in a later line; the manifest has it as a remark."""
    job.backend.inline, job.backend.fallbacks = WHY, (TEXT,)
    job.edit(active=1)
    assert job.session.status().remarks == (TEXT,)
    job.step(2)
    log = job.log()
    assert TEXT in log.partition("request 1: accepted")[2].partition("request 1: ")[0]
    assert log.count(TEXT) == 1
    assert job.manifests()[0].remarks == (TEXT,)


def test_a_fallback_found_at_the_opening_is_logged_then(job: Job) -> None:
    """A self-test that was still running at the request did not end in time."""
    job.backend.fallbacks = (TEXT,)
    job.edit(active=1)
    assert job.session.status().remarks == ()
    job.step(2)
    assert TEXT in job.log().partition("request 1: opened")[2]
    assert job.session.status().remarks == (TEXT,)
    assert job.manifests()[0].remarks == (TEXT,)


def test_a_fallback_that_was_not_needed_is_not_in_the_manifest(job: Job) -> None:
    """The self-test passed between the request and the window."""
    job.backend.inline = WHY
    job.edit(active=1)
    job.step(2)
    assert job.manifests()[0].remarks == ()
    assert job.session.status().remarks == ()


def test_the_status_follows_the_self_test(job: Job) -> None:
    """The status asks again during the self-test, and not after its end."""
    job.backend.is_testing = True
    job.edit(active=1)
    job.backend.inline, job.backend.is_testing = WHY, False
    assert job.session.status().profilers[0].inline == ""
    job.session._tick()
    assert job.session.status().profilers[0].inline == WHY
    job.backend.inline = ""
    job.session._tick()
    assert job.session.status().profilers[0].inline == WHY
