"""When a process takes part in a group of ranks, and when it leaves."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.ranks import agreements
from dynprof.ranks.agreement_rules import LEADER, Agreement
from dynprof.ranks.messages import Cancellation, Proposal, Report, Withdrawal
from dynprof.ranks.store import JobGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fake_job import Job


class Part:
    """A part in a group, without threads."""

    made: list[Part] = []
    leads, leader, away_s = True, "", 0.0

    def __init__(self, group: JobGroup, *_: object) -> None:
        self.group, self.ended = group, False
        self.proposed: list[Any] = []
        self.given_up: list[tuple[str, str]] = []
        self.made.append(self)

    def begin(self, on_joined: object) -> None:
        """Start nothing."""

    def check_store(self) -> None:
        """Check nothing."""

    changed = ask_store = check_store

    def end(self, *, waits_for_reports: bool = True) -> None:
        """Note the end."""
        self.ended = not waits_for_reports or self.ended

    def wait_until_decided(self, timeout_s: float) -> None:
        """Return at once."""

    def lead(self, action: Callable[[Any], object], **_: object) -> None:
        """Act as the leader."""
        action(self)

    def propose(self, *given: object) -> None:
        """Note the proposal."""
        self.proposed.append(given[0])

    broadcast = propose

    def give_up(self, outcome: str, why: str) -> None:
        """Note the cancel."""
        self.given_up.append((outcome, why))


@pytest.fixture
def store(job: Job, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the store of the job's process group; empty for none."""
    stores: list[object] = []

    def group(*_: object) -> JobGroup | None:
        return JobGroup(0, 2, functools.partial(next, iter(()), stores[0])) if stores else None

    monkeypatch.setattr(agreements, "group_to_agree_in", group)
    monkeypatch.setattr(agreements, "Participant", Part)
    monkeypatch.setattr(Part, "made", [])
    monkeypatch.setattr(agreements, "before_destroy", lambda _: None)
    job.session._member.windows.newest = 6
    assert job.session.status().agreement == ""
    return stores


def test_a_group_that_is_being_destroyed_is_left_once(job: Job, store: list[object]) -> None:
    """Torch still returns the group for a moment. No other rank of it is waited for any more."""
    parts = job.session._agreements
    store.append("one")
    job.edit(active=3)
    assert job.session.status().agreement == "leads"
    parts._windows.conclude(Agreement(7, step=5, ranks=(0, 1)))
    parts._leave_in_order()
    assert parts._windows.pending == {7: {0}}
    parts.check()
    assert [part.ended for part in Part.made] == [True]
    store[0] = "two"
    parts.check()
    assert [part.group.store() for part in Part.made][1:] == ["two"]


def test_ranks_behind_a_lost_store_are_missing_until_they_report(
    job: Job, store: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a minute the record says so; their later reports still count."""
    store.append("one")
    job.edit(active=3)
    windows = job.session._agreements._windows
    assert windows
    windows.conclude(Agreement(7, step=5, ranks=(0, 1)))
    windows.receive(Report(0, 7, outcome="saved"))
    for away_s, pending in ((0.0, {7: {1}}), (59.0, {7: {1}}), (60.0, {})):
        monkeypatch.setattr(Part, "away_s", away_s)
        job.session._agreements.check()
        assert windows.pending == pending
    windows.receive(Report(1, 7, outcome="open"))
    assert windows.pending == {7: {1}}


def test_a_save_between_two_groups_is_served_alone_with_a_log_line(
    job: Job, store: list[object]
) -> None:
    """The ranks have no group then, and may open at different steps."""
    store.append("one")
    job.session._agreements.check()
    job.session._agreements._leave_in_order()
    job.edit(active=3)
    assert job.session.inbox.waiting
    alone = "this rank handles the new request without the others"
    assert f"the process group is gone; {alone}" in job.log()


def test_a_leader_continues_the_numbers_of_other_ranks(job: Job, store: list[object]) -> None:
    """A rank served its own edits before; the next request has a number that is new for all."""
    store.append("one")
    job.edit(active=3)
    job.edit(active=4)
    assert [one.number for one in Part.made[0].proposed] == [7, 8]


def test_the_leader_refuses_a_place_that_its_owner_does_not_allow(
    job: Job, store: list[object]
) -> None:
    """The leader refuses possible proposals of others with the reason, and proposes none."""
    store.append("one")
    (job.root / "profiler_config.json").touch(0o600)
    for mode in (0o777, 0o700):
        job.root.chmod(mode)
        job.edit(active=3, ranks=[1], prof_dir=str(job.root.parent / "elsewhere"))
    said, proposed = Part.made[0].proposed
    assert isinstance(said, Withdrawal)
    assert "/prof_dir: " in said.reasons[0]
    assert "is outside of" in said.reasons[0]
    assert isinstance(proposed, Proposal)
    assert job.session.status().edits[0].outcome == "refused"


def test_ranks_that_the_job_does_not_have_are_in_the_log(job: Job, store: list[object]) -> None:
    """If it has none of them, all ranks hear the refusal."""
    store.append("one")
    for ranks in ("0,9", "7", "all"):
        job.edit(active=3, ranks=ranks)
    proposed, refused, _ = Part.made[0].proposed
    assert isinstance(proposed, Proposal)
    assert "request 7: this job has ranks 0 to 1, no rank 9" in job.log()
    assert isinstance(refused, Withdrawal)
    assert "/ranks: this job has ranks 0 to 1, no rank 7." in refused.reasons[0]


def test_a_cancel_ends_an_agreement_and_reaches_all_ranks(job: Job, store: list[object]) -> None:
    """The leader waits for no rank any longer, and tells each of them to cancel."""
    store.append("one")
    job.edit(active=3)
    job.edit(cancel=True)
    (part,) = Part.made
    assert part.given_up == [("cancelled", "cancelled by request 8")]
    assert isinstance(part.proposed[-1], Cancellation)


def led_save(
    job: Job, store: list[object], monkeypatch: pytest.MonkeyPatch, *, is_early: bool = False
) -> list[float]:
    """Save a file that the leader reads, too; return the clock, which the test moves.

    Args:
        job: A job whose rank follows.
        store: Its store.
        monkeypatch: Replaces the leader.
        is_early: Whether the leader begins after the save.
    """
    now, layout = [1000.0], job.session._process.layout
    leader = agreements.describe_leader(LEADER, layout.host, layout)

    def begin(*_: object) -> None:
        monkeypatch.setattr(Part, "leader", leader)

    monkeypatch.setattr(agreements, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Part, "leads", False)
    if not is_early:
        begin()
    monkeypatch.setattr(Part, "wait_until_decided", begin)
    store.append("one")
    job.edit(active=2)
    return now


@pytest.mark.parametrize("is_early", [True, False])
def test_a_save_is_refused_if_the_leader_began_after_it_and_does_not_propose_it(
    job: Job, store: list[object], monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    """The leader does not treat a file that it finds as a request.

    If it was away before, it may have served the save alone.
    """
    now = led_save(job, store, monkeypatch, is_early=is_early)
    if not is_early:
        job.session._agreements._member.last_message_s = now[0] + 1.0  # as at mark_joined()
    now[0] += agreements.PROPOSED_WITHIN_S
    job.session._agreements.check()
    (answer,) = job.session.status().edits
    assert answer.outcome == "refused"
    assert "did not propose this save; save it again" in answer.text


def test_each_of_two_saves_is_answered_if_the_leader_proposes_the_second_only(
    job: Job, store: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's watcher may have read the file between them, or not."""
    (now_s,) = led_save(job, store, monkeypatch)
    job.edit(active=3)
    member = job.session._agreements._member
    member.answer(Proposal(1, '{"active": 3}', job.clock.wall), 0)
    member.received[0] = '{"active": 3}', now_s
    for _ in range(2):
        job.session._agreements.check()
    assert [(one.number, one.outcome) for one in job.session.status().edits] == [
        (1, "waiting"),
        (2, "superseded"),
    ]


def test_a_silent_leader_is_waited_for(
    job: Job, store: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the rank has lost it, the rank handles its own file without the others."""
    now = led_save(job, store, monkeypatch)
    for seconds in (0, 15, 179):
        now[0] = 1000.0 + seconds
        job.session._agreements.check()
        job.step(3)
        assert (job.manifests(), job.session.status().edits) == ([], ())
    assert "has sent nothing since this file was saved; this rank waits for it" in job.log()
    monkeypatch.setattr(Part, "leader", "")
    job.session._agreements.check()
    job.step(4)
    assert job.manifests()[0].complete
