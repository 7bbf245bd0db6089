"""One contract for every backend: what a window may rely on."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.backends import all_backends
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from dynprof.errors import BackendError
from dynprof.testing import FakeBackend
from tests.integration.backends.plans import RANK, a_plan, no_folder
from tests.integration.running import steps_in, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dynprof.backends import Backend, Recording


def make_backend(name: str) -> Backend:
    """Return a backend that works here."""
    if name == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    return next(backend for backend in all_backends() if backend.name == name)


PROFILERS = ["torch-detached", "torch-inline", "python"]
of_profilers = pytest.mark.parametrize("backend", PROFILERS, indirect=True)


@pytest.fixture(params=[*PROFILERS, "marks"])
def backend(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """Yield each backend in turn, without interference by coverage and debuggers."""
    name, _, closing = request.param.partition("-")
    monkeypatch.setenv("DYNPROF_CLOSE", closing)
    made = make_backend(name)
    if closing == "detached":
        SELF_TEST.begin()
        wait_for("the self-test", lambda: SELF_TEST.answer)
        assert SELF_TEST.answer == ""
    tracer = sys.getprofile()
    sys.setprofile(None)
    yield made
    sys.setprofile(tracer)


def warmup_work() -> None:
    """Run a function whose name the trace must not have."""


def recorded_work() -> None:
    """Run a function whose name the trace must have."""


def record(backend: Backend, steps: list[int], **config: Any) -> Recording:
    """Record some steps after a warm-up."""
    recording = backend.prepare(a_plan(backend, **config), RANK, no_folder)
    warmup_work()
    recording.start()
    for number in steps:
        recording.begin_step(number)
        recorded_work()
    recording.close()
    return recording


def test_name_offer_and_versions_are_given(backend: Backend) -> None:
    """The backend has a name, an offer and versions, and nothing blocks it."""
    capable = backend.capabilities()
    assert (capable.backend, capable.missing) == (backend.name, "")
    assert "CPU" in capable.activities
    assert "python" in backend.versions()
    assert not list(backend.blocked_by(a_plan(backend)))
    assert backend.trace_suffix.endswith(".trace.json")


@pytest.mark.parametrize("steps", [[7], [1200, 1201, 1202]])
def test_steps_are_named_as_the_job_names_them(
    backend: Backend, steps: list[int], tmp_path: Path
) -> None:
    """Each step is in the trace once, with the job's number, in order."""
    path = tmp_path / "trace.json"
    saved = record(backend, steps).save(path)
    trace = {**saved.facts, **json.loads(path.read_text())}
    assert steps_in(trace) == steps
    assert trace["distributedInfo"] == {"backend": "none", "rank": 3, "world_size": 8}


@of_profilers
def test_the_warm_up_is_not_in_the_trace(backend: Backend, tmp_path: Path) -> None:
    """The trace has what ran after ``start``, and nothing from before."""
    path = tmp_path / "trace.json"
    record(backend, [0], with_stack=True).save(path)
    text = path.read_text()
    assert "recorded_work" in text
    assert "warmup_work" not in text


@of_profilers
def test_close_reports_whether_it_was_detached(
    backend: Backend, request: pytest.FixtureRequest
) -> None:
    """The backend tells for the log whether it closed detached, or why not."""
    recording = record(backend, [1])
    inline = "torch-inline" in request.node.name
    assert recording.closing == ("inline: DYNPROF_CLOSE=inline" if inline else "detached")
    recording.discard()


def test_saving_works_on_another_thread(backend: Backend, tmp_path: Path) -> None:
    """The exporter saves while the training thread continues, even with the next recording."""
    path = tmp_path / "trace.json"
    recording = record(backend, [5])
    thread = threading.Thread(target=recording.save, args=(path,))
    thread.start()
    thread.join()
    assert steps_in(json.loads(path.read_text())) == [5]


@of_profilers
def test_a_second_recording_is_refused(backend: Backend) -> None:
    """A second recording is refused with a reason while one runs, and does not disturb it."""
    first = backend.prepare(a_plan(backend), RANK, no_folder)
    first.start()
    with pytest.raises(BackendError, match="active"):
        backend.prepare(a_plan(backend), RANK, no_folder)
    first.begin_step(0)
    first.close()


@pytest.mark.parametrize("moment", ["prepared", "started", "closed"])
def test_a_discarded_recording_leaves_nothing_running(
    backend: Backend, moment: str, tmp_path: Path
) -> None:
    """The next recording works after a discard at any point; a second discard has no effect."""
    recording = backend.prepare(a_plan(backend), RANK, no_folder)
    if moment != "prepared":
        recording.start()
        recording.begin_step(0)
    if moment == "closed":
        recording.close()
    recording.discard()
    recording.discard()
    record(backend, [9]).save(tmp_path / "trace.json")
    assert steps_in(json.loads((tmp_path / "trace.json").read_text())) == [9]


def test_many_recordings_in_a_row(backend: Backend, tmp_path: Path) -> None:
    """Many recordings in one process each have only their own steps."""
    for number in range(20):
        record(backend, [number]).save(tmp_path / "trace.json")
        assert steps_in(json.loads((tmp_path / "trace.json").read_text())) == [number]


def test_the_fake_keeps_the_contract_too(tmp_path: Path) -> None:
    """The fake of unit tests behaves like the real backends."""
    fake = FakeBackend()
    path = tmp_path / "trace.json"
    recording = record(fake, [3, 4])
    recording.save(path)
    assert json.loads(path.read_text())["steps"] == [3, 4]
    assert fake.running == 0
