"""Whatever happens to ranks and messages, all ranks of a window record the same steps."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dynprof.ranks.messages import Cancellation
from tests.unit.ranks.simulated import Job, Rank

RANKS = 4
ANY = st.integers(1, RANKS - 1)


class Training(RuleBasedStateMachine):
    """A job with its operator and random faults."""

    def __init__(self) -> None:
        super().__init__()
        self.delays = iter([0.001])
        self.job = Job([Rank(n) for n in range(RANKS)], self.delay_s)
        self.asked = 0
        self.job.run(1.0)

    def delay_s(self) -> float:
        """Return the delay of the next message."""
        return next(self.delays, 0.001)

    @rule(
        ranks=st.sampled_from(["all", "0-1", "2,3", "every 2nd", "slowest", "one per host"]),
        ahead=st.none() | st.integers(-5, 400),
        patience_s=st.sampled_from([0.5, 5.0, 30.0]),
    )
    def edit(self, ranks: str, ahead: int | None, patience_s: float) -> None:
        """Save a config."""
        self.asked += 1
        step = self.job.step(self.job.ranks[0])
        start = None if ahead is None else max(1, step + ahead)
        self.job.propose(self.asked, ranks, start=start, patience_s=patience_s)

    @rule()
    def cancel(self) -> None:
        """Save a config that cancels."""
        self.job.leader.give_up("cancelled", "cancelled")
        self.job.leader.broadcast(Cancellation(0, "", self.job.now_s))

    @rule(seconds=st.sampled_from([0.0, 0.0005, 0.003, 0.02, 0.3, 3.0, 40.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.job.run(seconds)

    @rule(delays=st.lists(st.sampled_from([0.0001, 0.002, 0.05, 0.7, 6.0]), max_size=12))
    def delay(self, delays: list[float]) -> None:
        """Change the delay of the next messages."""
        self.delays = iter(delays)

    @rule(rank=ANY, step_s=st.sampled_from([0.001, 0.01, 0.2]))
    def slow_down(self, rank: int, step_s: float) -> None:
        """Change the duration of a rank's steps from now on."""
        one, step = self.job.ranks[rank], self.job.step(self.job.ranks[rank])
        one.step_s = step_s
        one.ahead += step - self.job.step(one)

    @rule(rank=ANY, seconds=st.sampled_from([0.5, 20.0]))
    def save_long(self, rank: int, seconds: float) -> None:
        """Make a rank busy."""
        self.job.ranks[rank].busy_until_s = self.job.now_s + seconds

    @rule(rank=ANY)
    def stop(self, rank: int) -> None:
        """Stop a process."""
        if self.job.ranks[rank].stopped is None:
            self.job.stop(rank)

    @rule(rank=ANY)
    def go_on(self, rank: int) -> None:
        """Let it continue."""
        self.job.go_on(rank)

    @rule(rank=ANY)
    def lose_store(self, rank: int) -> None:
        """Cut a rank's connection to the store for a moment."""
        self.job.lose_store(rank)

    @precondition(lambda self: not self.job.ranks[RANKS - 1].is_dead)
    @rule()
    def die(self) -> None:
        """Kill the last rank."""
        self.job.ranks[RANKS - 1].is_dead = True

    @invariant()
    def all_that_record_have_the_same_steps(self) -> None:
        """A request has one step, at most once on each rank."""
        steps: dict[int, int] = {}
        for rank in self.job.ranks:
            numbers = [number for number, _ in rank.recorded]
            assert len(numbers) == len(set(numbers))
            for number, step in rank.recorded:
                assert steps.setdefault(number, step) == step

    @invariant()
    def each_request_is_answered_once(self) -> None:
        """No request is answered twice, and each answer belongs to one."""
        numbers = [made.number for made in self.job.made]
        assert len(numbers) == len(set(numbers))
        assert set(numbers) <= set(range(1, self.asked + 1))

    def teardown(self) -> None:
        """In the end each request has an answer; each window is recorded, or known to be lost."""
        for rank in range(1, RANKS):
            self.job.go_on(rank)
        self.job.run(60.0)
        newest = max(map(self.job.step, self.job.ranks))
        for one in self.job.ranks:  # a slow rank would take hours to reach a fast one's step
            one.ahead += newest - self.job.step(one)
        self.job.run(600.0)
        assert len(self.job.made) == self.asked
        for made in self.job.made:
            for rank in made.ranks:
                one = self.job.ranks[rank]
                has_it = made.number in dict(one.recorded)
                said = self.job.records.told.get(made.number, {}).get(rank)
                gone = rank in self.job.records.gone.get(made.number, set())
                assert (
                    one.is_dead or has_it or said in ("refused", "superseded", "cancelled") or gone
                )


TestTraining = Training.TestCase
TestTraining.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
