"""A request that waits while a better profiler becomes available."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dynprof.requests.inbox import Inbox
from dynprof.testing import FakeBackend

if TYPE_CHECKING:
    from dynprof.requests.request import Request
    from tests.fake_job import Job


@pytest.fixture
def coming(job: Job) -> Job:
    """Return a job with a waiting request, and a better profiler that is now available."""
    job.edit(active=2, start_step=5)
    process = job.session._process
    job.session._edit_handler._process = replace(
        process, backends=(FakeBackend("new"), job.backend)
    )
    return job


def test_a_request_that_a_step_serves_at_that_moment_does_not_wait(
    coming: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status shows the open window, and not the waiting request again."""
    original = Inbox.replace

    def and_a_step_comes(inbox: Inbox, waiting: Request, better: Request) -> bool:
        done = original(inbox, waiting, better)
        assert inbox.take(better)
        coming.session._journal.report(better.number, "open", "opened at step 5")
        return done

    monkeypatch.setattr(Inbox, "replace", and_a_step_comes)
    coming.session._edit_handler.use_better_profiler()
    (answer,) = coming.session.status().edits
    assert (answer.outcome, answer.text) == ("open", "opened at step 5")


def test_a_later_refusal_stays_in_the_status(coming: Job) -> None:
    """The message belongs to the waiting request, and not to the later edit."""
    coming.edit(active=0)
    problems = coming.session.status().problems
    coming.session._edit_handler.use_better_profiler()
    assert "new (CPU) serves it" in coming.session.status().edits[0].text
    assert coming.session.status().problems == problems
    assert problems
