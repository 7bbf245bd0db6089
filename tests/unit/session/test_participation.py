"""What a rank tells its leader of itself."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dynprof.backends.base import Blocked
from dynprof.coordination.job_group import Begun
from dynprof.coordination.messages import (
    Cancellation,
    Mark,
    Opening,
    Proposal,
    Reply,
    Withdrawal,
)
from dynprof.coordination.participant import answer
from dynprof.coordination.wire import message_of, to_text
from dynprof.requests.edits import Edit
from dynprof.session import known_numbers
from dynprof.session.job_windows import JobWindows
from tests.fake_job import Job

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.coordination.coordinator import Coordinator
    from dynprof.coordination.job_group import JobGroup
    from dynprof.requests.request import Request
    from dynprof.windows.loop import Loop


class Group:
    """A process group in which each step begins as many collectives as its number."""

    def __init__(self, job: Job, rank: int = 0) -> None:
        self._job, self.rank = job, rank

    def collectives(self) -> Begun:
        """Return how many there have been."""
        return Begun(sum(range(self._job.session.inbox.step)), is_exact=True)


def test_a_mark_tells_what_its_own_step_took(job: Job) -> None:
    """Two boundaries that follow each other are looked at, then none until somebody asks again."""
    member = job.session._member
    member.group = cast("JobGroup", Group(job))
    job.step(4)
    assert member.where(0).mark is None
    job.step(5)
    assert member.where(0).mark == Mark(6, sum(range(6)), 5, is_exact=True)
    job.step(1)
    member.where(0)
    job.step(1)
    assert member.where(0).mark == Mark(11, sum(range(11)), 10, is_exact=True)


def test_a_script_that_skips_numbers_is_not_looked_at_each_step(job: Job) -> None:
    """It has no mark."""
    member = job.session._member
    member.group = cast("JobGroup", Group(job))
    assert member.where(0).mark is None
    for number in range(8, 80, 8):
        job.step()
        job.session.set_step(number)
    assert not job.session.inbox.due
    assert member.where(0).mark is None


def test_what_torch_raises_amid_a_step_stays_in_the_log(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group may go away on another thread; the script never hears of that from ``step()``."""

    def fail(group: Group) -> Begun:
        del group
        raise TypeError("no such group")

    monkeypatch.setattr(Group, "collectives", fail)
    member = job.session._member
    member.group = cast("JobGroup", Group(job))
    for _ in range(2):
        assert member.where(0).mark is None
        job.step(2)
    assert job.log().count("failed: TypeError: no such group") == 1


@pytest.mark.parametrize("where", ["plan", "serve"])
def test_what_dynprof_fails_at_is_said_to_the_leader_and_answered(
    job: Job, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """As a working directory that is gone; the next proposal is considered as any."""
    member, edits = job.session._member, job.session._edit_handler

    def fail(*given: object) -> None:
        raise FileNotFoundError(f"no such folder, {len(given)}")

    with monkeypatch.context() as patch:
        patch.setattr(edits, where, fail)
        reply = member.consider(Proposal(1, '{"active": 3}', 1.0, 0.0))
        if where == "serve":
            reply = member.open_at(Opening(1, 5, {}))
    failed = "dynprof failed at it: FileNotFoundError: no such folder, 2"
    assert (reply.problem, reply.takes_part) == (failed, False)
    (answer,) = job.session.status().edits
    assert (answer.outcome, answer.text) == ("refused", failed)
    assert member.consider(Proposal(2, '{"active": 3}', 2.0, 0.0)).takes_part
    assert member.open_at(Opening(2, 5, {})).problem == ""


@pytest.mark.parametrize("edited_at_s", [-1e18, -1.0, 1e300, float("inf"), float("nan")])
def test_the_clock_of_the_leader_may_say_anything(job: Job, edited_at_s: float) -> None:
    """What is saved there is recorded all the same, in a folder that has a name."""
    member = job.session._member
    assert member.consider(Proposal(1, '{"active": 2}', edited_at_s, 0.0)).takes_part
    assert member.open_at(Opening(1, 3, {})).problem == ""
    job.step(8)
    (manifest,) = job.manifests()
    assert manifest.complete
    year = "9999" if edited_at_s > 0 else "1970"
    assert manifest.request.edited_at.startswith(year)
    assert [path.name for path in job.root.glob("step_*")] == [f"step_3-4_{year}0101T000000Z"]


def test_a_new_leader_counts_its_requests_from_one_again(job: Job) -> None:
    """What it proposes is what it says, not what the leader before proposed by that number."""
    member = job.session._member
    for active, edited_at_s in ((3, 1.0), (7, 2.0)):
        text = f'{{"active": {active}}}'
        assert member.consider(Proposal(1, text, edited_at_s, 0.0)).takes_part
        assert member.open_at(Opening(1, 100, {})).problem == ""
        waiting = job.session.inbox.waiting
        assert waiting
        assert waiting.config.active == active
        member.left_alone("nobody leads the ranks any more")


def test_a_window_that_opens_between_two_looks_is_waited_for(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request is agreed on once it is over, and not refused as it comes too late then."""
    member = job.session._member
    member.consider(Proposal(1, '{"active": 30}', 1.0, 0.0))
    member.open_at(Opening(1, 5, {}))
    occupied = type(job.session._loop).occupied

    def look(loop: Loop) -> bool:
        """Return what was so a moment ago."""
        seen = cast("bool", occupied.__get__(loop))
        job.step(10)
        return seen

    monkeypatch.setattr(type(job.session._loop), "occupied", property(look))
    reply = member.consider(Proposal(2, '{"active": 2}', 2.0, 0.0))
    assert (reply.problem, reply.busy) == ("", "its window before is not closed and saved")


def test_a_window_that_is_just_open_is_seen(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may look at any moment of its opening."""
    loop = job.session._loop

    def not_yet(loop: Loop) -> None:
        """Return what was so a moment ago."""
        loop._claimed = None

    assert not loop.busy
    loop._claimed = cast("Request", object())
    monkeypatch.setattr(type(loop), "_open", property(not_yet), raising=False)
    assert loop.busy


def test_who_parts_says_of_each_window_what_is_news(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that was saved as the next was agreed on, the leader may not have asked since."""
    member = job.session._member
    for number in (1, 2):
        member.consider(Proposal(number, '{"active": 3}', float(number), 0.0))
        member.open_at(Opening(number, job.session.inbox.step + 1, {}))
        job.step(6 if number == 1 else 0)
    parting = member.parting()
    assert {number: one.outcome for number, one in parting.items()} == {1: "saved", 2: "waiting"}
    assert parting[1].capture
    assert member.parting().keys() == {1, 2}  # the leader may have stopped before it heard that
    monkeypatch.setattr(known_numbers, "NEWS_S", 0.0)
    assert member.parting().keys() == {2}


def test_what_others_have_superseded_is_not_waited_with(job: Job) -> None:
    """What is open already, and what they did not mean, goes on."""
    member = job.session._member

    def outcomes() -> list[str]:
        return [member.where(number).outcome for number in (1, 2)]

    member.consider(Proposal(1, '{"active": 3}', 1.0, 0.0))
    member.open_at(Opening(1, job.session.inbox.step + 1, {}))
    job.step(2)
    member.consider(Proposal(2, '{"active": 3}', 2.0, 0.0))
    member.open_at(Opening(2, job.session.inbox.step + 1000, {}))
    member.wait_no_more_with([(1, 1), (3, 3)])
    assert outcomes() == ["open", "waiting"]
    member.wait_no_more_with([(1, 2)])
    assert outcomes() == ["open", "superseded"]
    member.wait_no_more_with([(1, 2)])
    job.step(6)
    assert outcomes() == ["saved", "superseded"]


def test_a_request_has_the_number_that_the_leader_gives_it(job: Job) -> None:
    """Also where this rank has had fewer edits; its own go on from there, and cancels too."""
    member = job.session._member
    member.group = cast("JobGroup", Group(job, rank=1))
    job.edit(active=2)
    assert member.consider(Proposal(5, '{"active": 3}', 2.0, 0.0)).newest == 5
    member.open_at(Opening(5, 100, {}))
    job.edit(active=2)
    member.cancel(Cancellation(9, '{"cancel": true}', 4.0))
    assert [one.number for one in job.session.status().edits] == [1, 5, 6, 9]
    assert member.where(5).outcome == "superseded"
    assert "where rank 0 runs" not in job.log()


def test_a_leader_counts_on_from_what_others_have_used(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank served edits of its own before; the next request has a number that is new on all."""
    parts, member = job.session._agreements, job.session._member
    warn, attempt = parts._journal.warning, parts._wall.attempt
    windows = JobWindows(parts._process, 2, "rank 0", attempt, parts._deliveries, warn)
    leads = SimpleNamespace(leads=True, take_back=list, propose=lambda *_: None, failed=False)
    parts._windows, parts._coordinator = windows, cast("Coordinator", leads)
    monkeypatch.setattr(parts, "_look_for_a_group", lambda: None)
    numbers = []
    for heard in ({0: Reply(0)}, {0: Reply(0, newest=1), 1: Reply(1, newest=7)}):
        windows.hear(0, heard)
        parts.take(Edit(b'{"active": 3}', 1.0))
        numbers.append(member.where(0).newest)
    assert numbers == [1, 8]


def test_a_number_that_is_taken_here_is_said_to_be_another(job: Job) -> None:
    """The leader has not heard of this rank's own edits yet, or counts from one again."""
    member = job.session._member
    member.group = cast("JobGroup", Group(job, rank=1))
    for active in (1, 2, 3):
        job.edit(active=active)
    assert member.consider(Proposal(2, '{"active": 4}', 2.0, 0.0)).takes_part
    member.open_at(Opening(2, 100, {}))
    assert [one.number for one in job.session.status().edits] == [1, 2, 3, 4]
    assert "request 4 here is request 2 where rank 0 runs" in job.log()
    assert member.where(2).outcome == "waiting"


def test_a_rank_waits_to_agree_while_its_backend_would_refuse(job: Job) -> None:
    """What the training thread alone can see, a graph capture, does not count there."""
    member = job.session._member
    job.backend.in_the_way = "a graph is being captured"
    assert member.consider(Proposal(1, '{"active": 2}', 1.0, 0.0)).busy == ""
    job.backend.blocked = (Blocked("another profiler is on", "refused"),)
    assert member.consider(Proposal(2, '{"active": 2}', 2.0, 0.0)).busy == "another profiler is on"


def test_an_agreed_step_that_passes_in_a_graph_capture(job: Job) -> None:
    """The others have recorded other steps by then: this rank has no part in their window."""
    member, admission = job.session._member, job.session._loop.admission
    member.consider(Proposal(1, '{"active": 2}', 1.0, 0.0))
    member.open_at(Opening(1, 5, {}))
    admission._waited = (1, "a graph is being captured")
    job.backend.in_the_way = "a graph"
    job.step(7)
    job.backend.in_the_way = None
    job.step(5)
    (answer,) = job.session.status().edits
    assert (answer.outcome, job.manifests()) == ("refused", [])
    assert "5" in answer.text


@pytest.mark.parametrize("when", ["as they agree", "while it waits"])
@pytest.mark.parametrize("number", [2, 600])
def test_a_rank_that_goes_on_from_another_number_records_no_agreed_window(
    job: Job, number: int, when: str
) -> None:
    """The step of that number is another iteration than that of the others: it refuses at once."""
    member = job.session._member
    job.step(20)
    member.consider(Proposal(1, '{"active": 2}', 1.0, 0.0))
    if when == "while it waits":
        member.open_at(Opening(1, 500, {}))
    job.session.set_step(number)
    if when == "as they agree":
        member.open_at(Opening(1, number + 3, {}))
    job.step(1)
    told = member.where(1)
    assert (told.outcome, "were numbered anew after" in told.why) == ("refused", True)
    job.step(8)
    assert job.manifests() == []
    member.consider(Proposal(2, '{"active": 2}', 2.0, 0.0))
    member.open_at(Opening(2, job.session.inbox.step + 3, {}))
    job.session.set_step(job.session.inbox.own)
    job.step(8)
    assert job.manifests()[0].complete


def test_an_agreed_step_is_about_the_numbers_that_the_leader_has_given(job: Job) -> None:
    """Its own renumbering comes with it; a request of this rank alone is about the newest ones."""
    member = job.session._member
    member.group = cast("JobGroup", Group(job, 1))
    job.step(4)
    member.consider(Proposal(1, '{"active": 2}', 1.0, 0.0))
    member.open_at(Opening(1, 110, {}, {1: 100}))
    job.step(10)
    assert job.manifests()[0].steps.first == 110
    job.edit(active=2, start_step=900)
    job.session.set_step(898)
    job.step(6)
    assert [one.steps.first for one in job.manifests()] == [110, 900]


def test_a_cancel_of_what_is_being_agreed_on_says_that_it_disarms(job: Job) -> None:
    """And the next one that there is nothing."""
    member = job.session._member
    member.group = cast("JobGroup", Group(job, 1))
    member.consider(Proposal(1, '{"active": 2}', 1.0, 0.0))
    member.withdraw(Withdrawal(1, ("disarmed by request 2",), outcome="disarmed"))
    for number in (2, 3):
        member.cancel(Cancellation(number, '{"cancel": true}', float(number)))
    answers = {one.number: one.text for one in job.session.status().edits}
    assert answers[2] == "cancel, disarms what there is"
    assert "nothing is open or waiting" in answers[3]


def test_a_cancel_that_is_said_again_for_others_cancels_nothing_more(job: Job) -> None:
    """What was agreed on since is another one."""
    member = job.session._member
    cancellation = Cancellation(2, '{"cancel": true}', 2.0)
    for number in (1, 3):
        member.consider(Proposal(number, '{"active": 3}', float(number), 0.0))
        member.open_at(Opening(number, 100, {}))
        member.cancel(cancellation)
    assert [member.where(number).outcome for number in (1, 3)] == ["disarmed", "waiting"]
    member.cancel(Cancellation(4, '{"cancel": true}', 4.0))
    assert member.where(3).outcome == "disarmed"


def test_what_the_leader_has_refused_as_it_was_saved_is_answered_here_once(job: Job) -> None:
    """Nobody proposes it: who follows the request hears of it from each rank, with the reason."""
    member = job.session._member
    for _ in range(2):
        member.withdraw(Withdrawal(4, ("rank 0 has refused it: no such place",), '{"active": 2}'))
    (answer,) = job.session.status().edits
    assert (answer.number, answer.outcome) == (4, "refused")
    assert answer.text == "rank 0 has refused it: no such place"
    assert job.session.status().problems == ()
    job.edit(active=2)
    job.step(4)
    assert [one.request.number for one in job.manifests()] == [5]


@pytest.mark.parametrize("rules", [(), ("listed",)])
@pytest.mark.parametrize(
    "asked",
    [
        {"prof_dir": "{tmp}/elsewhere"},
        {"storage": {"scratch_dir": "{tmp}/elsewhere"}},
        {"prof_dir": "s3://bucket/captures"},
    ],
)
def test_what_comes_over_the_store_is_recorded_where_the_script_lists_it(
    tmp_path: Path, asked: dict[str, object], rules: tuple[str, ...]
) -> None:
    """Whatever the rights to the config here: another process may have written the proposal."""
    job = Job(tmp_path / "prof_config")
    text = json.dumps({"active": 1, **asked}).replace("{tmp}", str(tmp_path))
    (job.root / "profiler_config.json").write_text(text)  # and only this user can change it
    for place in (job.root / "profiler_config.json", job.root, tmp_path):
        place.chmod(0o700)
    process = job.session._process
    if rules:
        process.layout = replace(
            process.layout, prof_dirs=(tmp_path / "elsewhere",), urls=("s3://bucket",)
        )
    member = job.session._member
    said = message_of(to_text(Proposal(1, text, 1.0, 0.0)).encode())
    reply = answer(member, said)
    if rules:
        assert "another rank" not in reply.problem
        return
    assert "another rank asks for it, over the job's store; allow it on every rank" in reply.problem
    assert "init(prof_dirs=[...]) or DYNPROF_PROF_DIRS" in reply.problem
    answer(member, Opening(1, 3, {}))
    job.step(8)
    assert not (tmp_path / "elsewhere").exists()
    assert job.session.status().edits[-1].outcome == "refused"
