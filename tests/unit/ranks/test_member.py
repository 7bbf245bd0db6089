"""A rank's reactions to its leader's messages, and its own reports."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dynprof.backends.base import Blocked
from dynprof.config import parse_config, template_text
from dynprof.journal.edit_outcomes import MAX_KEPT
from dynprof.ranks.member import narrowed
from dynprof.ranks.messages import (
    Cancellation,
    LeaderMessage,
    LeaderStarted,
    Opening,
    Profiler,
    Proposal,
    Question,
    Reply,
    Withdrawal,
    parse_leader_message,
    to_text,
)
from dynprof.requests.request import LATEST_S, Edit, UnplannedRequest
from dynprof.runtime.layout import window_dir_name
from dynprof.steps.step_numbers import StepNumbers
from tests.fake_job import Job

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.ranks.messages import GivenUp
    from dynprof.ranks.store import JobGroup
    from dynprof.windows.loop import Loop

NOW_S = 1.8e9  # a day in 2027


class Group:
    """A process group in which each step begins this number of collectives."""

    def __init__(self, job: Job, rank: int = 0, each: float = 2) -> None:
        self._job, self.rank, self._each = job, rank, each

    def collectives(self) -> int:
        """Return the number of collectives so far."""
        return int(self._job.session.inbox.step * self._each)


def consider(job: Job, number: int, active: int = 3, at_s: float | None = None) -> Reply:
    """Let a rank consider a proposal."""
    text = f'{{"active": {active}}}'
    at_s = float(number) if at_s is None else at_s
    return job.session._member.answer(Proposal(number, text, at_s), 0)


def open_at(job: Job, number: int, step: int) -> str:
    """Let a rank open at a step; return its problem."""
    return job.session._member.answer(Opening(number, step), 0).problem


def outcome(job: Job, number: int) -> str:
    """Return its report on a request."""
    return job.session._member.answer(Question(number), 0).report.outcome


@pytest.mark.parametrize(
    ("counts", "together"),
    [
        ((0, 20, 40), True),
        ((0, 10, 20), True),
        ((0, 9, 19), True),
        ((0, 2, 4), False),  # with a collective only every few steps, as for a checkpoint's barrier
        ((1, 10, 20), True),  # the first step was seen in its collective, the last one not yet
    ],
)
def test_ranks_whose_steps_have_collectives_step_together(
    job: Job, counts: tuple[int, ...], together: bool
) -> None:
    """Between these counts are 10 steps each."""
    member, left = job.session._member, list(counts)
    member.group = cast("JobGroup", SimpleNamespace(collectives=lambda: left.pop(0), rank=0))
    while left:
        member.count_collectives()
        job.step(10)
    assert member.answer(Question(0), 0).steps_together == together


def test_step_times_are_reported_after_some_steps(job: Job) -> None:
    """The first step does not represent the others: it may have compiled."""
    member, found = job.session._member, []
    for steps in (0, 1, 0, 1, 400, 500, 450):
        job.clock.advance(1)
        job.session.inbox.step += steps
        member._costs.sample()
        found.append(member.answer(Question(0), 0).fast_s)
    assert found == [None, None, None, None, *map(pytest.approx, (1 / 400, 1 / 500, 1 / 500))]


@pytest.mark.parametrize(
    ("named", "recorded"),
    [({}, ["CPU", "CUDA"]), ({"activities": ["CPU"]}, ["CPU"])],
)
def test_ranks_that_agree_record_all_devices_of_the_template(
    named: dict[str, list[str]], recorded: list[str]
) -> None:
    """CPU and NPU mean all devices of the ranks; other activities stay."""
    text = json.dumps({**json.loads(template_text()), **named})
    parsed = parse_config(text.encode())
    asked = UnplannedRequest(Edit(text.encode(), 0.0), parsed.config, parsed, now=False)
    proposal = Proposal(1, text, 0.0, profiler=Profiler("torch", ("CPU", "CUDA")))
    assert narrowed(asked, proposal).config.activities == recorded
    assert narrowed(asked, Proposal(1, text, 0.0)) is asked


@pytest.mark.parametrize("where", ["plan", "serve"])
def test_a_failure_of_dynprof_is_reported_to_the_leader(
    job: Job, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """For example, the working directory is gone. The next proposal is considered as usual."""
    member, edits = job.session._member, job.session._edit_handler

    def fail(*given: object) -> None:
        raise FileNotFoundError(f"no such folder, {len(given)}")

    with monkeypatch.context() as patch:
        patch.setattr(edits, where, fail)
        reply = consider(job, 1, 3, 1.0)
        if where == "serve":
            reply = member.answer(Opening(1, 5), 0)
    failed = "dynprof failed at it: FileNotFoundError: no such folder, 2"
    assert (reply.problem, reply.takes_part) == (failed, False)
    (answer,) = job.session.status().edits
    assert (answer.outcome, answer.text) == ("refused", failed)
    assert consider(job, 2, 3, 2.0).takes_part
    assert open_at(job, 2, 5) == ""


@pytest.mark.parametrize(
    ("edited_at_s", "year"),
    [
        (-1e18, 1970),
        (1e300, 9999),
        (float("nan"), 1970),
        (NOW_S - 3600, 2027),
        (NOW_S + 3600, 2027),
    ],
)
def test_the_clock_of_the_leader_may_have_any_time(job: Job, edited_at_s: float, year: int) -> None:
    """The rank records the agreed steps, in the folder that the leader's clock names."""
    job.clock.wall = NOW_S
    reply = consider(job, 1, 2, edited_at_s)
    assert (reply.takes_part, reply.problem, reply.busy) == (True, "", "")
    assert open_at(job, 1, 3) == ""
    job.step(8)
    (manifest,) = job.manifests()
    assert (manifest.complete, manifest.steps.first, manifest.steps.last) == (True, 3, 4)
    (folder,) = job.root.glob("step_*")
    assert folder.name == window_dir_name(3, 4, min(max(0.0, edited_at_s), LATEST_S))
    assert manifest.request.edited_at.startswith(str(year))


def test_a_proposal_is_refused_if_no_leader_will_open_it(job: Job) -> None:
    """A rank that is left alone says why, and that the config has to be saved again."""
    assert consider(job, 1).takes_part
    job.session._member.refuse_pending("this rank was away")
    (answer,) = job.session.status().edits
    assert (answer.outcome, answer.text) == ("refused", "this rank was away; save it again.")
    assert open_at(job, 1, 5) == ""
    job.step(8)
    assert job.manifests() == []


def test_a_new_leader_counts_its_requests_from_one_again(job: Job) -> None:
    """The number means its own request, and the rank reports nothing on the previous leader's."""
    member = job.session._member
    for number, active, edited_at_s in ((7, 3, 1.0), (1, 5, 2.0), (1, 7, 3.0)):
        assert consider(job, number, active, edited_at_s).takes_part
        assert open_at(job, number, 100) == ""
        waiting = job.session.inbox.waiting
        assert waiting
        assert waiting.config.active == active
        member.refuse_pending("no rank leads any more")
    job.edit(cancel=True)
    assert outcome(job, 1) == "cancelled"
    report = member.news()
    assert report
    assert report.number == 1


def test_a_window_that_opens_between_two_looks_is_waited_for(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request is then agreed after it, and not refused as too late."""
    consider(job, 1, 30, 1.0)
    open_at(job, 1, 5)
    occupied = type(job.session._loop).occupied

    def look(loop: Loop) -> bool:
        """Return the result of a moment ago."""
        seen = cast("bool", occupied.__get__(loop))
        job.step(10)
        return seen

    monkeypatch.setattr(type(job.session._loop), "occupied", property(look))
    reply = consider(job, 2, 2, 2.0)
    assert (reply.problem, reply.busy) == ("", "its previous window is not closed and saved")


def test_an_open_window_is_known_after_any_number_of_requests(job: Job) -> None:
    """A rank that forgot it would seem to have started again."""
    consider(job, 1)
    open_at(job, 1, 1_000_000)
    for number in range(2, MAX_KEPT + 5):
        job.session._member.map_number(number, number)
    assert outcome(job, 1) == "waiting"
    assert len(job.session._member._numbers) < MAX_KEPT + 5


def test_a_request_that_others_superseded_does_not_wait(job: Job) -> None:
    """An open window, and other requests, continue."""
    member = job.session._member

    def outcomes() -> list[str]:
        return [outcome(job, number) for number in (1, 2)]

    consider(job, 1, 3, 1.0)
    open_at(job, 1, job.session.inbox.step + 1)
    job.step(2)
    consider(job, 2, 3, 2.0)
    open_at(job, 2, job.session.inbox.step + 1000)
    member.answer(Opening(9, 9, {}, (1, 3)), 0)
    assert outcomes() == ["open", "waiting"]
    member.answer(Opening(9, 9, {}, (1, 2)), 0)
    assert outcomes() == ["open", "superseded"]
    member.answer(Opening(9, 9, {}, (1, 2)), 0)
    job.step(6)
    assert outcomes() == ["saved", "superseded"]


def test_a_request_has_the_number_that_the_leader_gives_it(job: Job) -> None:
    """A rank may have had fewer edits; its own edits and cancels continue from there."""
    member = job.session._member
    member.group = cast("JobGroup", Group(job, rank=1))
    job.edit(active=2)
    for _ in range(2):  # as if the leader proposes it again, narrowed
        assert consider(job, 5, 3, 2.0).report.newest == 5
    open_at(job, 5, 100)
    job.edit(active=2)
    member.answer(Cancellation(9, '{"cancel": true}', 4.0), 0)
    assert [one.number for one in job.session.status().edits] == [1, 5, 6, 9]
    assert outcome(job, 5) == "superseded"
    assert " on rank 0" not in job.log()


def test_a_request_number_that_is_taken_is_replaced_and_named(job: Job) -> None:
    """The leader has not heard of this rank's own edits yet, or counts from one again."""
    member = job.session._member
    member.group = cast("JobGroup", Group(job, rank=1))
    for active in (1, 2, 3):
        job.edit(active=active)
    assert consider(job, 2, 4, 2.0).takes_part
    open_at(job, 2, 100)
    assert [one.number for one in job.session.status().edits] == [1, 2, 3, 4]
    assert "request 4 on this rank is request 2 on rank 0" in job.log()
    assert outcome(job, 2) == "waiting"


def test_a_rank_waits_to_agree_while_its_backend_would_refuse(job: Job) -> None:
    """A graph capture, which only the training thread sees, does not count there."""
    job.backend.in_the_way = "a graph is being captured"
    assert consider(job, 1, 2, 1.0).busy == ""
    job.backend.blocked = (Blocked("another profiler is on", "refused"),)
    assert consider(job, 2, 2, 2.0).busy == "another profiler is on"


@pytest.mark.parametrize("is_long_step", [False, True])
def test_a_rank_that_was_not_ready_replies_again_once(job: Job, is_long_step: bool) -> None:
    """It is ready when its profiler is free, or when its long step has ended."""
    member = job.session._member
    member._costs.sample()
    if is_long_step:
        job.clock.advance(5)
        member._costs.sample()
    else:
        job.backend.blocked = (Blocked("another profiler is on", "refused"),)
    consider(job, 1)
    assert member.is_unready
    assert member.ready_again() is None
    job.backend.blocked = ()
    job.step(is_long_step)
    reply = member.ready_again()
    assert reply
    assert (reply.again, reply.takes_part, reply.busy, reply.step) == (True, True, "", is_long_step)
    assert not member.is_unready
    assert member.ready_again() is None


def test_an_agreed_step_that_passes_in_a_graph_capture(job: Job) -> None:
    """The others have recorded other steps by then: this rank does not take part."""
    admission = job.session._loop.admission
    consider(job, 1, 2, 1.0)
    open_at(job, 1, 5)
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
def test_a_rank_with_a_new_step_number_records_no_agreed_window(
    job: Job, number: int, when: str
) -> None:
    """That step is another iteration on the others: it refuses at once."""
    member = job.session._member
    job.step(20)
    consider(job, 1, 2, 1.0)
    if when == "while it waits":
        open_at(job, 1, 500)
    job.session.set_step(number)
    if when == "as they agree":
        open_at(job, 1, number + 3)
    job.step(1)
    told = member.answer(Question(1), 0).report
    assert (told.outcome, "were renumbered after" in told.why) == ("refused", True)
    job.step(8)
    assert job.manifests() == []
    consider(job, 2, 2, 2.0)
    open_at(job, 2, job.session.inbox.step + 3)
    job.session.set_step(job.session.inbox.step)
    job.step(8)
    assert job.manifests()[0].complete


def test_a_cancel_during_an_agreement_cancels_the_request(job: Job) -> None:
    """A second cancel says that there is nothing to cancel."""
    member = job.session._member
    member.group = cast("JobGroup", Group(job, 1))
    consider(job, 1, 2, 1.0)
    member.answer(Withdrawal(1, ("cancelled by request 2",), "{}", "cancelled"), 0)
    for number in (2, 3):
        member.answer(Cancellation(number, '{"cancel": true}', float(number)), 0)
    answers = {one.number: one.text for one in job.session.status().edits}
    assert answers[2] == "cancel: drops the waiting request"
    assert "nothing is open or waiting" in answers[3]


@pytest.mark.parametrize("outcome", ["refused", "superseded", "cancelled"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_request_withdrawn_before_its_proposal_is_answered_once(
    job: Job, rank: int, outcome: GivenUp
) -> None:
    """The leader refused it, or waited for ranks to join. Each rank reports the reason."""
    member, session = job.session._member, job.session
    member.group = cast("JobGroup", Group(job, rank))
    edit = Edit(b'{"active": 2}', 1.0)
    if rank == 0:
        asked = session._edit_handler.read(edit)
        assert isinstance(asked, UnplannedRequest)
        member.windows.begin(session._edit_handler.register(edit, 4), asked)
    for _ in range(2):
        member.answer(Withdrawal(4, ("why",), edit.text, outcome), 0)
    (answer,) = session.status().edits
    assert (answer.number, answer.outcome, answer.text) == (4, outcome, "why")
    assert session.status().problems == ()
    job.edit(active=2)
    job.step(4)
    assert [one.request.number for one in job.manifests()] == [5]


def test_a_refused_save_leaves_the_pending_proposal(job: Job) -> None:
    """As in a single process, it changes nothing that was requested before."""
    consider(job, 1)
    job.session._member.answer(Withdrawal(2, ("rank 0 refused it",), "{]"), 0)
    open_at(job, 1, 5)
    job.step(8)
    assert outcome(job, 1) == "saved"


@pytest.mark.parametrize("rules", [(), ("listed",)])
@pytest.mark.parametrize(
    "asked",
    [
        {"prof_dir": "{tmp}/elsewhere"},
        {"storage": {"scratch_dir": "{tmp}/elsewhere"}},
        {"prof_dir": "s3://bucket/captures"},
    ],
)
def test_a_proposal_from_the_store_may_only_go_to_listed_places(
    tmp_path: Path, asked: dict[str, object], rules: tuple[str, ...]
) -> None:
    """The config's permissions do not matter: another process may have written the proposal."""
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
    said = parse_leader_message(to_text(LeaderMessage("", 0, Proposal(1, text, 1.0))).encode())
    assert said
    reply = member.answer(said.message, 0)
    if rules:
        assert "another rank" not in reply.problem
        return
    assert "another rank asks for it, over the job's store; allow it on every rank" in reply.problem
    assert "init(prof_dirs=[...]) or DYNPROF_PROF_DIRS" in reply.problem
    member.answer(Opening(1, 3), 0)
    job.step(8)
    assert not (tmp_path / "elsewhere").exists()
    assert job.session.status().edits[-1].outcome == "refused"


def test_an_attached_rank_takes_over_the_leaders_step_numbers(job: Job) -> None:
    """The rank is busy until its next step has the number; without a known one it says so."""
    member, counts = job.session._member, iter(range(10, 100, 2))
    member.group = cast("JobGroup", Group(job, rank=1))
    taken: list[int] = []
    member.numbers = StepNumbers(lambda: next(counts), lambda: True, taken.append)
    for step in (1, 2, 3):
        member.numbers.begin_step(step)
    text = '{"active": 1}'
    reply = member.answer(Proposal(1, text, 1.0, begun=((52, 12), (53, 14))), 0)
    assert "does not have rank 0's number yet" in reply.busy
    assert not reply.has_own_numbers
    member.numbers.begin_step(4)
    reply = member.answer(Question(1), 1)
    assert (taken, reply.busy) == ([54], "")
    assert member.answer(Proposal(2, text, 2.0), 2).has_own_numbers
    for step in (55, 56, 57):
        member.numbers.begin_step(step)
    assert member.answer(Question(2), 3).has_own_numbers
    first = next(counts)
    assert not member.answer(Question(2, ((70, first - 4), (71, first - 2))), 4).has_own_numbers


def test_a_folder_name_that_is_not_utf_8_is_sent_escaped(tmp_path: Path) -> None:
    """The message is JSON; its reader gets the byte in escaped form."""
    job = Job(tmp_path / os.fsdecode(b"caf\xe9"))
    consider(job, 1, 2)
    open_at(job, 1, 3)
    job.step(8)
    report = job.session._member.answer(Question(1), 0).report
    assert (report.outcome, report.cut) == ("saved", "")
    assert "/caf\\udce9/step_" in report.capture
    assert parse_leader_message(
        to_text(LeaderMessage("", 0, LeaderStarted(report.capture))).encode()
    )
