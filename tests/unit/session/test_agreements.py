"""A session takes part in the agreements of its process group, once."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from dynprof.captures.window_record import load_window_record
from dynprof.config import parse_config
from dynprof.coordination.coordinator import Coordinator
from dynprof.coordination.job_group import JobGroup
from dynprof.coordination.job_store import LEADER
from dynprof.coordination.messages import Opening, Proposal
from dynprof.coordination.terms import Agreement
from dynprof.requests.edits import Edit
from dynprof.requests.request import Asked
from dynprof.session import agreements
from dynprof.session.job_windows import JobWindows
from dynprof.session.known_window import NO_ANSWER
from dynprof.session.proposed import Proposed
from tests.memory_store import MemoryStore
from tests.pace import patience_s

if TYPE_CHECKING:
    import pytest

    from tests.fake_job import Job


def test_two_threads_that_see_the_group_come_up_begin_once(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watcher's looks for it at each edit, the journal's each second."""
    begun: list[Coordinator] = []
    store = object()
    group = JobGroup(1, 8, lambda: store)
    second = threading.Thread(target=job.session._agreements.look)

    def make(*given: Any) -> Coordinator:
        if threading.current_thread() is threading.main_thread():
            second.start()
            second.join(0.2)  # it is done by then where nothing keeps it from it
        return Coordinator(*given)

    monkeypatch.setattr(Coordinator, "begin", lambda made, _: begun.append(made))
    monkeypatch.setattr(agreements, "Coordinator", make)
    monkeypatch.setattr(agreements, "group_to_agree_in", lambda *_: group)
    job.session._agreements.look()
    second.join(patience_s())
    assert len(begun) == 1


def test_a_record_comes_to_its_end_where_the_others_are_out_of_reach(job: Job) -> None:
    """The store is lost amid a window: what this rank saves is in it, and who is not heard of."""
    parts, member = job.session._agreements, job.session._member
    raw = b'{"active": 3}'
    parsed = parse_config(raw)
    attempt, warn = parts._wall.attempt, parts._journal.warning
    windows = JobWindows(parts._process, 2, "rank 0", attempt, parts._deliveries, warn)
    member.consider(Proposal(1, raw.decode(), 0.0, 0.0))
    windows.begin(1, Asked(Edit(raw, 0.0), parsed.config, parsed, now=False))
    member.open_at(Opening(1, 5, {}))
    windows.settle(Agreement(1, 5, (0, 1)))
    lost = SimpleNamespace(failed=False, leads=False, look=lambda: None, is_alive=False)
    lost.end = lambda **_: None
    parts._windows, parts._coordinator = windows, cast("Coordinator", lost)
    parts.end()
    record = load_window_record(next(job.root.rglob("window.json")))
    assert record.missing == {}  # what was heard last stays, where they could be asked
    lost.failed = True
    found = []
    for steps in (0, 6, 6):
        job.step(steps)
        parts.look()
        record = load_window_record(next(job.root.rglob("window.json")))
        found.append((record.ranks[0].outcome, record.missing, record.ranks[0].capture != ""))
    gone = {1: NO_ANSWER}
    assert found == [("waiting", gone, False), ("open", gone, False), ("saved", gone, True)]
    told = parts.job
    assert told
    assert (told.request, told.saved, told.asked, told.stragglers) == (1, 1, 2, gone)
    parts._windows = JobWindows(parts._process, 2, "rank 0", attempt, parts._deliveries, warn)
    (before,) = parts.job.earlier if parts.job else ()  # the group is made anew
    assert (before.request, before.saved, before.asked, before.stragglers) == (1, 1, 2, gone)


def test_a_reason_of_another_rank_is_one_line(job: Job) -> None:
    """A path in it may have line breaks and a terminal's codes: it could pass for other lines."""
    reason = "rank 1: no /x\nrank 0: all is well\x1b[31m"
    shown = "rank 1: no /x\\nrank 0: all is well\\x1b[31m"
    job.session._agreements._tell_of(Agreement(1, 7, (0,), {1: reason}))
    assert f"request 1: rank 1 takes no part: {shown}" in job.log().split("\n")
    job.edit(active=2)
    member, made = job.session._member, Agreement(2, None, (), {}, (f"{reason}.",))
    member._pending, member._newest = True, Proposed(2, 1, None)
    job.session._agreements._tell_of(made)
    (answer,) = job.session.status().edits
    assert answer.text == f"{shown}; no rank opens."
    assert f"{shown}; no rank opens." in job.log().split("\n")


class _Files:
    """A store that knows no second connection."""


def test_a_store_that_cannot_serve_is_all_that_is_said(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that the ranks agree before it turns out that they cannot."""
    store = _Files()
    monkeypatch.setattr(agreements, "group_to_agree_in", lambda *_: JobGroup(1, 3, lambda: store))
    parts = job.session._agreements
    parts.look()
    coordinator = parts._coordinator
    assert coordinator
    coordinator._thread.join(patience_s())
    parts.look()
    (line,) = job.log().split("\n")
    assert (
        line
        == "this rank is by itself: the job's _Files knows no second connection, or no append()"
    )
    assert parts.part == ""
    job.edit(active=2)
    assert job.session.inbox.waiting


class Group(JobGroup):
    """Connects at once."""

    def connect(self) -> MemoryStore:
        """Return the store."""
        return cast("MemoryStore", self.store)


def test_that_the_ranks_agree_is_said_once_somebody_leads(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the part of this one; rank 0 need not run dynprof."""
    store = MemoryStore()
    monkeypatch.setattr(agreements, "group_to_agree_in", lambda *_: Group(1, 3, lambda: store))
    job.session._agreements.look()
    while not store.calls:
        threading.Event().wait(0.001)
    assert job.log() == ""
    store.set(LEADER, "rank 0 on a host")
    while not (said := job.log()):
        threading.Event().wait(0.001)
    assert said == "3 ranks agree on the steps of windows; this one follows rank 0"
    job.session._agreements.end()


def test_the_end_of_a_group_holds_up_the_next_one_not_the_status(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who leads hears what becomes of its windows, on a thread of its own; an edit waits."""
    stores, go_on = [MemoryStore(), MemoryStore()], threading.Event()
    groups = [Group(0, 2, lambda: stores[0]), Group(0, 2, lambda: stores[1])]
    monkeypatch.setattr(agreements, "group_to_agree_in", lambda *_: groups[0])
    monkeypatch.setattr(Coordinator, "_hear_the_last", lambda *_: go_on.wait(patience_s()))
    parts = job.session._agreements
    parts.look()
    before = parts._coordinator
    assert before
    while LEADER not in stores[0].values:
        threading.Event().wait(0.001)
    del groups[0]
    parts.look()
    assert parts._coordinator is before
    edit = threading.Thread(target=parts.take, args=(Edit(b'{"cancel": true}', 0.0),))
    edit.start()
    parts.look()
    assert parts._coordinator is before
    go_on.set()
    edit.join(patience_s())
    assert parts._coordinator not in (before, None)
    parts.end()


def test_a_group_that_was_left_is_not_waited_for_where_the_next_one_has_gone_too(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a window is under way: who waits for the end of the first would wait on and on."""
    store = MemoryStore()
    first, second = Group(0, 2, lambda: store), JobGroup(0, 2, lambda: None)
    groups: list[JobGroup | None] = [first, second, None]
    monkeypatch.setattr(agreements, "group_to_agree_in", lambda *_: groups[0])
    monkeypatch.setattr(Coordinator, "is_alive", True)
    monkeypatch.setattr(type(job.session._member), "is_busy", True)
    parts = job.session._agreements
    parts.look()
    before = parts._coordinator
    assert before
    for _ in range(2):
        del groups[0]
        parts.look()
        assert parts._coordinator is before
    monkeypatch.undo()
    before._thread.join(patience_s())
    monkeypatch.setattr(agreements, "group_to_agree_in", lambda *_: None)
    monkeypatch.setattr(type(job.session._member), "is_busy", True)
    parts.look()
    assert parts._coordinator is None
