"""Files of stacks: their size, and who answers a request."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import pytest

from dynprof.errors import CaptureError
from dynprof.journal import stack_dump
from dynprof.journal.stack_dump import (
    MAX_BYTES,
    StackDump,
    load_dump,
    next_on_machine,
    request_stacks,
    why_silent,
    write_dump,
)
from dynprof.journal.status import Status
from dynprof.runtime.layout import Layout
from dynprof.runtime.stacks import MAIN, ProcessStacks, ThreadStack

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fake_job import Job

FRAMES = tuple(f"step_{number} (/data/{'x' * 280}.py:{number})" for number in range(100))
THREADS = tuple(ThreadStack(MAIN if n == 0 else f"reader-{n}", FRAMES) for n in range(25))


def dump_of(*processes: ProcessStacks) -> StackDump:
    """Return the stacks of a rank with child processes."""
    first, *children = processes
    return StackDump(0, "", "host", 7, 1e9, "the job", first, tuple(children))


def test_a_file_of_stacks_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A file that fits has all threads; it is private to user and group."""
    whole = dump_of(ProcessStacks(42, threads=THREADS[:3]), ProcessStacks(43, why_none="it ended"))
    write_dump(tmp_path / "a.stacks", whole)
    assert load_dump(tmp_path / "a.stacks") == whole
    assert (tmp_path / "a.stacks").stat().st_mode & 0o007 == 0


def test_too_many_stacks_are_shortened_to_the_main_threads(tmp_path: Path) -> None:
    """Every process keeps its main thread, and the number of those left out."""
    processes = [ProcessStacks(pid, threads=THREADS, left_out=5) for pid in range(42, 107)]
    write_dump(tmp_path / "a.stacks", dump_of(*processes))
    assert (tmp_path / "a.stacks").stat().st_size < MAX_BYTES
    found = load_dump(tmp_path / "a.stacks")
    assert {len(one.threads) for one in (found.process, *found.children)} == {1}
    assert (found.children[-1].threads[0].name, found.children[-1].left_out) == (MAIN, 29)


def test_a_file_without_stacks_is_refused(tmp_path: Path) -> None:
    """Another user may have written it."""
    (tmp_path / "a.stacks").write_text('{"rank": "x"}')
    with pytest.raises(CaptureError, match="has no stacks: it is not JSON with their fields"):
        load_dump(tmp_path / "a.stacks")


def test_a_request_is_answered_once(job: Job) -> None:
    """The answer names the request; a request of before the start is not this process's."""
    stacks, layout = job.session._periodic_checks._stacks, job.session._process.layout
    for folder in (layout.log.parent, layout.status.parent):
        layout.make_dir(folder)
    stacks.answer_request()
    assert not layout.stacks.exists()
    request = request_stacks(layout)
    for _ in range(2):
        stacks.answer_request()
        if stacks._completing:
            stacks._completing.join()
    assert load_dump(layout.stacks).request == request
    assert job.log().count("stacks were requested; the stacks of ") == 1


def test_stacks_that_cannot_be_written_are_named_in_the_log(job: Job) -> None:
    """The disk may be what the step waits for."""
    assert job.session._periodic_checks._stacks.take().startswith(
        "the stacks of its threads cannot be written: "
    )


def test_stacks_are_complete_without_the_flight_recorder(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of torch may have another one; the log names the failure."""

    def fail() -> tuple[str, ...]:
        raise KeyError("pg_status")

    stacks, layout = job.session._periodic_checks._stacks, job.session._process.layout
    layout.make_dir(layout.log.parent)
    monkeypatch.setattr(stack_dump, "unfinished_collectives", fail)
    stacks.take()
    assert stacks._completing
    stacks._completing.join()
    found = load_dump(layout.stacks)
    assert (found.complete, found.collectives) == (True, ())
    assert "reading torch's flight recorder failed: KeyError: 'pg_status'" in job.log()


def test_children_of_a_stuck_rank_are_in_its_log(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread may wait for one of them; stacks on request are not logged."""
    frames = ("__getitem__ (/data/images.py:9)",)
    worker = ProcessStacks(99, "worker", "sleeping", (ThreadStack(MAIN, frames),))
    monkeypatch.setattr(
        stack_dump, "with_children", lambda dump: replace(dump, children=(worker,), complete=True)
    )
    stacks, layout = job.session._periodic_checks._stacks, job.session._process.layout
    layout.make_dir(layout.log.parent)
    for request, count in (("0", 1), ("17", 0)):
        stacks.take(request)
        assert stacks._completing
        stacks._completing.join()
        said = "in step 0, child 99 of rank 0 (worker, sleeping) is in /data/images.py:9 in "
        assert job.log().count(said) == count


@pytest.mark.parametrize(
    ("rank", "local", "count", "expected"),
    [
        (4, "0", "4", 5),
        (7, "3", "4", 4),
        (0, "0", "1", None),
        (0, None, "4", None),
        (0, "9", "4", None),
    ],
)
def test_each_rank_looks_at_the_next_one_of_its_machine(
    rank: int, local: str | None, count: str, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one looks at the first; a single process looks at none."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", count)
    if local:
        monkeypatch.setenv("LOCAL_RANK", local)
    assert next_on_machine(rank) == expected


def test_a_silent_process_is_described_by_its_state() -> None:
    """What the system shows is said; no cause is guessed."""
    silent = Status("idle", pid=71, heartbeat=0.0)
    assert why_silent(silent, psutil.STATUS_STOPPED).endswith(
        ": it is stopped (SIGSTOP); kill -CONT 71 continues it"
    )
    assert why_silent(silent, psutil.STATUS_DISK_SLEEP).endswith("a disk or a device (state D)")
    assert ": a call holds the GIL, the disk does not answer, or " in why_silent(silent, "")


def test_names_of_stacks_are_no_logs(tmp_path: Path) -> None:
    """The command ``log``, and the search for watching processes, pass them over."""
    layout = Layout(tmp_path, 3, "host", os.getpid())
    assert layout.stacks.parent == layout.log.parent
    assert not layout.stacks.match("dp_*.log*")
