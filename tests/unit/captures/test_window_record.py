"""The record of a window of all ranks, written and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.captures.manifest import RequestRecord
from dynprof.captures.window_record import RankRecord, WindowRecord, load_window_record

if TYPE_CHECKING:
    from pathlib import Path


def test_the_record_of_a_very_large_job_is_read(tmp_path: Path) -> None:
    """The record is larger than any rank's manifest may be."""
    capture = "/" + "c" * 150 + "/rank_0.info.json"
    record = WindowRecord(
        dynprof="0",
        leader="rank 0",
        world_size=100_000,
        request=RequestRecord(number=1, edited_at="", sha256="", config={}),
        start_step=1,
        first=1,
        last=3,
        asked=tuple(range(100_000)),
        ranks={rank: RankRecord(host="node", outcome="saved", capture=capture)
               for rank in range(100_000)},
        missing={},
        agreed_ms=9000.0,
        complete=True,
    )  # fmt: skip
    path = tmp_path / "window.json"
    record.save(path)
    assert path.stat().st_size > 20e6
    assert load_window_record(path) == record
