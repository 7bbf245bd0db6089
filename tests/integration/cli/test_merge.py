"""``dynprof merge``: one trace of a real job's ranks, read by Perfetto itself."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.commands import dynprof
from tests.integration.launching import end_well, ranks, when
from tests.integration.perfetto import asked, needs_browser, opened
from tests.real_traces import raw_events

JOB = """
import os, time
import torch, torch.distributed as dist, dynprof as dp
dist.init_process_group("gloo")
dp.init("prof_config")
rank, end, data = dist.get_rank(), torch.zeros(1), torch.ones(1 << 16)
while not end:
    dist.all_reduce(data)
    end[0] = float(rank == 0 and os.path.exists("enough"))
    dist.broadcast(end, 0)
    time.sleep(0.01)
    dp.step()
dist.destroy_process_group()
"""
ARROWS = """
SELECT a.name, b.name, p.name, q.name, count(*) FROM flow f
JOIN slice a ON f.slice_out = a.id JOIN slice b ON f.slice_in = b.id
JOIN thread_track s ON a.track_id = s.id JOIN thread_track t ON b.track_id = t.id
JOIN thread x ON s.utid = x.utid JOIN thread y ON t.utid = y.utid
JOIN process p ON x.upid = p.upid JOIN process q ON y.upid = q.upid
WHERE p.upid <> q.upid GROUP BY 1, 2, 3, 4
"""
STEPS = """
SELECT t.name, count(*) FROM slice s JOIN thread_track k ON s.track_id = k.id
JOIN thread t ON k.utid = t.utid JOIN process p ON t.upid = p.upid
WHERE p.name = 'steps of all ranks' GROUP BY 1 ORDER BY 1
"""


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    """Return a folder with a window of two ranks."""
    pytest.importorskip("torch", reason="torch is not installed")
    with ranks(tmp_path, JOB, 2) as running:
        there = when(tmp_path, "both ranks", lambda now: len(now) == 2)
        for lead in (300, 1000, 5000):  # a busy machine may pass 300 steps before the save is read
            first = max(status.step for status in there.values()) + lead
            window = ("--active", "4", "--start-step", first)
            code, _, errors = dynprof("arm", tmp_path / "prof_config", *window, "--wait")
            if "has begun already" not in errors:
                break
        assert code == 0, errors
        (tmp_path / "enough").touch()
        end_well(running)
    return tmp_path / "prof_config"


def met_by_both(captured: Path) -> int:
    """Count the collectives in the traces of both ranks."""
    of_each = []
    for path in captured.rglob("*.pt.trace.json.gz"):
        names = [str(event.get("name")) for event in raw_events(path)]
        of_each.append(Counter(name for name in names if name.startswith("gloo:")))
    one, other = of_each
    return (one & other).total()


@needs_browser
def test_perfetto_shows_arrows_between_ranks(captured: Path) -> None:
    """Each arrow connects the same collective of both ranks in Perfetto's tables."""
    code, output, errors = dynprof("merge", captured)
    assert code == 0, errors
    met = re.search(r"merged: ranks 0 to 1, with arrows at (\d+) collectives", errors)
    assert met is not None, errors
    both = met_by_both(captured)
    assert int(met[1]) == both
    assert 7 <= both <= 8  # the last one may end on gloo's thread after the window
    with opened(Path(output.strip())) as page:
        arrows = asked(page, ARROWS)
        assert {(one, two) for one, two, *_ in arrows} == {
            ("gloo:all_reduce", "gloo:all_reduce"), ("gloo:broadcast", "gloo:broadcast"),
        }  # fmt: skip
        assert sum(int(row[-1]) for row in arrows) == both
        assert {name.split(":")[0] for row in arrows for name in row[2:4]} == {"rank 0", "rank 1"}
        assert asked(page, STEPS) == [["rank 0", "4"], ["rank 1", "4"]]
