"""Training jobs with a step that is slow for a known reason: the record names this reason."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.captures.manifest import load_manifest
from tests.integration.commands import dynprof
from tests.integration.launching import end_well, ranks
from tests.integration.running import LOOP, TORCH_JOB, RunningJob, below, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVERY = 60
"""Steps from one injected fault to the next; the steps in between give the usual time."""
JOB = (
    TORCH_JOB
    + """
import ctypes, gc, itertools, os, subprocess, threading
lock, held, go = threading.Lock(), threading.Event(), threading.Event()
def write_log():
    time.sleep(0.4)
def compute():
    until = time.monotonic() + 0.4
    while time.monotonic() < until:
        sum(range(1000))
def collect():
    for _ in range(3):
        gc.collect()
def hold_lock():
    while go.wait():
        go.clear()
        with lock:
            held.set()
            time.sleep(0.4)
def wait_for_lock():
    held.clear()
    go.set()
    held.wait()
    with lock:
        pass
def save():
    until = time.monotonic() + 0.4
    with open("checkpoint", "wb") as file:
        while time.monotonic() < until:
            file.write(bytes(1_000_000))
            file.flush()
            os.fsync(file.fileno())
def stop():
    kill = f"kill -STOP {os.getpid()}; sleep 0.4; kill -CONT {os.getpid()}"
    subprocess.run(["sh", "-c", kill])
def keep_python_waiting():
    ctypes.PyDLL(None).usleep(400_000)
def nothing():
    pass
"""
)
LOOP_OF_JOB = """
garbage = [[{} for _ in range(100)] for _ in range(%d)]
threading.Thread(target=hold_lock, name="logger", daemon=True).start()
dp.init("prof_config")
for number in itertools.count():
    train_one_step()
    time.sleep(0.005)
    if number and number %% %d == 0:
        %s()
    dp.step()
"""
LINE = r" \(job\.py:\d+\)"
CAUSES = {
    "write_log": ("code", rf"ms more in write_log{LINE}, mostly off-CPU"),
    "compute": ("code", rf"ms more in compute{LINE}"),
    "collect": (
        "garbage collection",
        rf"3 garbage collections, up to generation 2, took .* in collect{LINE}",
    ),
    "wait_for_lock": (
        "code",
        rf"ms more in wait_for_lock{LINE}.*thread logger was in hold_lock{LINE}",
    ),
    "save": ("code", rf"ms more in save{LINE}"),
    "stop": ("stopped", "the process did not run for .*SIGSTOP"),
    "keep_python_waiting": (
        "code",
        rf"ms more in keep_python_waiting{LINE}, in a call that holds the GIL",
    ),
}
"""For each injected fault, the cause and the words of the verdict, as patterns."""


@contextlib.contextmanager
def job(folder: Path, fault: str, **watch: Any) -> Iterator[RunningJob]:
    """Run a job with a fault; it watches from its start."""
    loop = LOOP_OF_JOB % (4000 if fault == "collect" else 0, EVERY, fault)
    with watched(folder, JOB + loop, **watch) as running:
        yield running


@contextlib.contextmanager
def watched(folder: Path, script: str, **watch: Any) -> Iterator[RunningJob]:
    """Run a script whose config has the watch."""
    (folder / "prof_config").mkdir()
    (folder / "prof_config" / "profiler_config.json").write_text(json.dumps({"watch": watch}))
    with RunningJob(folder, script) as running:
        yield running


def records(root: Path) -> list[dict[str, Any]]:
    """Return the records of slow steps."""
    return [json.loads(path.read_text()) for path in below(root / "slow_steps", "*.json")]


def record_of_fault(running: RunningJob, cause: str, words: str) -> dict[str, Any]:
    """Wait for a record of an injected slow step with this verdict."""

    def found() -> dict[str, Any] | None:
        slow = [one for one in records(running.root) if one["step"] % EVERY == 0]
        return next(
            (o for o in slow if o["cause"] == cause and re.search(words, o["verdict"])), None
        )

    try:
        return wait_for("the record", found)
    except AssertionError:
        raise AssertionError([one["verdict"] for one in records(running.root)]) from None


@pytest.mark.parametrize("fault", CAUSES)
def test_the_record_of_a_slow_step_names_its_cause(tmp_path: Path, fault: str) -> None:
    """The verdict has the line, the collection, or that the process did not run."""
    with job(tmp_path, fault, slower_than=4) as running:
        record = record_of_fault(running, *CAUSES[fault])
        assert record["ms"] > 4 * record["usual_ms"]
        wait_for("the log", lambda: record["verdict"] in running.log() or None)
    page = next(iter(below(running.root / "slow_steps", f"*_{record['step']}_*.html")))
    assert record["title"] in page.read_text()


def test_nothing_is_written_where_no_step_is_slow(tmp_path: Path) -> None:
    """A watch whose limit no step exceeds leaves no file, and status shows what it costs."""
    with job(tmp_path, "nothing", longer_than_ms=1e8) as running:
        status = running.when("the share", lambda s: bool(s.watch and s.watch.share_percent))
        assert status.watch
        assert (status.watch.slow_steps, status.watch.limit_ms) == (0, 1e8)
        running.when("steps", lambda s: s.step > status.step + 100)
        assert not (running.root / "slow_steps").exists()
        assert "watches for steps over 100,000,000 ms" in dynprof("status", running.root)[1]


def test_the_watch_is_switched_on_and_off_in_a_running_job(job_folder: Path) -> None:
    """Each save that changes only the watch requests no window, and a repeat changes nothing."""
    with RunningJob(job_folder, LOOP) as running:
        running.when("the start", lambda s: s.step > 0)
        code, _, errors = dynprof("arm", running.root, "--watch", "--wait")
        assert (code, errors.splitlines()[0]) == (
            0,
            f"{running.config} is saved; 1 live rank watches for slow steps",
        )
        assert json.loads(running.config.read_text())["watch"] == {"slower_than": 1.5}
        running.when("the watch", lambda s: s.watch is not None)
        code, _, errors = dynprof("arm", running.root, "--watch")
        assert (code, "the watch is on already" in errors) == (0, True)
        code, _, errors = dynprof("arm", running.root, "--watch", "--active", 2)
        assert (code, "by itself" in errors) == (2, True)
        assert dynprof("arm", running.root, "--slower-than", 2, "--wait")[0] == 0
        assert json.loads(running.config.read_text())["watch"] == {"slower_than": 2}
        assert dynprof("arm", running.root, "--no-watch", "--wait")[0] == 0
        status = running.when("its end", lambda s: s.watch is None)
        assert [one.outcome for one in status.edits] == ["watch"] * 3
        running.edit(active=1)  # requests a window as ever
        assert running.capture(4)[0].complete


@pytest.fixture
def job_folder(tmp_path: Path) -> Path:
    """Return a folder for a job."""
    return tmp_path


def test_a_window_follows_a_slow_step(tmp_path: Path) -> None:
    """It has the steps that ``then`` requests; the operator's file stays as it is."""
    with job(tmp_path, "write_log", slower_than=4, then={"active": 2}) as running:
        before = running.config.read_bytes()
        manifest, _ = running.capture()
        assert (manifest.complete, manifest.steps.recorded) == (True, 2)
        assert running.config.read_bytes() == before
        assert "2 steps are requested" in running.log()
        trigger = manifest.request.trigger
        assert re.fullmatch(r"slow step \d+ of rank 0", trigger)
        assert f"accepted, requested after {trigger} at " in running.log()


FORKS = """
import gc, os, sys, threading
import torch, dynprof as dp
def state():
    names = [one.name for one in threading.enumerate()]
    return [names, [str(one) for one in gc.callbacks]]
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, place):
        return str(state())
dp.init("prof_config")
for _ in range(3):
    dp.step()
print(state())
print(*torch.utils.data.DataLoader(Data(), num_workers=1, batch_size=None))
if os.fork() == 0:
    print(state(), flush=True)
    os._exit(0)
os.wait()
"""


def test_forked_children_and_workers_have_no_sampler(tmp_path: Path) -> None:
    """A forked process neither samples nor notes garbage collections."""
    with watched(tmp_path, FORKS, slower_than=2) as running:
        own, workers, child = running.end().splitlines()
    assert "dynprof-sampler" in own
    assert "CollectionLog" in own
    for text in (workers, child):
        assert "MainThread" in text
        assert "dynprof-sampler" not in text
        assert "CollectionLog" not in text


RANKS = """
import itertools, os, time
import torch, torch.distributed as dist, dynprof as dp
dist.init_process_group("gloo")
rank, flag = dist.get_rank(), torch.zeros(1)
def load_batch():
    time.sleep(0.5)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
dp.init("prof_config")
for number in itertools.count():
    time.sleep(0.01)
    if rank == 1 and number and number % 60 == 0:
        load_batch()
    if {ddp}:
        model(torch.randn(4, 8)).sum().backward()
        dp.step()
    flag.fill_(os.path.exists("enough"))
    dist.all_reduce(flag)
    if not {ddp}:
        dp.step()
    if flag.item():
        break
dist.destroy_process_group()
"""


@pytest.mark.parametrize("waits_in", ["all_reduce", "the all-reduce of the backward pass"])
def test_the_rank_that_worked_is_told_from_those_that_waited(tmp_path: Path, waits_in: str) -> None:
    """The record of each rank says whether it waited; status names the rank; all ranks record."""
    root = tmp_path / "prof_config"
    root.mkdir()
    watch = {"slower_than": 5, "then": {"active": 2}}
    config = {"watch": watch, "every": {"minutes": 600}}
    (root / "profiler_config.json").write_text(json.dumps(config))

    def both() -> tuple[dict[str, Any], ...] | None:
        found = {(one["rank"], one["step"]): one for one in records(root)}
        steps = [
            step for rank, step in found if rank == 1 and (0, step) in found and step % 60 == 0
        ]
        pairs = [(found[0, step], found[1, step]) for step in steps]
        return next((pair for pair in pairs if pair[0]["cause"] == "waiting"), None)

    with ranks(tmp_path, RANKS.format(ddp=waits_in != "all_reduce"), 2) as running:
        waited, worked = wait_for("the records", both)
        assert (waited["waited_in"], worked["cause"]) == (waits_in, "code")
        assert "load_batch" in worked["verdict"]
        assert waited["waited_ms"] > worked["waited_ms"]
        shown = r"slow step \d+: rank 0 waited for rank 1, which worked .*load_batch"
        wait_for("the status", lambda: re.search(shown, dynprof("status", root)[1]))
        paths = wait_for("the window", lambda: _of_two(below(root, "rank_?.info.json")))
        assert len({str(load_manifest(path).steps) for path in paths}) == 1
        (trigger,) = {load_manifest(path).request.trigger for path in paths}
        assert re.fullmatch(r"slow step \d+ of rank 0", trigger)
        assert not any(load_manifest(path).is_baseline for path in paths)
        (tmp_path / "enough").touch()
        end_well(running)


def _of_two(paths: list[Path]) -> list[Path] | None:
    folders = {path.parent for path in paths}
    whole = [f for f in folders if sum(path.parent == f for path in paths) == 2]
    return [path for path in paths if path.parent == whole[0]] if whole else None
