"""The session: edits in, windows and captures out, with a profiler that takes notes."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from logging import LogRecord
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.captures.manifest import Manifest, load_manifest
from dynprof.errors import BackendError, Problem
from dynprof.files.layout import Layout
from dynprof.process.rank import SCRIPT, UNKNOWN, Rank
from dynprof.requests.edits import Edit
from dynprof.session.session import Session
from dynprof.testing import FakeBackend, FakeClock, HandExporter
from dynprof.windows.this_process import Process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dynprof.captures.exporter import Attempt


class Job:
    """A training job with a session that only this test moves."""

    def __init__(self, root: Path, *, hold: bool = False, memory_mb: list[float] | None = None):
        self.root, self.clock, self.backend = root, FakeClock(), FakeBackend()
        self.exporters: list[HandExporter] = []
        readings = iter(memory_mb or [])
        process = Process(
            Layout(root, 0, "host", 42),
            Rank(0, 1, "test"),
            (self.backend,),
            clock=self.clock,
            memory_mb=lambda: next(readings, 0.0),
        )
        self.session = Session(
            process, make_exporter=lambda attempt: self._exporter(attempt, hold=hold)
        )

    def _exporter(self, attempt: Attempt, *, hold: bool) -> HandExporter:
        self.exporters.append(HandExporter(attempt, hold=hold))
        return self.exporters[-1]

    @property
    def saving(self) -> HandExporter:
        """The exporter."""
        return self.exporters[0]

    def edit(self, **config: Any) -> None:
        """Save a config."""
        self.clock.advance(1)
        self.session.take(Edit(json.dumps(config).encode(), self.clock.wall))

    def step(self, times: int = 1) -> None:
        """Take training steps of 10 ms."""
        for _ in range(times):
            self.clock.advance(0.01)
            self.session.inbox.step += 1
            if self.session.inbox.due:
                self.session.inbox.on_due()

    @property
    def state(self) -> str:
        """The state that the status names."""
        return self.session.status().state

    def manifests(self) -> list[Manifest]:
        """Return the manifests written, in the order of their requests."""
        found = map(load_manifest, self.root.glob("**/rank_0.info.json"))
        return sorted(found, key=lambda m: m.request.number)

    def shown(self, path: Path) -> str:
        """Return a path as the status names it."""
        return str(path.relative_to(self.root))

    def log(self) -> str:
        """Return what the session said so far."""
        lines = []
        queue = self.session._journal._lines
        while not queue.empty():
            record = queue.get()
            lines.append(record.getMessage() if isinstance(record, LogRecord) else "")
        return "\n".join(lines)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job that saves captures at once."""
    return Job(tmp_path)


@pytest.fixture
def slow_job(tmp_path: Path) -> Iterator[Job]:
    """Return a job whose captures are saved when the test says so."""
    job = Job(tmp_path, hold=True)
    yield job
    job.saving.finish()


def test_an_edit_gives_exactly_the_next_steps(job: Job) -> None:
    """Saved during step 5: step 6 and 7 warm up, 8 to 10 are recorded, then nothing is due."""
    job.step(5)
    job.edit(warmup=2, active=3)
    assert job.state == "waiting"
    job.step()
    assert job.state == "warmup"
    job.step(2)
    assert job.state == "recording"
    job.step(3)
    (manifest,) = job.manifests()
    assert job.backend.recordings[0].steps == [8, 9, 10]
    assert manifest.steps.model_dump() == {"first": 8, "last": 10, "recorded": 3, "warmup": 2}
    assert manifest.complete
    assert manifest.reason == ""
    job.step()
    assert not job.session.inbox.due
    assert job.state == "idle"


def test_what_lies_there_afterwards(job: Job) -> None:
    """The folder holds trace, manifest and metadata, under names that all ranks can share."""
    job.edit(active=2, metadata={"run": 7})
    job.step(3)
    (folder,) = [p for p in job.root.iterdir() if p.name.startswith("step_")]
    assert folder.name == "step_1-2_20231114T221321Z"
    (manifest,) = job.manifests()
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert names == [manifest.trace, "info/rank_0.info.json", "info/rank_0.metadata.json"]
    assert manifest.trace
    assert manifest.trace.startswith("host_42.rank0.")
    assert manifest.trace.endswith(".fake.trace.json.gz")
    assert json.loads((folder / "info" / "rank_0.metadata.json").read_text()) == {"run": 7}
    assert manifest.request.config == {"active": 2, "metadata": {"run": 7}}
    assert manifest.trace_bytes == (folder / manifest.trace).stat().st_size
    assert job.session.status().last_capture == f"{folder.name}/info/rank_0.info.json"


def test_the_bill_is_measured(job: Job) -> None:
    """Step times before, while and after are those that passed."""
    for _ in range(4):
        job.session._tick()
        job.step(100)
    job.edit(active=2)
    job.step(3)
    job.step(1100)
    job.session._tick()
    (manifest,) = job.manifests()
    assert manifest.cost.step_before_ms == pytest.approx(10, rel=0.3)
    assert manifest.cost.step_during_ms == pytest.approx(10)
    assert manifest.cost.step_after_ms == pytest.approx(10)


def test_the_bill_of_a_slow_save(slow_job: Job) -> None:
    """30 slow steps of 15 ms while saving, beside the usual 10 ms, are 150 ms lost in all."""
    job = slow_job
    for _ in range(4):
        job.session._tick()
        job.step(100)
    job.edit(active=2)
    job.clock.advance(-1)  # the pause of the edit is none of the loop
    job.step(3)
    assert job.state == "saving"
    for _ in range(30):
        job.clock.advance(0.005)
        job.step()
    job.saving.finish()
    job.step(1100)
    job.session._tick()
    (manifest,) = job.manifests()
    assert manifest.cost.step_saving_ms == pytest.approx(15, rel=0.05)
    assert manifest.cost.step_after_ms == pytest.approx(10)
    assert manifest.cost.extra_ms == pytest.approx(150, rel=0.1)


@pytest.mark.parametrize("taken", ["folder", "manifest"])
def test_a_capture_taken_away_before_its_bill_is_no_error(job: Job, taken: str) -> None:
    """Whoever moves or deletes a fresh capture sees no error, and nothing of it comes back."""
    job.edit(active=2)
    job.step(4)
    (manifest,) = job.root.glob("step_*/info/rank_0.info.json")
    if taken == "folder":
        shutil.rmtree(manifest.parent.parent)
    else:
        manifest.unlink()
    job.step(1100)
    job.session._tick()
    assert not manifest.exists()
    assert job.session.status().last_error is None
    assert "failed" not in job.log()


def test_a_later_step_is_waited_for(job: Job) -> None:
    """Nothing opens before the start step, and the window opens exactly there."""
    job.edit(start_step=20, active=1)
    job.step(19)
    assert (job.state, job.backend.recordings) == ("waiting", [])
    job.step()
    assert job.state == "recording"
    job.step()
    assert job.backend.recordings[0].steps == [20]


def test_an_invalid_edit_changes_nothing_that_runs(job: Job) -> None:
    """A window goes on through a bad edit; the problems stand in the status."""
    job.edit(active=3)
    job.step(2)
    job.edit(active=0, activties=["CPU"])
    status = job.session.status()
    assert status.state == "recording"
    assert any('did you mean "activities"' in text for text in status.problems)
    job.step(2)
    assert [m.complete for m in job.manifests()] == [True]
    job.edit(active=1)
    assert job.session.status().problems == ()


def test_the_newest_edit_waits_its_turn(job: Job) -> None:
    """Of two edits during a window the newer is served after it, the other is superseded."""
    job.edit(active=3)
    job.step(2)
    job.edit(active=7)
    job.edit(active=2)
    job.step(10)
    assert [m.steps.recorded for m in job.manifests()] == [3, 2]
    log = job.log()
    assert "request 2: superseded by request 3" in log
    behind = "opens at the next step, once the open window (request 1 for steps 1-3) is closed"
    assert behind in log


def test_cancel_closes_the_open_window(job: Job) -> None:
    """The window closes at the next step boundary with the steps that it has."""
    job.edit(active=100)
    job.step(5)
    job.edit(cancel=True)
    job.step()
    (manifest,) = job.manifests()
    assert (manifest.complete, manifest.steps.recorded) == (False, 5)
    assert manifest.reason == "cancelled by request 2"
    job.step()
    assert not job.session.inbox.due


def test_cancel_disarms_a_waiting_request(job: Job) -> None:
    """What waits for its step is forgotten; with nothing there, that is said."""
    job.edit(start_step=50)
    job.edit(cancel=True)
    job.step(60)
    assert job.backend.recordings == []
    job.edit(cancel=True)
    assert "nothing is open or waiting" in job.log()


def test_a_cancel_that_stands_on_is_answered_once(job: Job) -> None:
    """What the next save changes is a request, with a remark; saved again as it is, it cancels."""
    job.edit(cancel=True)
    job.edit(cancel=True, active=2)
    assert job.state == "waiting"
    (remark,) = job.session.status().remarks
    assert remark.startswith("line 1, column 2, /cancel: it stood in the save before too")
    job.step(5)
    assert [m.steps.recorded for m in job.manifests()] == [2]
    job.edit(cancel=True, active=100)
    job.step(2)
    job.edit(cancel=True, active=100)
    job.step()
    assert job.manifests()[-1].reason == "cancelled by request 4"


def test_a_cancel_is_news_after_a_save_without_one(job: Job) -> None:
    """Whatever changes beside it, a cancel that is set cancels; a save that is refused is none."""
    job.edit(active=100)
    job.step(2)
    job.edit(active=0, cancel=True)
    assert job.state == "recording"
    job.edit(active=3, cancel=True)
    job.step()
    assert job.manifests()[-1].reason == "cancelled by request 3"


def test_a_cancel_that_was_there_at_the_start_is_no_news(tmp_path: Path) -> None:
    """A job that restarts beside an old cancel takes the next change for what it is."""
    (tmp_path / "profiler_config.json").write_text('{"cancel": true, "active": 1}')
    job = Job(tmp_path)
    job.edit(cancel=True, active=2)
    job.step(4)
    assert [m.steps.recorded for m in job.manifests()] == [2]


def test_a_script_that_starts_a_window_gets_one(tmp_path: Path) -> None:
    """``start()`` asks for a window, so a cancel in its file does nothing, and that is said."""
    path = tmp_path / "profiler_config.json"
    path.write_text('{"cancel": true}')
    job = Job(tmp_path)
    job.session.start(None)
    job.step(2)
    (manifest,) = job.manifests()
    assert manifest.complete
    assert "/cancel: has no effect: the script itself asks" in manifest.remarks[0]


def test_a_cancel_does_not_reach_the_next_window(job: Job) -> None:
    """An order to close ends with the window that it was meant for."""
    job.edit(active=1)
    job.step()
    job.edit(cancel=True)
    job.step()
    job.edit(active=3)
    job.step(5)
    assert [m.complete for m in job.manifests()] == [True, True]


def test_while_a_save_runs_the_next_window_waits(slow_job: Job) -> None:
    """Nothing is recorded while the last capture is being saved; then the request is served."""
    slow_job.edit(active=1)
    slow_job.step(2)
    assert slow_job.state == "saving"
    slow_job.edit(active=1)
    slow_job.step(3)
    assert len(slow_job.backend.recordings) == 1
    slow_job.saving.finish()
    slow_job.step()
    assert len(slow_job.backend.recordings) == 2
    assert "waits, the last capture is being saved" in slow_job.log()


def test_a_start_step_that_went_by_while_waiting_is_refused(slow_job: Job) -> None:
    """A request that could not be served in time says so."""
    slow_job.edit(active=1)
    slow_job.step(2)
    slow_job.edit(start_step=4)
    slow_job.step(6)
    slow_job.saving.finish()
    slow_job.step()
    assert len(slow_job.backend.recordings) == 1
    assert "step 4 has begun already" in slow_job.session.status().problems[0]


def test_max_seconds_closes_early(job: Job) -> None:
    """At the first step end after the limit the window closes with what it has."""
    job.edit(active=100, limits={"max_seconds": 0.035})
    job.step(10)
    (manifest,) = job.manifests()
    assert manifest.steps.recorded == 4
    assert "limits.max_seconds is 0.035" in manifest.reason


def test_max_memory_closes_early(tmp_path: Path) -> None:
    """At the first step end at which the process has grown too much the window closes."""
    job = Job(tmp_path, memory_mb=[1000, 1010, 1020, 1031])
    job.edit(active=100, limits={"max_memory_mb": 30})
    job.step(10)
    (manifest,) = job.manifests()
    assert manifest.steps.recorded == 3
    assert "grew by 31 MB" in manifest.reason


def test_a_disk_that_filled_up_while_waiting_refuses(job: Job) -> None:
    """The disk is looked at again before the window opens."""
    job.edit(start_step=5, limits={"min_free_disk_mb": 0.001})
    job.session.inbox.free_disk_mb = 0.0
    job.step(6)
    assert job.backend.recordings == []
    assert "MB are free now" in job.session.status().problems[0]


def test_a_manifest_that_cannot_be_written_is_no_capture(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status goes on naming the capture before it; the log says what failed."""
    job.edit(active=1)
    job.step(2)
    before = job.session.status().last_capture

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path), len(text))

    monkeypatch.setattr("dynprof.captures.manifest.write_atomic", full)
    job.edit(active=1)
    job.step(2)
    status = job.session.status()
    assert status.last_capture == before is not None
    assert (status.edits[-1].outcome, status.edits[-1].capture) == ("failed", None)
    assert "its manifest is missing: OSError: [Errno 28]" in status.edits[-1].text
    monkeypatch.undo()
    job.step(1100)
    job.session._tick()
    assert [m.reason for m in job.manifests()][1:] == [
        "saving it has begun and not ended; a process that was killed leaves it so"
    ]


@pytest.mark.parametrize("call", ["prepare", "start", "begin_step", "stop", "save", "discard"])
def test_a_failing_backend_costs_a_capture_never_the_job(job: Job, call: str) -> None:
    """Whatever the backend raises, steps go on, a manifest says why, the next window works."""
    job.backend.fail_at = {call}
    warmup = 3 if call == "discard" else 0
    job.edit(active=2, warmup=warmup)
    job.step()
    if call == "discard":
        job.edit(cancel=True)
    job.step(5)
    manifest = job.manifests()[0]
    assert not manifest.complete
    if call != "discard":
        assert f"{call} was told to fail" in manifest.reason
    assert manifest.trace is None
    assert job.backend.running == 0
    assert f"{call} was told to fail" in str(job.session.status().last_error)
    assert "Traceback" in job.log()
    job.backend.fail_at = set()
    job.edit(active=1)
    job.step(2)
    assert job.manifests()[-1].complete


def test_a_backend_that_says_why_it_cannot_is_a_refusal(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy profiler is refused in words, without a traceback."""

    def busy(*_: object) -> None:
        raise BackendError("another profiler is active")

    monkeypatch.setattr(job.backend, "prepare", busy)
    job.edit(active=1)
    job.step(2)
    assert job.session.status().problems == ("/backend: another profiler is active.",)
    assert "Traceback" not in job.log()
    assert not job.session.inbox.due


def test_a_backend_that_keeps_failing_rests_until_the_next_edit(job: Job) -> None:
    """After three failures ``start()`` no longer tries; an edit does."""
    (job.root / "other.json").write_text('{"active": 1}')
    job.backend.fail_at = {"stop"}
    for _ in range(5):
        job.session.start(job.root / "other.json")
        job.step(2)
    assert len(job.backend.recordings) == 3
    assert "rests until the next edit" in job.session.status().problems[0]
    job.edit(active=1)
    job.step(2)
    assert len(job.backend.recordings) == 4


def test_refusals_are_no_failures(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that asks beside its own profiler again and again is served once that has ended."""
    (job.root / "other.json").write_text('{"active": 1}')

    def busy(*_: object) -> None:
        raise BackendError("another profiler is active")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(job.backend, "prepare", busy)
        for _ in range(5):
            job.session.start(job.root / "other.json")
            assert job.session.status().problems == ("/backend: another profiler is active.",)
    job.session.start(job.root / "other.json")
    job.step(2)
    assert job.manifests()[-1].complete


def test_only_failures_in_a_row_count(job: Job) -> None:
    """A window that works in between clears the count."""
    (job.root / "other.json").write_text('{"active": 1}')
    for fails in (True, True, False, True, True, False):
        job.backend.fail_at = {"stop"} if fails else set()
        job.session.start(job.root / "other.json")
        job.step(2)
    assert len(job.backend.recordings) == 6


def test_an_obstacle_is_waited_out(job: Job) -> None:
    """While a graph is captured nothing opens and no step ends."""
    job.backend.in_the_way = "a CUDA graph is being captured"
    job.edit(active=2)
    job.step(3)
    assert job.backend.recordings == []
    job.backend.in_the_way = None
    job.step()
    job.backend.in_the_way = "a CUDA graph is being captured"
    job.step()
    assert job.session.status().progress == (0, 2)
    job.backend.in_the_way = None
    job.step(2)
    assert job.manifests()[0].complete
    assert job.log().count("a CUDA graph is being captured") == 2


def test_who_can_wait_does_so_for_a_cheaper_close(job: Job) -> None:
    """Any step will do: it waits while the backend hesitates. A named step is kept."""
    job.backend.hesitates = "the self-test is still running"
    job.edit(active=1)
    job.step(3)
    assert job.backend.recordings == []
    assert "request 1: waits, the self-test is still running" in job.log()
    job.edit(active=1, start_step=5)
    job.step(3)
    assert job.backend.recordings[0].steps == [5]
    (job.root / "other.json").write_text('{"active": 1}')
    job.session.start(job.root / "other.json")
    assert len(job.backend.recordings) == 2


def test_a_backend_that_cannot_be_prepared_leaves_nothing_open(job: Job) -> None:
    """A later cancel finds nothing to close."""
    job.backend.fail_at = {"prepare"}
    job.edit(active=1)
    job.step()
    job.log()
    job.edit(cancel=True)
    assert "cancel, but nothing is open or waiting" in job.log()


def test_a_process_group_knows_better_than_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.distributed says goes before a variable, but not before the script."""
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 3,
        get_world_size=lambda: 4,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    for before, after in (
        (Rank(0, 1, UNKNOWN), 3),
        (Rank(1, 2, "SLURM_PROCID"), 3),
        (Rank(1, 2, SCRIPT), 1),
    ):
        assert before.asked_again().number == after


def test_start_opens_now(job: Job) -> None:
    """``start()`` takes the config's file or another, ignores its start step, opens at once."""
    job.step(7)
    (job.root / "profiler_config.json").write_text('{"active": 2, "start_step": 99}')
    job.session.start(None)
    assert job.state == "recording"
    job.session.start(None)
    job.step(2)
    assert job.backend.recordings[0].steps == [7, 8]
    assert len(job.backend.recordings) == 1
    job.session.start(job.root / "missing.json")
    assert "gone" in job.session.status().problems[0]


def test_stop_closes_now(job: Job) -> None:
    """``stop()`` keeps the whole steps that there are."""
    job.edit(active=100)
    job.step(4)
    job.session.stop()
    (manifest,) = job.manifests()
    assert (manifest.reason, manifest.steps.recorded) == ("stopped by the script", 3)
    job.session.stop()


def test_stop_from_another_thread_waits_for_the_step(job: Job) -> None:
    """Only the training thread touches the profiler."""
    job.edit(active=100)
    job.step(4)
    other = threading.Thread(target=job.session.stop)
    other.start()
    other.join()
    assert job.state == "recording"
    job.step()
    assert job.manifests()[0].reason == "stopped by the script"


def test_step_from_another_thread_does_not_move_the_window(job: Job) -> None:
    """Steps of a second thread are not taken for those of the first."""
    job.edit(active=2)
    job.step()
    other = threading.Thread(target=job.step, args=(5,))
    other.start()
    other.join()
    assert job.session.status().progress == (0, 2)
    assert "another thread" in job.log()


def test_a_window_whose_thread_is_gone_is_given_up(job: Job) -> None:
    """Training that moves to another thread does not leave a window open for ever."""

    def open_window() -> None:
        job.edit(active=5)
        job.step()

    other = threading.Thread(target=open_window)
    other.start()
    other.join()
    job.step()
    (manifest,) = job.manifests()
    assert "the thread that it was opened on has ended" in manifest.reason
    job.edit(active=1)
    job.step(2)
    assert job.manifests()[-1].complete


def test_a_window_of_another_thread_can_be_cancelled(job: Job) -> None:
    """Where its own thread takes no more steps, a cancel lets the window go."""
    opened, over = threading.Event(), threading.Event()

    def open_window() -> None:
        job.edit(active=5)
        job.step()
        opened.set()
        over.wait()

    other = threading.Thread(target=open_window)
    other.start()
    opened.wait()
    job.step()
    assert job.state == "recording"
    job.edit(cancel=True)
    job.step()
    over.set()
    other.join()
    assert "cancelled by request 2" in job.manifests()[0].reason


def test_the_end_on_another_thread_leaves_the_profiler_alone(job: Job) -> None:
    """A profiler bound to a thread that takes no more steps is not touched from another."""

    def open_window() -> None:
        job.edit(active=5)
        job.step(2)

    other = threading.Thread(target=open_window)
    other.start()
    other.join()
    job.session.end("the process ended")
    (manifest,) = job.manifests()
    assert "the process ended; only the thread that opened" in manifest.reason
    assert job.backend.recordings[0].calls[-1] == "orphan"


def test_the_end_waits_for_the_step_of_the_training_thread(job: Job) -> None:
    """Shut down from elsewhere, a window is closed by its own thread, and kept."""
    opened, over = threading.Event(), threading.Event()

    def train() -> None:
        job.edit(active=500_000)
        job.step(3)
        opened.set()
        while not over.is_set():
            job.step()

    other = threading.Thread(target=train)
    other.start()
    opened.wait()
    job.session.end("shutdown() was called")
    over.set()
    other.join()
    (manifest,) = job.manifests()
    assert (manifest.complete, manifest.reason) == (False, "shutdown() was called")
    assert manifest.trace


def test_two_processes_of_one_rank_are_said(job: Job, tmp_path: Path) -> None:
    """A second process that takes itself for the same rank in the same directory warns."""
    job.session.begin()
    job.session.end("a test")
    status = job.session._process.layout.status
    alive = {**json.loads(status.read_text()), "state": "idle", "pid": 7, "host": "node3"}
    status.write_text(json.dumps(alive))
    other = Job(tmp_path)
    other.session.begin()
    other.session.end("a test")
    log = (tmp_path / "log" / "dp_host_42_rank_0.log").read_text()
    assert log.count("process 7 on node3 is rank 0 in this directory too") == 1


def test_a_forked_child_lets_go_of_the_recording(job: Job) -> None:
    """The child's copy of an open recording is stopped; nothing else is touched."""
    job.edit(active=5)
    job.step()
    job.session.leave_child()
    assert job.backend.recordings[0].calls[-1] == "leave_child"


def test_joined_steps_are_said(job: Job) -> None:
    """A manifest whose steps were joined around an obstacle names them."""
    job.edit(active=3)
    job.step(2)
    job.backend.in_the_way = "a CUDA graph is being captured"
    job.step()
    job.backend.in_the_way = None
    job.step(3)
    (manifest,) = job.manifests()
    text = "step 3 is part of the one before: a CUDA graph is being captured"
    assert manifest.remarks == (text, "the recorded steps are 1, 2, 4")
    assert (manifest.steps.first, manifest.steps.last, manifest.steps.recorded) == (1, 4, 3)


def test_a_refused_edit_does_not_touch_a_waiting_one(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The full disk of another prof_dir is not that of the request that waits."""
    job.edit(start_step=3)
    monkeypatch.setattr("dynprof.session.edit_handler.free_disk_mb", lambda _: 10.0)
    job.edit(prof_dir="elsewhere", start_step=3)
    job.step(4)
    assert job.manifests()[0].complete


def test_steps_that_were_renumbered_are_not_averaged(job: Job) -> None:
    """A resumed job's step number says nothing of its speed."""
    job.session._tick()
    job.step(100)
    job.session.set_step(1_200_000)
    assert job.session.status().step_ms is None
    job.session._tick()
    job.step(10)
    assert job.session.status().step_ms == pytest.approx(10)


def test_the_step_can_be_set(job: Job) -> None:
    """A resumed job names its step; an open window closes first."""
    job.session.set_step(1200)
    job.edit(active=5)
    job.step(2)
    assert job.backend.recordings[0].steps == [1201, 1202]
    job.session.set_step(3000)
    assert "from 1202 to 3000" in job.manifests()[0].reason
    assert job.session.inbox.step == 3000


def test_the_end_of_the_job_keeps_an_open_window(slow_job: Job) -> None:
    """What is open is closed, marked incomplete and saved; what waits is said."""
    slow_job.edit(active=50)
    slow_job.step(4)
    slow_job.edit(active=1)
    slow_job.session.end("the process ended")
    (manifest,) = slow_job.manifests()
    assert (manifest.complete, manifest.reason) == (False, "the process ended")
    assert manifest.trace
    assert slow_job.state == "stopped"
    assert "request 2: not served, the process ended" in slow_job.log()
    slow_job.session.end("again")


def test_a_prof_dir_that_is_a_file_is_a_refusal(job: Job) -> None:
    """A capture that could not be saved is not begun."""
    (job.root / "taken").touch()
    for prof_dir, words in (
        ("taken", "taken is not a directory"),
        ("taken/below", "taken is not a directory"),
        ("x" * 300, "File name too long"),
    ):
        job.edit(prof_dir=prof_dir)
        job.step(3)
        assert words in job.session.status().problems[0]
    assert job.backend.recordings == []


def _refused(_: Manifest, path: Path) -> None:
    raise PermissionError(13, "Permission denied", str(path))


def test_what_fails_every_second_is_said_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that can no longer be written does not fill the log."""
    job.edit(active=1)
    job.step(2)
    monkeypatch.setattr(Manifest, "save", _refused)
    for _ in range(5):
        job.step(1100)
        job.session._tick()
    assert job.log().count("Traceback") == 1
    monkeypatch.undo()
    shutil.rmtree(job.root)
    job.root.mkdir()
    job.edit(active=1)
    job.step(2)
    shown = [job.shown(path) for path in job.root.rglob("*.info.json")]
    assert [job.session.status().last_capture] == shown


def test_an_unreadable_file_is_a_refusal(job: Job) -> None:
    """What hindered the reading is the problem that is reported."""
    job.session.take(Edit(b"", job.clock.wall, (Problem("everybody may write the file"),)))
    assert job.session.status().problems == ("everybody may write the file",)
