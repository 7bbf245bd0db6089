"""Saves that change the watch for slow steps: what they switch, and what they request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dynprof.ranks.agreements import Agreements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fake_job import Job

ON = {"slower_than": 2}


@pytest.fixture(autouse=True)
def _no_sampler(job: Job) -> Iterator[None]:
    """End the watch after the test, with its thread."""
    yield
    job.session._slow_steps.end(1.0)


def outcomes(job: Job) -> list[str]:
    """Return the outcome of each edit."""
    return [one.outcome for one in job.session.status().edits]


def test_a_save_that_changes_only_the_watch_requests_no_window(job: Job) -> None:
    """It switches the watch on and off, and the waiting request stays."""
    job.edit(active=2, start_step=50)
    job.edit(active=2, start_step=50, watch=ON)
    assert job.session.status().watch
    job.edit(active=2, start_step=50)
    assert job.session.status().watch is None
    assert outcomes(job) == ["waiting", "watch", "watch"]
    job.edit(active=3, start_step=50, watch=ON)
    assert outcomes(job)[2:] == ["watch", "waiting"]
    assert job.session.status().watch


def test_the_watch_does_not_count_for_cancel(job: Job) -> None:
    """A cancel that was kept while the watch was changed still cancels if it is repeated."""
    job.edit(cancel=True)
    job.edit(cancel=True, watch=ON)
    job.edit(cancel=True, watch=ON)
    assert outcomes(job) == ["cancel", "watch", "cancel"]
    assert job.session.status().watch


def test_an_invalid_save_leaves_the_watch_as_it_is(job: Job) -> None:
    """A limit that is not above the usual time is refused."""
    job.edit(watch=ON)
    job.edit(watch={"slower_than": 1})
    assert job.session.status().watch
    assert outcomes(job)[-1] == "refused"


def test_the_watch_is_on_from_the_start_if_the_file_has_it(job: Job) -> None:
    """A restarted job needs no new save; an invalid file switches nothing on."""
    watch = job.session._slow_steps
    watch._at_start = b'{"watch": {"longer_than_ms": 1}}'
    watch.begin()
    assert job.session.status().watch
    watch.end(1.0)
    watch._at_start = b'{"watch": {"longer_than_ms": '
    watch.begin()
    assert job.session.status().watch is None


def test_a_rank_that_follows_leaves_the_window_to_its_leader(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one rank proposes a window, and none supersedes what an operator has requested."""
    ask: Any = job.session._request_window
    monkeypatch.setattr(Agreements, "part", "follows rank 0 on a")
    assert ask(b'{"active": 2}', "slow step 9") == "this rank follows rank 0 on a"
    monkeypatch.setattr(Agreements, "part", "")
    job.edit(start_step=50)
    assert "another one" in ask(b'{"active": 2}', "slow step 9")
    job.session.inbox.cancel()
    assert ask(b'{"active": 2}', "slow step 9") == ""


@pytest.mark.parametrize("only_notes", [False, True])
def test_steps_are_noted_before_and_after_a_window(job: Job, only_notes: bool) -> None:
    """A window gets its turns, also if its profiler accepts steps later; then notes continue."""
    noted: list[int] = []
    job.backend.only_notes_steps = only_notes
    job.session.inbox.time_steps(lambda: noted.append(job.session.inbox.step))
    job.step(3)
    assert noted == [1, 2, 3]
    job.edit(active=2)
    job.step(3)
    assert [manifest.steps.recorded for manifest in job.manifests()] == [2]
    job.step(2)
    assert noted[-2:] == [7, 8]
    job.session.inbox.time_steps(None)
    job.step()
    assert (noted[-1], job.session.inbox.due) == (8, False)
