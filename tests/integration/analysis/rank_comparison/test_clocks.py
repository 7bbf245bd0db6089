"""Matching of collectives on one clock and on several; the tests know the right matches."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.runs.merge import clock_words
from tests.rank_tables import MS, Job, Taken, compared

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.analysis.rank_comparison.comparison import Ranks

ONE_HOST = Job(hosts=["a"] * 4, ahead_ms=[0] * 4, loose_ms=3)
TWO_HOSTS = Job(hosts=["a", "a", "b", "b"], ahead_ms=[0, 0, 5, 5], steps=40, loose_ms=1.5)


def matched(ranks: Ranks, taken: list[list[Taken]]) -> list[set[int]]:
    """Return, by position, the collectives that were matched with each other."""
    true = {(rank, one.begin): one.true for rank, mine in enumerate(taken) for one in mine}
    found: dict[int, set[int]] = {}
    for rank, place, begin in ranks.query("SELECT rank, place, begin_ns FROM shared"):
        found.setdefault(place, set()).add(true[rank, begin])
    return [found[place] for place in sorted(found)]


@pytest.mark.parametrize("marked", [True, False])
def test_on_one_host_ends_milliseconds_apart_are_matched(tmp_path: Path, marked: bool) -> None:
    """Ranks of one host leave milliseconds apart, and are still matched."""
    job = ONE_HOST.but(marked=marked)
    ranks = job.ranks(tmp_path)
    assert matched(ranks, job.taken()) == [{true} for true in range(16)]
    assert ranks.clocks() == dict.fromkeys(range(4), (0, 0))
    said = ranks.words()
    assert not any("matched" in one or "end together" in one for one in said)
    assert clock_words(ranks, [0, 1, 2, 3]) == [
        "ranks 0 to 3 are of one host, whose clock is used unchanged"
    ]


def test_on_one_host_a_rank_without_the_first_collective_is_not_matched(tmp_path: Path) -> None:
    """In a job with several collectives at once, its second could pass for the others' first."""
    job = ONE_HOST.but(each=3, lacks={2: {0}})
    ranks = job.ranks(tmp_path)
    assert matched(ranks, job.taken()) == []
    assert ranks.words()[0].startswith("0 of 24 collectives could be matched between all ranks")


def test_on_one_host_steps_before_a_missing_collective_are_matched(tmp_path: Path) -> None:
    """The whole steps before a missing collective are matched."""
    job = ONE_HOST.but(lacks={1: {9}})
    assert matched(job.ranks(tmp_path), job.taken()) == [{true} for true in range(8)]


def test_a_rank_that_ends_early_is_matched_up_to_its_end(tmp_path: Path) -> None:
    """A rank ended two steps before the others: the earlier collectives match and count once."""
    job = ONE_HOST.but(last={0: 5})
    ranks = job.ranks(tmp_path)
    assert matched(ranks, job.taken()) == [{true} for true in range(12)]
    said = "12 of 16 collectives could be matched between all ranks of their group, from the first"
    assert any(one.startswith(said) for one in ranks.words())


def test_between_hosts_clocks_are_aligned_within_the_uncertainty(tmp_path: Path) -> None:
    """Ranks of one host share a clock. The stated uncertainty covers the true difference."""
    ranks = TWO_HOSTS.ranks(tmp_path)
    assert matched(ranks, TWO_HOSTS.taken()) == [{true} for true in range(80)]
    clocks, doubt = ranks.clocks(), ranks.uncertainty_ns()
    assert clocks[1] == (0, 0)
    assert clocks[2] == clocks[3]
    assert abs(clocks[2][1] - 5 * MS) <= doubt < 3 * MS
    (said,) = clock_words(ranks, [0, 1, 2, 3])
    assert said.startswith("clocks aligned by the ends of collectives; they were up to")
    assert ", give or take " in said


def test_between_hosts_clocks_that_agree_are_left_alone(tmp_path: Path) -> None:
    """Clocks that differ by less than the variation of ends stay unchanged."""
    ranks = TWO_HOSTS.but(ahead_ms=[0, 0, 0.3, 0.3]).ranks(tmp_path)
    assert ranks.clocks() == dict.fromkeys(range(4), (0, 0))
    (said,) = clock_words(ranks, [0, 1, 2, 3])
    assert said.startswith("the clocks agree, give or take ")


def test_tight_ends_align_finely(tmp_path: Path) -> None:
    """NCCL's ends on two hosts show a clock difference of half a millisecond."""
    ranks = TWO_HOSTS.but(ahead_ms=[0, 0, 0.5, 0.5], loose_ms=0.01).ranks(tmp_path)
    assert ranks.clocks()[3][1] == pytest.approx(MS / 2, abs=MS / 50)


def test_hosts_without_a_unique_name_are_not_one(tmp_path: Path) -> None:
    """Hosts that all have the same name are not one host either."""
    for host in ("", "localhost"):
        ranks = TWO_HOSTS.but(hosts=[host] * 4).ranks(tmp_path)
        assert ranks.clocks()[2][1] == pytest.approx(5 * MS, abs=2 * MS)


@pytest.mark.parametrize("seed", range(6))
def test_no_match_is_wrong(tmp_path: Path, seed: int) -> None:
    """Matches are right for all ranks despite gaps and different clocks; the rest is counted."""
    chance = random.Random(seed)  # noqa: S311
    hosts = chance.choice([["a"] * 3, ["a", "a", "b"], ["a", "b", "c"]])
    ahead = {"a": 0.0, "b": chance.choice([0, 5, -1800]), "c": chance.choice([1, 250])}
    job = Job(
        hosts, [ahead[host] for host in hosts], steps=chance.choice([3, 8]),
        each=chance.choice([1, 2, 5]), wait_ms=chance.choice([0.5, 5, 20]),
        loose_ms=chance.choice([0.02, 1, 3]), seed=seed,
    )  # fmt: skip
    rank, first = chance.randrange(3), set(range(chance.randint(1, job.each)))
    lost = {chance.randrange(job.steps * job.each)}
    for changed in (job, job.but(lacks={rank: first}), job.but(lacks={rank: lost}),
                    job.but(last={rank: job.steps - 2})):  # fmt: skip
        taken = changed.taken()
        ranks = compared(tmp_path, hosts, taken)
        found = matched(ranks, taken)
        assert all(len(true) == 1 for true in found)
        began = max(mine[0].step for mine in taken)
        whole = max(sum(one.step >= began for one in mine) for mine in taken)
        if len(found) < whole:
            said = f"{len(found)} of {whole} collective"
            assert any(one.startswith(said) for one in ranks.words())
        if changed is job:
            assert len(found) == job.steps * job.each
