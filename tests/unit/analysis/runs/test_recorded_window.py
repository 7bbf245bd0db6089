"""The files to which a window's record may lead, and the messages on the others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from dynprof.analysis.runs.recorded_window import (
    MAX_WORDS,
    named_traces,
    record_words,
    why_no_capture,
)
from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.captures.window_record import RankRecord, WindowRecord, load_window_record
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.status import Status
from dynprof.runtime.clock import iso

REQUEST = RequestRecord(number=1, edited_at="2026", sha256="ab", config={})


def capture(folder: Path, rank: int, trace: str, request: RequestRecord = REQUEST) -> Path:
    """Write the capture of a rank; return the path of its manifest."""
    (folder / "info").mkdir(parents=True)
    (folder / Path(trace).name).write_text("{}")
    path = folder / "info" / f"rank_{rank}.info.json"
    Manifest(
        dynprof="0", backend="torch", versions={}, host="a", pid=1, rank=rank, world_size=2,
        request=request, steps=Steps(first=1, last=2, recorded=2, warmup=0), activities=("CPU",),
        opened_at="", closed_at="", complete=True, trace=trace, cost=Cost(open_ms=0, close_ms=0),
    ).save(path)  # fmt: skip
    return path


def record(folder: Path, captures: dict[int, str], asked: tuple[int, ...] = (0, 1)) -> Path:
    """Write the record of a window; return its path."""
    (folder / "info").mkdir(parents=True, exist_ok=True)
    path = folder / "info" / "window.json"
    WindowRecord(
        dynprof="0", leader="", world_size=2, request=REQUEST, start_step=1, first=1, last=2,
        asked=asked, ranks={rank: RankRecord(host="a", outcome="saved", capture=one)
               for rank, one in captures.items()},
        missing={}, agreed_ms=1, complete=True,
    ).save(path)  # fmt: skip
    return path


def test_the_captures_that_it_names_are_found(tmp_path: Path) -> None:
    """Captures are found by rank, in any folder; missing ones are named with their place."""
    one = capture(tmp_path / "desk_1" / "w", 1, "b.trace.json")
    gone = tmp_path / "desk_2" / "w" / "info" / "rank_2.info.json"
    path = record(tmp_path / "w", {1: str(one), 2: str(gone)}, (1, 2))
    traces = named_traces(path)
    assert traces == [tmp_path / "desk_1" / "w" / "b.trace.json"]
    (tmp_path / "w" / "a.trace.json").write_text("{}")
    words = record_words([tmp_path / "w" / "a.trace.json", *traces])
    assert words == [f"rank 2: its capture is on a, {gone}"]


@pytest.mark.parametrize("trace", ["/{elsewhere}/v.trace.json", "../{elsewhere}/v.trace.json"])
def test_a_manifest_names_only_a_file_in_its_folder(tmp_path: Path, trace: str) -> None:
    """A path instead of a file name is not followed."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "v.trace.json").write_text("{}")
    named = trace.replace("/{elsewhere}", str(victim)).replace("{elsewhere}", "victim")
    one = capture(tmp_path / "w", 1, named)
    (tmp_path / "w" / "v.trace.json").unlink()
    assert named_traces(record(tmp_path / "n", {1: str(one)})) == []


def test_captures_of_another_user_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer of a record cannot make another user read or write more than that user may."""
    one = capture(tmp_path / "desk", 1, "b.trace.json")
    path = record(tmp_path / "w", {1: str(one)})
    real = Path.stat

    def stat(self: Path, **how: bool) -> os.stat_result:
        facts = real(self, **how)
        if self.name != "window.json":
            return facts
        return os.stat_result((*facts[:4], facts.st_uid + 1, *facts[5:10]))

    monkeypatch.setattr(Path, "stat", stat)
    assert named_traces(path) == []


@pytest.mark.parametrize("one", ["/" + "x" * 5000, "relative", "s3://bucket/x", "/dev/zero"])
def test_an_unreadable_place_is_named(tmp_path: Path, one: str) -> None:
    """The other captures are still found."""
    path = record(tmp_path / "w", {1: one}, (1,))
    assert named_traces(path) == []
    (tmp_path / "w" / "a.trace.json").write_text("{}")
    assert record_words([tmp_path / "w" / "a.trace.json"]) == [
        f"rank 1: its capture is on a, {one}"
    ]


def test_only_some_of_many_captures_elsewhere_are_named(tmp_path: Path) -> None:
    """Each is named once; the rest is counted."""
    captures = {rank: f"/elsewhere/info/rank_{rank}.info.json" for rank in range(1000)}
    record(tmp_path / "w", captures, (*range(1000), *range(1000)))
    (tmp_path / "w" / "a.trace.json").write_text("{}")
    words = record_words([tmp_path / "w" / "a.trace.json"])
    assert len(words) == MAX_WORDS + 1
    assert words[-1] == f"and so for {1000 - MAX_WORDS} more ranks"


def test_remarks_and_problems_of_the_record_are_printed(tmp_path: Path) -> None:
    """Remarks come first, up to a limit; then each rank's problem."""
    here = capture(tmp_path / "w", 0, "a.trace.json")
    odd = [f"rank {rank} counted otherwise" for rank in range(MAX_WORDS + 2)]
    ranks = {
        0: RankRecord(host="a", outcome="saved", capture=str(here), cut="cancelled"),
        1: RankRecord(host="b", outcome="failed", capture="/c"),
    }
    WindowRecord(
        dynprof="0", leader="", world_size=3, request=REQUEST, start_step=1, first=1, last=2,
        asked=(0, 1, 2), ranks=ranks, missing={2: "it does not answer"}, agreed_ms=1,
        complete=False, remarks=tuple(odd),
    ).save(tmp_path / "w" / "info" / "window.json")  # fmt: skip
    assert record_words([tmp_path / "w" / "a.trace.json"]) == [
        *odd[:MAX_WORDS],
        "and so for 2 more remarks",
        "rank 0 was cut short: cancelled",
        "rank 1 has no capture: failed, by its last report to rank 0",
        "rank 2 is missing: it does not answer",
    ]


def test_an_outdated_record_hides_no_capture(tmp_path: Path) -> None:
    """The leader was killed before it heard of the saves: the manifests count."""
    capture(tmp_path / "w", 0, "a.trace.json")
    path = record(tmp_path / "w", {0: ""}, (0,))
    path.write_text(path.read_text().replace('"saved"', '"open"'))
    assert record_words([tmp_path / "w" / "a.trace.json"]) == []


@pytest.mark.parametrize("state", ["recording", "stopped", "idle"])
def test_a_window_in_which_the_job_ended_is_not_said_to_be_open(tmp_path: Path, state: str) -> None:
    """A killed leader writes no more. Its next process does not know the request."""
    path = record(tmp_path / "w", {0: ""}, (0,))
    path.write_text(path.read_text().replace('"saved"', '"open"').replace('"2026"', f'"{iso(7)}"'))
    edits = () if state == "idle" else (Answer(1, "ab", 7.0, "open"),)
    status = Status(state, host="elsewhere", heartbeat=time.time(), edits=edits)
    (tmp_path / "status").mkdir()
    (tmp_path / "status" / "rank_0.json").write_bytes(msgspec.json.encode(status))
    known = "open" if state == "recording" else "open as the job ended"
    assert why_no_capture(path) == f"no capture is here of rank 0 ({known})"
    (tmp_path / "w" / "a.trace.json").write_text("{}")
    assert record_words([tmp_path / "w" / "a.trace.json"]) == [
        f"rank 0 has no capture: {known}, by its last report to rank 0"
    ]


def test_a_rank_whose_capture_is_here_is_not_missing(tmp_path: Path) -> None:
    """The job ended before the leader heard of it: its record is mentioned as well."""
    capture(tmp_path / "w", 0, "a.trace.json")
    path = record(tmp_path / "w", {}, (0, 1))
    told = load_window_record(path)
    silent = dict.fromkeys((0, 1), "it does not answer")
    told.model_copy(update={"missing": silent}).save(path)
    assert record_words([tmp_path / "w" / "a.trace.json"]) == [
        'rank 0: its capture is here, though the record says "it does not answer"',
        "rank 1 is missing: it does not answer",
    ]
