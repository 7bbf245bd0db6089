"""The leader's knowledge of a window on all ranks, and the record that it writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dynprof.captures.deliveries import Deliveries
from dynprof.captures.window_record import load_window_record
from dynprof.config import parse_config
from dynprof.errors import CaptureError
from dynprof.journal.edit_outcomes import MAX_IN_STATUS
from dynprof.ranks.agreement_rules import Agreement
from dynprof.ranks.job_windows import (
    FORGOTTEN,
    LEFT,
    NO_ANSWER,
    STALLED_S,
    JobWindows,
)
from dynprof.ranks.messages import LEFT_GROUP, Report
from dynprof.requests.request import Edit, UnplannedRequest
from dynprof.runtime.layout import Layout
from dynprof.runtime.rank import Rank
from dynprof.testing import FakeClock
from dynprof.windows.process_context import ProcessContext

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.captures.window_record import WindowRecord
    from dynprof.journal.journal import Journal

RAW = b'{"active": 3, "warmup": 2}'


def attempt(doing: str, action: Callable[[], object]) -> Exception | None:
    """Run the action, and return its exception."""
    assert doing == "writing the record of a window"
    try:
        action()
    except OSError as error:
        return error
    return None


class Known(JobWindows):
    """The windows of a job of five ranks, of which 0 to 2 agreed on step 7."""

    def __init__(self, root: Path, ranks: tuple[int, ...] = (0, 1, 2)) -> None:
        layout, self.clock = Layout(root, 0, "host", 42), FakeClock()
        process = ProcessContext(layout, Rank(0, 5, "test"), (), clock=self.clock)
        self.warned: list[str] = []
        self.root = root
        self.told: list[str] = []
        self.reported: list[tuple[str, str, dict[str, object]]] = []
        journal = SimpleNamespace(
            warning=self.warned.append,
            info=self.told.append,
            events=SimpleNamespace(
                report=lambda kind, text, **facts: self.reported.append((kind, text, facts))
            ),
        )
        super().__init__(process, attempt, Deliveries(attempt), cast("Journal", journal))
        self.begin_group("rank 0 on host", 5)
        self.begin(4, asked())
        self.conclude(Agreement(4, 7, ranks, {3: "it does not run dynprof"}, (), 0.25))
        self.write()
        self.warned.clear()
        self.told.clear()

    def say(self, rank: int, outcome: str, state: str = "idle", **more: object) -> None:
        """Deliver a report of a rank."""
        self.receive(Report(rank, 4, f"h{rank}", 0, state, outcome, f"/c{rank}", **more))  # type: ignore[arg-type]

    @property
    def record(self) -> WindowRecord:
        """The record on disk."""
        self.clock.advance(2.0)
        self.write()
        return load_window_record(self.root / "step_9-11_19700101T000000Z/info/window.json")


def asked(edited_at_s: float = 0.0) -> UnplannedRequest:
    """Return the request of an edit."""
    parsed = parse_config(RAW)
    return UnplannedRequest(Edit(RAW, edited_at_s), parsed.config, parsed, now=False)


def test_the_record_lists_the_ranks_from_the_start(tmp_path: Path) -> None:
    """Steps are counted from the end of the warm-up, as in the folder's name."""
    record = Known(tmp_path).record
    assert (record.start_step, record.first, record.last) == (7, 9, 11)
    assert record.agreed_ms == 250.0
    assert (record.asked, record.world_size) == ((0, 1, 2, 3), 5)
    assert {one.outcome for one in record.ranks.values()} == {"waiting"}
    assert (record.missing, record.complete) == ({3: "it does not run dynprof"}, False)


def test_each_rank_is_followed_until_it_has_saved(tmp_path: Path) -> None:
    """Once most ranks are done, the remaining ones are named."""
    known = Known(tmp_path)
    known.say(0, "saved")
    known.say(1, "open", "recording")
    known.say(2, "saved")
    status = known.status()
    assert (status.saved, status.pending, status.asked) == (2, 1, 4)
    assert status.states == {"idle": 2, "missing": 2, "recording": 1}
    assert status.stragglers == {1: "still recording", 3: "it does not run dynprof"}
    known.say(1, "saved")
    assert not known.pending
    known.say(1, "open", "recording")  # an older report that is read late
    assert not known.pending
    assert [(one.host, one.capture) for one in known.record.ranks.values()] == [
        ("h0", "/c0"), ("h1", "/c1"), ("h2", "/c2"),
    ]  # fmt: skip


def test_the_record_is_complete_once_all_steps_of_all_are_saved(tmp_path: Path) -> None:
    """A capture that was cut short is named with the reason."""
    for cut in ("", "stopped by the script"):
        known = Known(tmp_path)
        known.conclude(Agreement(4, 7, (0, 1, 2), remarks=("rank 1: it is elsewhere",)))
        assert known.warned == ["request 4: rank 1: it is elsewhere"]
        for rank in range(3):
            known.say(rank, "saved", cut=cut if rank == 1 else "")
        assert known.record.complete == (not cut)
        remarks = ["rank 1: it is elsewhere", *([f"rank 1 was cut short: {cut}"] if cut else [])]
        assert known.status().remarks == tuple(remarks)
        assert known.record.remarks == ("rank 1: it is elsewhere",)


def test_a_rank_that_refuses_at_the_step_is_missing_with_a_reason(tmp_path: Path) -> None:
    """The log and the record name it; the others have their captures."""
    known = Known(tmp_path)
    known.say(2, "refused", why="another profiler")
    known.say(0, "saved")
    assert known.record.missing[2] == "refused: another profiler"
    text = "rank 2 has no capture of it: refused: another profiler"
    assert known.warned == [f"request 4: {text}"]
    ((kind, said, facts),) = known.reported
    assert (kind, said, facts["rank"], facts["request"]) == ("failed", text, 2, 4)


def test_a_window_that_all_ranks_give_up_counts_as_lost_on_none(tmp_path: Path) -> None:
    """All ranks superseded or cancelled it. If one rank saved it, the others have lost it."""
    known = Known(tmp_path)
    for rank in range(3):
        known.say(rank, "superseded")
    assert known.status().unsaved == {"superseded": 3}
    assert known.record.missing.keys() == {3}
    known.say(0, "saved")
    assert known.record.missing.keys() == {1, 2, 3}


def test_a_lost_rank_is_missing_until_it_reports_again(tmp_path: Path) -> None:
    """An earlier save of it stays in the record."""
    known = Known(tmp_path)
    known.say(0, "saved")
    known.say(2, "open")
    known.mark_lost([0, 2])
    assert known.pending == {4: {1}}
    assert known.record.missing == {2: NO_ANSWER, 3: "it does not run dynprof"}
    known.mark_lost([1], LEFT_GROUP)
    assert known.record.missing[1] == LEFT_GROUP
    known.say(2, "saved")
    assert known.record.ranks[2].outcome == "saved"


def test_a_rank_that_restarted_has_lost_the_window(tmp_path: Path) -> None:
    """An earlier save still counts."""
    known = Known(tmp_path)
    known.say(0, "saved")
    known.say(0, "")
    known.say(1, "")
    assert known.record.missing[1] == FORGOTTEN
    assert known.record.ranks[0].outcome == "saved"


def test_a_rank_that_was_left_out_is_not_waited_for(tmp_path: Path) -> None:
    """It continues after the window was agreed: its late reply says that the request waits."""
    known = Known(tmp_path)
    known.say(3, "waiting")
    assert known.pending == {4: {0, 1, 2}}


def test_the_record_is_completed_when_the_leader_leaves(tmp_path: Path) -> None:
    """A rank that stands still is not waited for; a later report of it changes nothing."""
    known = Known(tmp_path, (1,))
    known.say(1, "open", still_s=STALLED_S + 1, step_s=0.1)
    assert known.is_stalled
    known.drop_others(LEFT)
    assert known.pending == {}
    known.say(1, "open")
    assert known.pending == {}
    assert known.record.missing[1] == LEFT.format("open")
    assert known.status().pending == 0


def test_a_rank_that_delays_an_agreement_is_named(tmp_path: Path) -> None:
    """The status names it with the newest reason, the log once."""
    known = Known(tmp_path)
    known.begin(5, asked(1.0))
    for why in ("it saves", "it did not answer in time"):
        known.wait_for(5, {2: why})
        assert known.status().stragglers == {2: f"waited for: {why}"}
    assert known.told == ["request 5 waits for rank 2: it saves"]


def test_results_of_earlier_requests_are_kept(tmp_path: Path) -> None:
    """The newest ones are kept. If no rank opens, there is a reason instead of a record."""
    known = Known(tmp_path)
    for number in range(5, 5 + 2 * MAX_IN_STATUS):
        known.begin(number, asked(float(number)))
        known.conclude(Agreement(number, reasons=("rank 2 cannot",)))
        known.write()
    status = known.status()
    assert (status.problems, status.record, len(status.earlier)) == (
        ("rank 2 cannot",),
        "",
        MAX_IN_STATUS - 1,
    )
    assert known.pending == {4: {0, 1, 2}}


def test_a_record_that_cannot_be_written_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk does not stop the agreement."""
    known = Known(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("dynprof.captures.window_record.write_atomic", fail)
        known.say(0, "saved")
        assert known.record.ranks[0].outcome == "waiting"
    assert known.record.ranks[0].outcome == "saved"


def test_a_proposal_is_refused_when_the_store_is_lost(tmp_path: Path) -> None:
    """A waiting client gets the reason."""
    known = Known(tmp_path)
    known.begin(5, asked(1.0))
    known.refuse_open("the job's store was lost")
    assert known.status().problems == ("the job's store was lost",)


def test_a_file_that_is_not_a_record_is_an_error(tmp_path: Path) -> None:
    """Any other content is an error."""
    path = tmp_path / "window.json"
    path.write_text('{"ranks": 3}')
    with pytest.raises(CaptureError, match="is not the record of a window"):
        load_window_record(path)
