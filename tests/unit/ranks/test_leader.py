"""The leader in virtual time: the recording ranks and their first step, or the reason for none."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as with_fields

from dynprof.ranks.leader import DECIDE_S, JOIN_S, REPLY_TIMEOUT_S
from dynprof.ranks.messages import (
    NO_DYNPROF,
    SILENT,
    Cancellation,
    Joined,
    Opening,
    Profiler,
    Proposal,
)
from tests.unit.ranks.simulated import Job, Rank


def job(count: int, **of_last: object) -> Job:
    """Return a job whose ranks have joined; the last one has other traits."""
    ranks = [Rank(number) for number in range(count - 1)]
    return joined(*ranks, Rank(count - 1, **of_last))  # type: ignore[arg-type]


def joined(*ranks: Rank) -> Job:
    """Return a job of these ranks, which have joined."""
    found = Job([*ranks])
    found.run(1.0)
    return found


def recorded(job: Job) -> list[list[tuple[int, int]]]:
    """Return the windows that each rank has recorded."""
    return [rank.recorded for rank in job.ranks]


def windows(job: Job) -> list[int]:
    """Return how many windows each rank has recorded."""
    return [len(rank.recorded) for rank in job.ranks]


def test_all_ranks_open_at_one_step_soon() -> None:
    """The step is the first that all reach after they know it, some 50 ms after the proposal."""
    found = job(4)
    made = found.arm(1)
    assert made.ranks == (0, 1, 2, 3)
    assert recorded(found) == [[(1, made.step)]] * 4
    assert 0.02 < (made.step or 0) * 0.01 - 1.0 < 0.15
    assert found.records.told == {1: dict.fromkeys(range(4), "saved")}


@pytest.mark.parametrize(
    ("start", "step", "reasons"),
    [
        (150, 150, ()),
        ("next multiple of 64", 128, ()),
        (100, None, ("step 100 has begun already: rank 0 is at step 100",)),
    ],
)
def test_the_start_step_of_the_config_is_taken_if_all_can_reach_it(
    start: int | str, step: int | None, reasons: tuple[str, ...]
) -> None:
    """The reason against it names a rank and its step."""
    found = job(2)
    made = found.arm(1, start=start)
    assert made.reasons == reasons
    assert recorded(found) == [[(1, step)] if step else []] * 2


@pytest.mark.parametrize(
    ("asked", "ranks"),
    [
        ("1,3", (1, 3)),
        ("every 2nd", (0, 2, 4)),
        ("one per host", (0, 3)),
        ("slowest and median", (1, 4)),
        ("2,slowest", (2, 4)),
    ],
)
def test_ranks_are_chosen_by_numbers_hosts_and_step_times(
    asked: str, ranks: tuple[int, ...]
) -> None:
    """The others answer and record nothing."""
    times = (0.01, 0.012, 0.011, 0.013, 0.02)
    found = joined(*(Rank(n, step_s=t, host=f"node{n // 3}") for n, t in enumerate(times)))
    made = found.arm(1, asked)
    found.run(5.0)
    assert made.ranks == ranks
    assert [rank.number for rank in found.ranks if rank.recorded] == list(ranks)


def test_a_window_that_one_rank_cannot_record_opens_on_none() -> None:
    """The reason names the rank."""
    found = job(3, problem="no such profiler")
    assert found.arm(1).reasons == ("rank 2: no such profiler",)
    assert recorded(found) == [[]] * 3


@pytest.mark.parametrize("downgrade", [True, False])
def test_a_rank_with_fewer_activities_is_refused_or_limits_all(downgrade: bool) -> None:
    """``agreement.unable`` decides."""
    less = Profiler("torch", ("CPU",))
    found = job(2, usable=(less,))
    made = found.arm(1, downgrade=downgrade)
    assert (made.step is not None) == downgrade
    (*_, last) = (one for one in found.said if isinstance(one, Proposal))
    assert last.profiler == (less if downgrade else None)
    assert ("rank 1: it would record with torch (CPU)" in made.reasons) != downgrade


@pytest.mark.parametrize("together", [True, False])
def test_a_busy_rank_delays_the_start_until_it_is_free(together: bool) -> None:
    """The status names it with the reason. Its newer step is not another way of counting."""
    ranks = [Rank(number, steps_together=together) for number in range(3)]
    ranks[2].busy_until_s = 4.0
    found = joined(*ranks)
    found.propose(1)
    found.run(2.9)
    assert found.records.waits == {1: {2: "it saves"}}
    assert found.made == []
    found.run(0.2)
    found.move(2)
    found.run(1.0)
    assert windows(found) == [1, 1, 1]


def test_an_earlier_reply_of_a_rank_may_arrive_late() -> None:
    """Replies and news have two separate keys."""
    found = job(2, busy_until_s=100.0)
    found.propose(1)
    found.run(1.0)
    busy, place = found.ranks[1], found.ranks[1].place
    late = found._reply(busy, 1, place, takes_part=True)
    busy.busy_until_s = 0.0
    ready = with_fields(found._reply(busy, 1, place, takes_part=True), again=True)
    found.leader.receive([ready, late])
    found.run(1.0)
    assert windows(found) == [1, 1]


def test_a_busy_rank_is_left_out_past_the_patience() -> None:
    """The busy rank is named; the others record."""
    found = job(3, busy_until_s=100.0)
    found.propose(1, patience_s=2.0)
    found.run(3.0)
    assert found.made[0].left_out == {2: "it saves"}
    assert windows(found) == [1, 1, 0]


def test_a_rank_in_a_long_step_is_left_out_past_the_patience() -> None:
    """The rank is named with the time in that step; the others record."""
    found = job(3)
    found.stand(1)
    found.run(5.0)
    found.propose(1, patience_s=2.0)
    found.run(4.0)
    assert {r: why[:26] for r, why in found.made[0].left_out.items()} == {
        1: "it has been in step 100 fo"
    }
    assert windows(found) == [1, 0, 1]


def test_a_rank_in_a_long_step_delays_the_start_but_of_a_named_step() -> None:
    """Examples are an evaluation on one rank. If all ranks are stopped, none is waited for."""
    found = job(3)
    found.stand(1)
    found.run(5.0)
    found.propose(1)
    found.run(1.0)
    assert found.records.waits[1][1].startswith("it has been in step 100 for 5 s")
    found.move(1)
    found.run(10.0)
    assert windows(found) == [1, 1, 1]
    for rank in range(3):
        found.stand(rank)
    found.run(5.0)
    assert found.arm(2).step


def test_a_silent_rank_is_left_out_past_the_patience_and_takes_part_again_later() -> None:
    """A silent rank is waited for once; the next window does not wait."""
    found = job(3)
    found.stop(2)
    found.propose(1, patience_s=REPLY_TIMEOUT_S)
    found.run(3 * REPLY_TIMEOUT_S)
    assert found.made[0].left_out == {2: SILENT}
    before_s = found.now_s
    made = found.arm(2, patience_s=REPLY_TIMEOUT_S)
    assert (found.now_s - before_s, made.ranks) == (1.0, (0, 1))
    found.go_on(2)
    found.run(1.0)
    assert found.arm(3).ranks == (0, 1, 2)


def test_a_silent_rank_that_replies_in_time_takes_part() -> None:
    """The late reply ends the wait."""
    found = job(2)
    found.stop(1)
    found.propose(1)
    found.run(REPLY_TIMEOUT_S + 2.0)
    assert found.records.waits == {1: {1: SILENT}}
    found.go_on(1)
    found.run(1.0)
    assert windows(found) == [1, 1]


def test_a_rank_without_dynprof_is_named_once_the_job_is_not_young() -> None:
    """Ranks may call init() some seconds apart."""
    found = job(3, runs=False)
    found.propose(1)
    found.run(1.0)
    assert found.made == []
    found.run(JOIN_S)
    assert found.made[0].left_out == {2: NO_DYNPROF}
    assert found.made[0].ranks == (0, 1)


@pytest.mark.parametrize("late_s", [1.0, 100.0])
def test_a_rank_that_joins_late_takes_part_in_waiting_and_later_requests(late_s: float) -> None:
    """The rank's ``init()`` comes seconds or minutes after that of the others."""
    found = job(3, runs=False)
    found.propose(1)
    found.run(late_s)
    found.ranks[2].runs = True
    found.leader.receive([Joined(2)])
    found.run(1.0)
    assert found.arm(2).ranks == (0, 1, 2)
    assert windows(found) == [2, 2, 1 + (late_s < JOIN_S)]


@pytest.mark.parametrize("dies_s", [0.0, 0.0015, 0.01])
def test_a_rank_that_dies_before_or_after_its_reply_costs_the_others_no_window(
    dies_s: float,
) -> None:
    """A rank that dies before is left out; one that dies after is found silent in the window."""
    found = job(3)
    found.propose(1, patience_s=2.0)
    found.run(dies_s)
    found.ranks[2].is_dead = True
    found.run(60.0)
    (made,) = found.made
    assert made.left_out == ({2: SILENT} if dies_s == 0.0 else {})
    assert found.records.gone == ({} if dies_s == 0.0 else {1: {2}})
    assert recorded(found) == [[(1, made.step)]] * 2 + [[]]


def test_the_newer_of_two_simultaneous_edits_is_recorded() -> None:
    """The ranks hear both proposals before they have replied to the first."""
    found = job(3)
    found.propose(1)
    found.run(0.0001)
    made = found.arm(2)
    assert [one.reasons for one in found.made] == [("superseded by request 2",), ()]
    assert recorded(found) == [[(2, made.step)]] * 3


def test_a_cancel_ends_the_waiting_and_cancels_a_window_that_is_agreed() -> None:
    """All ranks hear it, also one that was stopped at that time."""
    found = job(2, busy_until_s=5.0)
    found.propose(1)
    found.run(1.0)
    found.leader.give_up("cancelled", "cancelled by request 2")
    assert found.made[0].reasons == ("cancelled by request 2",)
    found.run(5.0)
    found.arm(3, start=10_000)
    found.stop(1)
    found.leader.broadcast(Cancellation(4, "", 0.0))
    found.run(60.0)
    assert [rank.outcomes[3] for rank in found.ranks] == ["cancelled", "waiting"]
    found.go_on(1)
    assert found.ranks[1].outcomes[3] == "cancelled"


def test_a_window_that_waits_far_off_is_superseded_on_all_ranks() -> None:
    """This includes ranks that the newer one does not request."""
    found = job(3)
    found.arm(1, start=100_000)
    found.arm(2, "0-1")
    assert [rank.outcomes[1] for rank in found.ranks] == ["superseded"] * 3
    assert windows(found) == [1, 1, 0]


def test_a_window_for_other_ranks_is_served_next_to_a_long_one() -> None:
    """Neither affects the other."""
    found = job(4)
    found.arm(1, "0-1", start=400)
    found.arm(2, "2-3")
    found.run(5.0)
    assert [[number for number, _ in one] for one in recorded(found)] == [[1], [1], [2], [2]]


def test_a_rank_whose_steps_have_no_numbers_in_common_records_alone_or_not() -> None:
    """A window over several ranks waits some seconds for them, and is then refused."""
    found = job(3, has_own_numbers=True)
    found.propose(1)
    found.run(DECIDE_S - 0.5)
    assert not found.made
    found.run(1.0)
    assert "rank 2: its first steps were not counted" in found.made[0].reasons[0]
    found.arm(2, ranks="2")
    assert windows(found) == [0, 0, 1]
    found.propose(3)
    found.run(0.5)
    found.ranks[2].has_own_numbers = False
    found.run(1.0)
    assert windows(found) == [1, 1, 2]


@pytest.mark.parametrize("together", [True, None, False])
def test_ranks_that_step_together_with_other_numbers_are_refused(together: bool | None) -> None:
    """The reason names the call to make, once it is known that they do.

    If a rank steps alone, a remark names both numbers.
    """
    ranks = [Rank(0, steps_together=together), Rank(1, ahead=70, steps_together=together), Rank(2)]
    found = joined(*ranks)
    found.propose(1)
    found.run(0.5)
    assert bool(found.made) == (together is not None)
    for rank in ranks[:2]:
        rank.steps_together = together is not False
    found.run(1.0)
    (made,) = found.made
    assert any("call dp.set_state(" in reason for reason in made.reasons) == (together is not False)
    if together is False:
        (remark,) = made.remarks
        assert remark.startswith("rank 1 is at step 170, rank 0 at step 100: each opens")


def test_a_rank_with_unknown_step_times_is_asked_twice() -> None:
    """At the second reply the rank's pace is known well enough."""
    found = job(2)
    for rank in found.ranks:
        rank.step_s = None
    found.propose(1)
    found.run(10.0)
    ((opening,),) = ([one for one in found.said if isinstance(one, Opening)],)
    assert opening.step < 60


def test_ranks_whose_first_step_ends_during_the_agreement_open_together() -> None:
    """The ranks' next steps are a hundred times shorter."""
    found = Job([Rank(rank, step_s=0.002, is_new=True) for rank in range(2)], lambda: 0.005)
    found.run(1.0)
    for rank in range(2):
        found.stand(rank)
    found.propose(1)
    found.run(0.12)
    for rank in range(2):
        found.move(rank)
    found.run(2.0)
    assert recorded(found) == [[(1, found.made[-1].step)]] * 2


def test_one_slow_reply_puts_the_window_no_seconds_away() -> None:
    """The ranks are asked again, and the second round decides the lead."""
    found = job(3)
    found.stop(1)
    found.propose(1)
    found.run(REPLY_TIMEOUT_S - 1.0)
    found.go_on(1)
    found.run(1.0)
    (made,) = found.made
    assert (made.step or 0) * 0.01 < found.now_s
    assert windows(found) == [1, 1, 1]


@pytest.mark.parametrize("asked", ["all", "0,1,one per host"])
def test_a_rank_that_joins_again_while_the_others_are_asked_is_asked_again(asked: str) -> None:
    """The rank has lost the proposal with its connection."""
    found = job(2)
    found.ranks[1].is_dead = True
    found.propose(1, asked)
    found.run(1.0)
    found.ranks[1].is_dead = False
    found.leader.receive([Joined(1)])
    found.run(1.0)
    assert windows(found) == [1, 1]


def test_a_leader_that_is_cut_off_from_all_that_agreed_opens_no_window_alone() -> None:
    """The others refuse the proposal, because they lost the store."""
    found = job(3, busy_until_s=100.0)
    found.propose(1, patience_s=8.0)
    found.run(1.0)
    for rank in (1, 2):
        found.stop(rank)
    found.run(20.0)
    (made,) = found.made
    assert made.step is None
    assert made.reasons[0].startswith("ranks 1 to 2 answered at first: no other rank does now")
    assert recorded(found) == [[]] * 3


def test_a_rank_that_dies_in_its_window_is_asked_and_found_silent() -> None:
    """Without a window, no rank is asked."""
    found = job(2)
    said = len(found.said)
    found.run(3600.0)
    assert len(found.said) == said
    found.arm(1, start=400_000)
    found.ranks[1].is_dead = True
    found.run(30.0)
    assert found.records.gone == {1: {1}}


def test_a_question_about_another_window_ends_no_waiting() -> None:
    """The question is open as the patience ends; the ready ranks record all the same."""
    found = joined(Rank(0), Rank(1, busy_until_s=1e9), Rank(2), Rank(3))
    found.arm(1, "0", start=100_000)
    found.propose(2, "1,3", patience_s=6.0)
    found.run(0.5)
    found.stop(2)
    found.run(40.0)
    assert found.made[-1].left_out == {1: "it saves"}
    assert [number for number, _ in found.ranks[3].recorded] == [2]


def test_a_leader_that_ends_waits_for_other_ranks_saves_with_a_timeout() -> None:
    """After the timeout the leader leaves, and all live ranks leave too."""
    found = job(3)
    found.arm(1, start=100_000)
    found.leader.end()
    assert not found.leader.is_over
    found.run(20.0)
    assert found.leader.is_over
    found.leader.leave()
    found.run(1.0)
    assert found.leader.others == set()
