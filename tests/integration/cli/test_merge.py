"""``dynprof merge``: ranks of a real job in one trace, as Perfetto itself reads it."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from dynprof.cli.view import address_of, serve
from tests.integration.commands import dynprof
from tests.integration.launching import launched, when
from tests.pace import patience_s

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
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
QUERY = """async (text) => {
  const rows = await (window.app ?? window.globals).trace.engine.query(text);
  const found = [], columns = rows.columns();
  for (const row = rows.iter({}); row.valid(); row.next())
    found.push(columns.map((name) => String(row.get(name))));
  return found;
}"""
READY = "location.hash.startsWith('#!/viewer') && (window.app ?? window.globals).trace?.engine"
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
    """Give a folder with a window of two ranks under torchrun."""
    pytest.importorskip("torch", reason="torch is not installed")
    launcher = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv_backend=c10d",
                "--rdzv_endpoint=127.0.0.1:0")  # fmt: skip
    with launched(tmp_path, JOB, *launcher) as process:
        there = when(tmp_path, "both ranks", lambda now: len(now) == 2)
        first = max(status.step for status in there.values()) + 300  # seconds ahead of both
        window = ("--active", "4", "--start-step", first)
        code, _, errors = dynprof("arm", tmp_path / "prof_config", *window, "--wait")
        assert code == 0, errors
        (tmp_path / "enough").touch()
        assert process.wait() == 0
    return tmp_path / "prof_config"


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed to open the page in")
def test_perfetto_shows_arrows_between_ranks(captured: Path) -> None:
    """Each from a collective of one rank to the same one of the other, all in Perfetto's tables."""
    from playwright.sync_api import sync_playwright

    code, output, errors = dynprof("merge", captured)
    assert code == 0, errors
    met = re.search(r"merged: ranks 0 to 1, with arrows at (\d+) collectives", errors)
    assert met is not None, errors
    assert int(met[1]) == 8
    trace = Path(output.strip())
    server = serve(trace, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        page.goto(address_of(server, trace))
        page.wait_for_function(READY, timeout=patience_s() * 1000)
        page.evaluate("waitForPerfettoIdle()")

        def asked(query: str) -> Any:
            return page.evaluate(QUERY, query)

        arrows = asked(ARROWS)
        assert {(one, two) for one, two, *_ in arrows} == {
            ("gloo:all_reduce", "gloo:all_reduce"), ("gloo:broadcast", "gloo:broadcast"),
        }  # fmt: skip
        assert sum(int(row[-1]) for row in arrows) == 8
        assert {name.split(":")[0] for row in arrows for name in row[2:4]} == {"rank 0", "rank 1"}
        assert asked(STEPS) == [["rank 0", "4"], ["rank 1", "4"]]
        browser.close()
    server.shutdown()
    server.server_close()
