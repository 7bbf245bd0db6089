"""What the leader knows of a window on all ranks, and what it writes down."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.window_record import load_window_record
from dynprof.config import parse_config
from dynprof.coordination.messages import Reply
from dynprof.coordination.terms import Agreement
from dynprof.delivery.deliveries import Deliveries, Errand
from dynprof.errors import CaptureError
from dynprof.files.layout import Layout
from dynprof.journal.edit_outcomes import TOLD
from dynprof.process.rank import Rank
from dynprof.requests.edits import Edit
from dynprof.requests.request import Asked
from dynprof.session.job_windows import LONG_S, UNWRITTEN, JobWindows
from dynprof.session.known_window import FORGOTTEN, LEFT, NO_ANSWER, STANDS_S
from dynprof.testing import FakeClock
from dynprof.wall import Wall
from dynprof.windows.this_process import ThisProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.captures.exporter import Attempt

RAW = b'{"active": 3, "warmup": 2}'


def attempt(doing: str, action: Callable[[], object]) -> Exception | None:
    """Do it, and return the exception that it ended with."""
    assert doing == "writing the record of a window"
    try:
        action()
    except OSError as error:
        return error
    return None


def asked(edited_at_s: float = 0.0, raw: bytes = RAW) -> Asked:
    """Return what an edit asks for."""
    parsed = parse_config(raw)
    return Asked(Edit(raw, edited_at_s), parsed.config, parsed, now=False)


def windows(
    root: Path,
    attempt: Attempt = attempt,
    deliveries: Deliveries | None = None,
    warn: Callable[[str], None] = lambda _: None,
    raw: bytes = RAW,
) -> JobWindows:
    """Return those of a job of five ranks, of which 0 to 2 agreed on step 7, and 3 on nothing."""
    process = ThisProcess(Layout(root, 0, "host", 42), Rank(0, 5, "test"), (), clock=FakeClock())
    made = JobWindows(
        process, 5, "rank 0 on host", attempt, deliveries or Deliveries(attempt), warn
    )
    made.begin(4, asked(raw=raw))
    assert made.status().pending is None
    remarks = ("rank 2 counted its steps otherwise",)
    left_out = {3: "it does not run dynprof"}
    made.settle(Agreement(4, 7, (0, 1, 2), left_out, (), 0.25, remarks=remarks))
    return made


def said(rank: int, outcome: str, state: str = "idle") -> Reply:
    """Return what a rank says."""
    return Reply(rank, host=f"h{rank}", outcome=outcome, state=state, capture=f"/c{rank}")


def test_the_record_says_who_is_there_from_the_start(tmp_path: Path) -> None:
    """Steps are counted from the end of the warm-up, as the folder's name is."""
    assert windows(tmp_path).waits
    path = tmp_path / "step_9-11_19700101T000000Z" / "info" / "window.json"
    record = load_window_record(path)
    assert (record.start_step, record.first, record.last) == (7, 9, 11)
    assert record.agreed_ms == 250.0
    assert record.remarks == ("rank 2 counted its steps otherwise",)
    assert (record.asked, record.world_size) == ((0, 1, 2, 3), 5)
    assert {rank: one.outcome for rank, one in record.ranks.items()} == dict.fromkeys(
        range(3), "waiting"
    )
    assert (record.missing, record.complete) == ({3: "it does not run dynprof"}, False)


def test_each_rank_is_followed_until_it_has_saved(tmp_path: Path) -> None:
    """What was said of an earlier request does not count; who is still at it is named last."""
    known = windows(tmp_path)
    known.hear(3, {rank: said(rank, "saved") for rank in range(3)})
    assert (known.waits, known.status().saved, known.status().pending) == ((4,), 0, 3)
    known.hear(4, {0: said(0, "saved"), 1: said(1, "open", "recording"), 2: said(2, "saved")})
    status = known.status()
    assert (status.saved, status.pending, status.asked) == (2, 1, 4)
    assert status.states == {"idle": 2, "missing": 2, "recording": 1}
    assert status.stragglers == {1: "still recording", 3: "it does not run dynprof"}
    known.hear(4, {rank: said(rank, "saved") for rank in range(3)})
    assert not known.waits
    record = load_window_record(tmp_path / status.record)
    assert [(one.host, one.capture) for one in record.ranks.values()] == [
        ("h0", "/c0"), ("h1", "/c1"), ("h2", "/c2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "state", "shown"),
    [
        ("saving", "sending", "still sending"),
        ("saving", "recording", "still saving"),
        ("open", "warmup", "still warmup"),
    ],
)
def test_what_a_rank_still_does_is_said_of_this_window(
    tmp_path: Path, outcome: str, state: str, shown: str
) -> None:
    """Its state is that of the newest: it may record another one while this is being saved."""
    known = windows(tmp_path)
    known.hear(4, {0: said(0, "saved"), 1: said(1, outcome, state), 2: said(2, "saved")})
    assert known.status().stragglers[1] == shown


def test_how_a_window_ended_that_is_not_saved_is_counted(tmp_path: Path) -> None:
    """By the ranks that say so; who is on his way, missing or has lost it is named."""
    known = windows(tmp_path)
    known.hear(4, {0: said(0, "disarmed"), 1: said(1, "waiting"), 2: said(2, "disarmed")})
    assert known.status().unsaved == {"disarmed": 2}
    known.hear(4, {0: said(0, "failed"), 1: said(1, "saved"), 2: said(2, "refused")})
    assert (known.status().saved, known.status().unsaved) == (1, {})
    assert known.status().stragglers.keys() == {0, 2, 3}


def test_who_holds_a_request_up_is_named_while_the_ranks_agree(tmp_path: Path) -> None:
    """By the status at once, by the log once and after a while."""
    told: list[str] = []
    known = windows(tmp_path, warn=told.append)
    clock = known._clock
    assert isinstance(clock, FakeClock)
    known.begin(5, asked(60.0))
    known.wait_for(5, {2: "it records", 1: "it is silent"})
    clock.advance(LONG_S / 2)
    known.wait_for(5, {1: "it is silent"})
    assert (known.status().stragglers, told) == ({1: "waited for: it is silent"}, [])
    clock.advance(LONG_S / 2)
    for _ in range(2):
        known.wait_for(5, {1: "it is silent", 2: "it records"})
    assert told == ["request 5 waits for rank 1: it is silent"]
    known.settle(Agreement(5, 7, (0, 1), {2: "it records"}))
    assert known.status().stragglers == {2: "it records"}


def test_who_steps_or_saves_is_worth_waiting_for_as_the_leader_ends(tmp_path: Path) -> None:
    """Who stands may wait for it; the record is brought to its end with what was said."""
    known = windows(tmp_path)
    assert not known.stands
    stuck = replace(said(1, "open"), still_s=STANDS_S + 1, step_s=0.1)
    slow = replace(stuck, step_s=STANDS_S)
    for one in (replace(stuck, still_s=1.0), slow, replace(stuck, outcome="saving")):
        known.hear(4, {0: said(0, "saved"), 1: one, 2: stuck})
        assert not known.stands
    known.hear(4, {0: said(0, "saved"), 1: stuck, 2: replace(stuck, outcome="waiting")})
    assert known.stands
    known.leave()
    assert not known.waits
    assert not known.stands  # nobody is on his way, so nobody waits
    record = load_window_record(tmp_path / known.status().record)
    assert record.ranks.keys() == {0}
    assert {rank: record.missing[rank] for rank in (1, 2)} == {
        1: LEFT.format("open"),
        2: LEFT.format("waiting"),
    }


def test_who_refuses_as_the_step_comes_is_missing_and_says_why(tmp_path: Path) -> None:
    """In the record, in the status, and once in the log."""
    told: list[str] = []
    known = windows(tmp_path, warn=told.append)
    why = "/backend: another torch.profiler is active in this process; stop it first."
    refused = replace(said(1, "refused"), why=why, capture="")
    for _ in range(2):
        known.hear(4, {0: said(0, "saved"), 1: refused, 2: said(2, "saved")})
    record = load_window_record(tmp_path / known.status().record)
    assert ({*record.ranks}, record.complete) == ({0, 2}, False)
    assert record.missing[1] == known.status().stragglers[1] == f"refused: {why}"
    assert told == [f"request 4: rank 1 has no capture of it: refused: {why}"]


@pytest.mark.parametrize(
    ("outcome", "why", "shown"),
    [
        ("failed", "no trace; disk full", "failed: no trace; disk full"),
        ("superseded", "superseded by request 2", "superseded by request 2"),
        ("disarmed", "disarmed by request 2", "disarmed by request 2"),
        ("not served", "not served, shutdown() was called", "not served, shutdown() was called"),
    ],
)
@pytest.mark.parametrize("other", ["open", "saved", "failed", "refused"])
def test_whose_part_in_a_window_ends_without_a_capture_is_missing_and_says_why(
    tmp_path: Path, outcome: str, why: str, shown: str, other: str
) -> None:
    """However it ended there, once its step has come on another rank."""
    told: list[str] = []
    known = windows(tmp_path, warn=told.append)
    ended = replace(said(1, outcome), why=why, capture="")
    elsewhere = replace(said(2, other), why="disk full")
    for _ in range(2):
        known.hear(4, {0: said(0, "saved"), 1: ended, 2: elsewhere})
    record = load_window_record(tmp_path / known.status().record)
    assert record.missing[1] == known.status().stragglers[1] == shown
    assert (1 in record.ranks, record.complete) == (False, False)
    assert told[0] == f"request 4: rank 1 has no capture of it: {shown}"
    assert len(told) == 1 + (2 in record.missing)


@pytest.mark.parametrize("outcome", ["superseded", "disarmed"])
def test_a_window_that_all_ranks_give_up_is_lost_by_none(tmp_path: Path, outcome: str) -> None:
    """A newer request took its place, or a cancel disarmed it, before its step had come."""
    told: list[str] = []
    known = windows(tmp_path, warn=told.append)
    given_up = {
        rank: replace(said(rank, outcome), why=f"{outcome} by request 5") for rank in (0, 1)
    }
    for last in ("waiting", outcome):
        known.hear(4, given_up | {2: said(2, last)})
        record = load_window_record(tmp_path / known.status().record)
        assert (record.missing, told) == ({3: "it does not run dynprof"}, [])
        assert {rank: one.outcome for rank, one in record.ranks.items()} == {
            **dict.fromkeys(given_up, outcome),
            2: last,
        }


def test_what_was_noticed_and_who_was_cut_short_is_in_the_status(tmp_path: Path) -> None:
    """For ``arm --wait`` and ``status``, which read no record."""
    known = windows(tmp_path)
    cut = replace(said(1, "saved"), cut="cancelled by request 5")
    known.hear(4, {0: said(0, "saved"), 1: cut, 2: said(2, "saved")})
    remarks = ("rank 2 counted its steps otherwise", "rank 1 was cut short: cancelled by request 5")
    assert known.status().remarks == remarks
    assert not load_window_record(tmp_path / known.status().record).complete


def test_a_rank_that_is_gone_is_missing(tmp_path: Path) -> None:
    """It does not answer, or it has begun anew and knows of nothing; nobody waits for it."""
    known = windows(tmp_path)
    known.hear(4, {0: said(0, "saved"), 1: said(1, "")})
    assert not known.waits
    expected = {1: FORGOTTEN, 2: NO_ANSWER, 3: "it does not run dynprof"}
    assert known.status().stragglers == expected
    record = load_window_record(tmp_path / known.status().record)
    assert (set(record.ranks), record.missing, record.complete) == ({0}, expected, False)


def test_what_a_rank_has_saved_stays_in_the_record_when_it_is_gone(tmp_path: Path) -> None:
    """While others still save theirs, one is killed, and another begins anew."""
    known = windows(tmp_path)
    known.hear(4, {0: said(0, "saving"), 1: said(1, "saved"), 2: said(2, "saved")})
    known.hear(4, {0: said(0, "saved"), 1: said(1, "")})
    assert not known.waits
    record = load_window_record(tmp_path / known.status().record)
    assert {rank: (one.outcome, one.capture) for rank, one in record.ranks.items()} == {
        rank: ("saved", f"/c{rank}") for rank in range(3)
    }
    assert record.missing == {3: "it does not run dynprof"}


def test_where_no_rank_opens_there_is_no_record(tmp_path: Path) -> None:
    """The status says why."""
    known = windows(tmp_path)
    known.begin(5, asked())
    known.settle(Agreement(5, None, (), {}, ("rank 1: no room",)))
    status = known.status()
    assert (status.problems, status.record, status.pending) == (("rank 1: no room",), "", 0)
    assert len(list(tmp_path.rglob("window.json"))) == 1


def test_a_window_that_another_edit_follows_is_followed_all_the_same(tmp_path: Path) -> None:
    """Its ranks are asked about it in turn with the newest, until it is over on all of them."""
    known = windows(tmp_path)
    known.begin(5, asked(60.0))
    assert known.number == 4
    known.hear(4, {0: said(0, "saved"), 1: said(1, "open"), 2: said(2, "saved")})
    known.settle(Agreement(5, 30, (0, 2), {}))
    assert known.number == 5
    known.hear(5, {rank: said(rank, "saved") for rank in (0, 2)})
    assert (known.number, known.waits, known.status().request) == (4, (4,), 5)
    assert (known.status().saved, known.status().pending) == (2, 0)
    known.hear(4, {rank: said(rank, "saved") for rank in range(3)})
    assert (known.number, known.waits) == (5, ())
    first, second = (load_window_record(path) for path in sorted(tmp_path.rglob("window.json")))
    assert {second.first: second.ranks[1].capture, first.first: first.ranks[2].capture} == {
        9: "/c1", 32: "/c2",
    }  # fmt: skip


def test_what_became_of_earlier_requests_is_told_as_well(tmp_path: Path) -> None:
    """Who waits for one of them is not to take the next one's outcome for its own."""
    known = windows(tmp_path)
    known.begin(5, asked(60.0))
    (first,) = known.status().earlier
    assert (first.request, first.saved, first.asked, first.pending) == (4, 0, 4, 3)
    known.settle(Agreement(5, None, reasons=("superseded by request 6",)))
    known.hear(4, {0: said(0, "saved"), 2: said(2, "saved")})
    known.begin(6, asked(120.0))
    first, second = known.status().earlier
    assert (first.request, first.saved, first.asked, first.pending) == (4, 2, 4, 0)
    assert first.stragglers == {1: NO_ANSWER, 3: "it does not run dynprof"}
    assert (second.request, second.problems) == (5, ("superseded by request 6",))
    assert known.status().of(4) == first
    assert known.status().of(7) is None
    for number in range(7, 60):
        known.begin(number, asked(60.0 * number))
        known.settle(Agreement(number, None, reasons=("no",)))
    assert [one.request for one in known.status().earlier] == [*range(59 - TOLD, 59)]


def test_an_edit_that_comes_while_the_ranks_agree(tmp_path: Path) -> None:
    """What they agree on then has its record, though there is a newer request."""
    known = windows(tmp_path)
    known.begin(5, asked(60.0))
    known.begin(6, asked(120.0))
    known.settle(Agreement(5, 30, (0,), {}))
    assert len(list(tmp_path.rglob("window.json"))) == 2
    assert (known.status().request, known.status().record) == (6, "")


def test_a_record_that_cannot_be_written_is_tried_until_it_is(tmp_path: Path) -> None:
    """Whenever the ranks are heard, though they say nothing new; then it has all."""
    (tmp_path / "step_9-11_19700101T000000Z").touch()
    known = windows(tmp_path)
    all_saved = {rank: said(rank, "saved") for rank in range(3)}
    known.hear(4, all_saved)
    known.begin(5, asked(60.0))
    known.settle(Agreement(5, None, reasons=("no",)))
    assert known.status().request == 5
    (tmp_path / "step_9-11_19700101T000000Z").unlink()
    assert known.number == 4
    known.hear(4, all_saved)
    (record,) = map(load_window_record, tmp_path.rglob("window.json"))
    assert {one.outcome for one in record.ranks.values()} == {"saved"}
    assert known.number == 5  # nothing more comes of it


def test_a_record_that_cannot_be_brought_up_to_date(tmp_path: Path) -> None:
    """The disk is full when the last rank has saved: the old one stays until there is room."""
    full = list[bool]()

    def on_a_disk(doing: str, action: Callable[[], object]) -> Exception | None:
        return OSError(28, "no space") if full else attempt(doing, action)

    known = windows(tmp_path, on_a_disk)
    full.append(True)
    all_saved = {rank: said(rank, "saved") for rank in range(3)}
    known.hear(4, all_saved)
    path = tmp_path / known.status().record
    assert load_window_record(path).ranks[0].outcome == "waiting"
    full.clear()
    known.hear(4, all_saved)
    assert load_window_record(path).ranks[0].outcome == "saved"


def test_of_records_that_cannot_be_written_the_newest_are_tried_again(tmp_path: Path) -> None:
    """What is kept of a job is bounded, however long its disk is full."""

    def never(doing: str, action: Callable[[], object]) -> Exception | None:
        return OSError(28, doing)

    known = windows(tmp_path, never)
    asked_about = list[int]()
    for number in range(5, 60):
        known.begin(number, asked(60.0 * number))
        known.settle(Agreement(number, 30 * number, (0,)))
        known.hear(number, {0: said(0, "saved")})
    known.hear(4, {rank: said(rank, "saved") for rank in range(3)})
    for _ in range(2 * UNWRITTEN):
        asked_about.append(known.number)
        known.hear(known.number, {0: said(0, "saved")})
    assert {*asked_about} == {*range(60 - UNWRITTEN, 60)}


def test_the_log_is_told_once_that_a_record_cannot_be_written(tmp_path: Path) -> None:
    """The failure bears the same words each time, whatever is tried each second."""
    logged = list[str]()

    class Notes:
        def remember(self, *, last_error: str) -> None: ...

        def error(self, text: str) -> None:
            logged.append(text)

    folder = tmp_path / "step_9-11_19700101T000000Z" / "info"
    (folder / "window.json" / "stands in the way").mkdir(parents=True)
    known = windows(tmp_path, Wall(Notes()).attempt)
    for _ in range(3):
        known.hear(4, {rank: said(rank, "saved") for rank in range(3)})
    (text,) = logged
    assert f"Is a directory: '{folder / 'window.json'}'" in text


class NoWay(Deliveries):
    """Nothing arrives."""

    def submit(self, errand: Errand) -> None:
        """Say why not."""
        errand.on_end("", "PermissionError: Forbidden")


def test_a_record_that_does_not_arrive_is_named(tmp_path: Path) -> None:
    """Once all is over; without it nobody sees there who is missing."""
    warned = list[str]()
    raw = b'{"active": 3, "warmup": 2, "prof_dir": "s3://runs/job"}'
    made = windows(tmp_path, attempt, NoWay(attempt), warned.append, raw)
    made.hear(4, {rank: said(rank, "saved") for rank in (0, 1, 2)})
    (path,) = tmp_path.rglob("window.json")
    target = f"s3://runs/job/{path.parent.parent.name}"
    why = "PermissionError: Forbidden"
    assert warned == [f"{path} has not arrived in {target}, and lies here: {why}"]


def test_a_file_that_is_no_record_is_said_to_be_none(tmp_path: Path) -> None:
    """With its name."""
    path = tmp_path / "window.json"
    path.write_text("{}")
    with pytest.raises(CaptureError, match=r"window\.json is not the record of a window"):
        load_window_record(path)


def test_what_is_asked_before_the_ranks_were_told_says_nothing(tmp_path: Path) -> None:
    """They know nothing of a request that is only proposed; they have not begun anew."""
    known = windows(tmp_path)
    known.begin(5, asked(60.0))
    known.hear(5, {rank: said(rank, "") for rank in (0, 2)})
    known.settle(Agreement(5, 30, (0, 2), {}))
    assert known.waits == (4, 5)
    known.hear(5, {rank: said(rank, "saved") for rank in (0, 2)})
    (record,) = (load_window_record(path) for path in tmp_path.rglob("step_32*/info/window.json"))
    assert (record.missing, record.complete) == ({}, True)


def test_an_older_window_is_asked_about_however_many_follow(tmp_path: Path) -> None:
    """Each in turn: newer ones come all the time where edits do."""
    known = windows(tmp_path)
    known.hear(4, {rank: said(rank, "waiting") for rank in range(3)})
    for number in range(5, 25):
        known.begin(number, asked(60.0 * number))
        known.settle(Agreement(number, 30 * number, (0, 2), {}))
        if (heard := known.number) == 4:
            break
        known.hear(heard, {rank: said(rank, "waiting") for rank in (0, 2)})
    assert heard == 4


def test_a_rank_that_records_though_it_was_not_heard_is_no_missing_one(tmp_path: Path) -> None:
    """It was told the step, and stopped before it could say so; other edits came meanwhile."""
    known = windows(tmp_path)
    known.begin(5, asked(60.0))
    silent = "it did not answer in time"
    known.settle(Agreement(5, 30, (0,), {1: silent, 2: silent}))
    known.hear(4, {rank: said(rank, "saved") for rank in range(3)})
    known.hear(5, {0: said(0, "saved")})
    known.begin(6, asked(120.0))
    known.settle(Agreement(6, 60, (0,), {}))
    for _ in range(3):
        if known.number == 5:
            known.hear(5, {0: said(0, "saved"), 1: said(1, "saved"), 2: said(2, "refused")})
        else:
            known.hear(6, {0: said(0, "saved")})
    (record,) = (load_window_record(path) for path in tmp_path.rglob("step_32*/info/window.json"))
    assert {rank: one.capture for rank, one in record.ranks.items()} == {0: "/c0", 1: "/c1"}
    assert (record.asked, record.missing) == ((0, 1, 2), {2: silent})


def test_a_rank_that_saves_after_its_silence_is_in_the_record(tmp_path: Path) -> None:
    """It was stopped while the others saved; few windows are kept for such ranks."""
    known = windows(tmp_path)
    known.hear(4, {0: said(0, "saved"), 1: said(1, "saved")})
    assert not known.waits
    for number in range(5, 8):
        known.begin(number, asked(60.0 * number))
        known.settle(Agreement(number, 30 * number, (0, 1), {}))
        known.hear(number, {0: said(0, "saved"), 1: said(1, "saved")})
    assert known.number == 4
    known.hear(4, {rank: said(rank, "saved") for rank in range(3)})
    (record,) = (load_window_record(path) for path in tmp_path.rglob("step_9-*/info/window.json"))
    assert set(record.ranks) == {0, 1, 2}


def test_windows_of_which_there_may_be_news_are_asked_about_first(tmp_path: Path) -> None:
    """Else the turn of one comes seldom where others are kept: the job may have ended by then."""
    known = windows(tmp_path)
    for number in (5, 6, 7):
        known.begin(number, asked(60.0 * number))
        known.settle(Agreement(number, 30 * number, (0, 1), {}))
    known.hear(5, {0: said(0, "saved")})  # rank 1 is silent, and may have saved it, too
    known.hear(7, {rank: said(rank, "saved") for rank in (0, 1)})
    assert (known.under_way, known.unheard) == (3, True)
    found = []
    for _ in range(4):
        found.append(known.number)
        known.hear(known.number, {rank: said(rank, "open") for rank in range(3)})
    assert found[:2] == [4, 6]
    assert 7 not in found
    for number in (4, 5, 6):
        known.hear(number, {rank: said(rank, "saved") for rank in range(3)})
    assert (known.under_way, known.unheard, known.number) == (0, False, 7)


def test_a_rank_that_knows_nothing_of_a_window_has_been_heard(tmp_path: Path) -> None:
    """It fell silent before it was told the step: nothing more comes of it."""
    known = windows(tmp_path)
    known.begin(5, asked(60.0))
    known.settle(Agreement(5, 30, (0,), {1: "it did not answer in time"}))
    known.hear(4, {rank: said(rank, "saved") for rank in range(3)})
    known.hear(5, {0: said(0, "saved")})
    assert known.unheard
    known.hear(5, {0: said(0, "saved"), 1: said(1, "")})
    assert not known.unheard
