"""Slow links and slow ranks, which look alike in a trace, compared with a plain count."""

from __future__ import annotations

import csv
import itertools
import random
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.rank_comparison.clocks import join_clocks
from dynprof.analysis.runs.many_traces import analyse_each, read_ranks
from dynprof.analysis.runs.one_trace import traces_in
from dynprof.analysis.runs.remote_files import Workspace
from tests.link_traces import (
    AHEAD_US,
    ELEMENTS,
    RANKS,
    ROUNDS,
    USUAL_NS,
    Event,
    kernel,
    pairs,
    ring,
    save,
)
from tests.real_traces import raw_events

if TYPE_CHECKING:
    from pathlib import Path


def words(folder: Path) -> list[str]:
    """Return the findings on the ranks."""
    outcome = analyse_each(traces_in(folder), ["text"], processes=1)
    assert outcome.problems == {}
    return outcome.verdicts[folder]


def links(folder: Path) -> dict[tuple[int, int], dict[str, str]]:
    """Return the rows of the links."""
    with (folder / "analysis" / "links.csv").open(newline="") as file:
        return {(int(row["From"]), int(row["To"])): row for row in csv.DictReader(file)}


def test_a_slow_link_is_named(tmp_path: Path) -> None:
    """The link from 1 to 2 moves 2.5 GB/s, the others 10; no rank is slow."""
    ring(tmp_path, {(1, 2): 4.0}, {})
    said = words(tmp_path)
    assert said[0].startswith("the link from rank 1 to rank 2 is slow: 2.5 GB/s while data moves")
    assert not any("comes last" in one for one in said)
    rates = {link: float(row["Bandwidth(GB/s)"]) for link, row in links(tmp_path).items()}
    assert rates == {(0, 1): 10, (1, 2): 2.5, (2, 3): 10, (3, 0): 10}


def test_a_slow_rank_is_no_slow_link(tmp_path: Path) -> None:
    """Rank 2 comes 3 ms late: its messages take as long as on a slow link, but no link is slow."""
    ring(tmp_path, {}, {2: 3000.0})
    said = words(tmp_path)
    assert any(one.startswith("rank 2 comes last to") for one in said)
    assert not any("slow" in one for one in said)
    rows = links(tmp_path)
    assert {float(row["Bandwidth(GB/s)"]) for row in rows.values()} == {10.0}
    assert float(rows[1, 2]["Waiting(us)"]) > 10_000 > 1_000 > float(rows[0, 1]["Waiting(us)"])


def test_a_rank_with_only_slow_links_is_named(tmp_path: Path) -> None:
    """In groups of two, all groups with rank 3 are slow: the rank is named, not its links."""
    pairs(tmp_path, {(rank, 3): 5.0 for rank in range(3)}, {})
    said = words(tmp_path)
    assert said[0].startswith("rank 3 moves data slowly over all of its 3 links: at most 2 GB")
    assert not any("the link" in one for one in said)


def test_one_slow_pair_names_the_link(tmp_path: Path) -> None:
    """One slow group of two names the link, not its ranks."""
    pairs(tmp_path, {(0, 3): 5.0}, {})
    said = words(tmp_path)
    assert said[0].startswith("the link between ranks 0 and 3 is slow: 2 GB/s while data moves")
    assert len([one for one in said if "slow" in one]) == 1


def test_links_with_only_small_messages_are_not_judged(tmp_path: Path) -> None:
    """Small messages measure latency; a link with only such messages is not judged."""
    ring(tmp_path, {(1, 2): 40.0}, {})
    for path in traces_in(tmp_path):
        path.write_text(path.read_text().replace(str(ELEMENTS), "2500"))
    assert not any("slow" in one for one in words(tmp_path))
    assert {row["Bandwidth of 1 MB and more(GB/s)"] for row in links(tmp_path).values()} == {"N/A"}


@pytest.mark.parametrize("seed", range(5))
def test_waiting_and_moving_match_a_plain_count(tmp_path: Path, seed: int) -> None:
    """Each link's waiting and moving equal those of a plain loop that knows the clocks."""
    chance = random.Random(seed)  # noqa: S311
    slow = {(rank, (rank + 1) % RANKS): chance.uniform(0.5, 3) for rank in range(RANKS)}
    ring(tmp_path, slow, {rank: chance.randint(0, 2000) for rank in range(RANKS)}, seed)
    analyse_each(traces_in(tmp_path), ["text"], processes=1)
    ends: dict[tuple[int, int], list[list[Event]]] = defaultdict(lambda: [[], []])
    for rank in range(RANKS):
        for event in raw_events(tmp_path / f"rank{rank}.pt.trace.json"):
            event["ts"] -= AHEAD_US[rank]
            told = event["args"]
            if "Dst Rank" in told:
                ends[rank, told["Dst Rank"]][0].append(event)
            else:
                ends[told["Src Rank"], rank][1].append(event)
    rows = links(tmp_path)
    assert set(rows) == set(ends)
    for link, (sent, received) in ends.items():
        moving = waiting = 0.0
        for one, two in zip(sent, received, strict=True):
            last = max(one["ts"], two["ts"])
            moving += one["ts"] + one["dur"] - last
            waiting += (last - one["ts"] + last - two["ts"]) / 2
        assert float(rows[link]["Moving(us)"]) == pytest.approx(moving, abs=0.5)
        assert float(rows[link]["Waiting(us)"]) == pytest.approx(waiting, abs=0.5)
        size = 4 * ELEMENTS * ROUNDS
        assert float(rows[link]["Bandwidth(GB/s)"]) == pytest.approx(size / moving / 1e3, rel=1e-3)
    found = read_ranks(traces_in(tmp_path), Workspace(tmp_path)).bandwidth
    whole = sum(event["dur"] for sides in ends.values() for side in sides for event in side)
    counted = sum(row.ranks * (row.waiting + row.moving) for row in found.traffic)
    assert counted == pytest.approx(whole * 1000, rel=1e-6)


@pytest.mark.parametrize("late_us", [0.0, 700.0])
def test_a_late_rank_makes_no_collective_slower(tmp_path: Path, late_us: float) -> None:
    """All four ranks reduce for a millisecond after the last one arrives, however late it is."""
    events: dict[int, list[Event]] = defaultdict(list)
    for number, rank in itertools.product(range(ROUNDS), range(RANKS)):
        came = 10_000.0 * number + rank + late_us * (rank == 1)
        end = 10_000.0 * number + RANKS - 1 + max(0, late_us - 2) + USUAL_NS / 1000
        told = {"Group size": RANKS, "Process Group Name": "0"}
        events[rank].append(kernel("allreduce", 20, came, end, **told))
    save(tmp_path, events)
    words(tmp_path)
    with (tmp_path / "analysis" / "collective_bandwidth.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["Collective"], row["Count"], row["Ranks"]) == ("all reduce", "12", "4")
    assert float(row["Moving(us)"]) == ROUNDS * USUAL_NS / 1000
    whole = sum(event["dur"] for mine in events.values() for event in mine)
    assert float(row["Waiting(us)"]) == pytest.approx(whole / RANKS - 12_000, abs=0.01)
    assert float(row["Algorithm Bandwidth(GB/s)"]) == 10
    assert float(row["Bus Bandwidth(GB/s)"]) == 15


def test_collectives_at_unrelated_times_are_not_matched(tmp_path: Path) -> None:
    """Collectives with the same names and order, but with unrelated times, are not matched."""
    for rank in range(2):
        chance = random.Random(rank)  # noqa: S311
        now, mine = 0.0, []
        for _ in range(20):
            now += chance.randint(1000, 90_000)
            mine.append(kernel("allreduce", 20, now, now + 900))
        save(tmp_path, {rank: mine})
    first, *_ = words(tmp_path)
    assert first.startswith("0 of 20 collectives could be matched between all ranks of their group")


def test_collectives_of_other_sizes_are_not_the_same(tmp_path: Path) -> None:
    """One rank lacks its first collective. The rhythm is even, so only the sizes show the shift."""
    for rank in range(2):
        mine = [
            kernel("allreduce", 20, 5000 * n, 5000 * n + 900, **{"In msg nelems": 1000**(n % 2),
                                                                "Out msg nelems": 1000**(n % 2)})
            for n in range(rank, 20)
        ]  # fmt: skip
        save(tmp_path, {rank: mine})
    first, *_ = words(tmp_path)
    assert first.startswith("0 of 20 collectives could be matched between all ranks of their group")


def test_a_clock_change_makes_no_rank_late(tmp_path: Path) -> None:
    """Rank 1's clock jumps by 100 ms. No rank waited and all left together, so none is late."""
    for rank in range(3):
        mine = []
        for number in range(20):
            begin = 10_000 * number + 100_000 * (rank == 1 and number >= 12)
            mine.append(kernel("allreduce", 20, begin, begin + 1500))
        save(tmp_path, {rank: mine})
    assert words(tmp_path)[:2] == [
        "no rank keeps the others waiting",
        "8 of 20 collectives did not end together, as if a clock was set in between; the waits "
        "in them are unknown",
    ]


@pytest.mark.parametrize(
    ("name", "late"), [("allreduce", {7}), ("broadcast", set(range(12, 20)))], ids=["once", "root"]
)
def test_a_rank_that_leaves_late_keeps_its_clock(tmp_path: Path, name: str, late: set[int]) -> None:
    """A thread that pauses once, or a root that does not wait, does not look like a new clock."""
    for rank in range(3):
        mine = []
        for number in range(20):
            begin, later = 10_000 * number, 3000 * (rank == 1 and number in late)
            mine.append(kernel(name, 20, begin, begin + 1500 + later))
        save(tmp_path, {rank: mine})
    assert words(tmp_path)[0] == "no rank keeps the others waiting"
    assert not any("did not end together" in said for said in words(tmp_path))


def test_clocks_are_joined_over_groups() -> None:
    """Ranks in several groups connect the groups; a separate group keeps its first rank's clock."""
    edges = [(1, 0, 5), (3, 2, 7), (2, 1, 10), (9, 8, 1), (3, 0, 999)]
    assert join_clocks(edges) == {
        0: (0, 0),
        1: (0, 5),
        2: (0, 15),
        3: (0, 22),
        8: (8, 0),
        9: (8, 1),
    }
