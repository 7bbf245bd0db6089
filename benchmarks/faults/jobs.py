"""The jobs of the fault benchmark: one training loop, and faults that begin in it.

``FAULT=NAME python -m benchmarks.faults.jobs`` trains with a fault until it is killed, under
torchrun on several ranks. The comment ``# fault`` marks the lines that a diagnosis has to name.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import logging
import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import dynprof as dp
from benchmarks.faults.scoring import ONSET_STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ONSET = "onset"
"""File that a job writes when its fault begins: the seconds since the epoch."""
BATCH, WIDTH = 16, 128
"""Samples in a batch, and the width of the model: a step computes for some milliseconds."""
SLOW_S = 0.15
"""Seconds by which a fault delays a step, if it merely sleeps."""


@dataclass(frozen=True)
class Fault:
    """A fault and the ground truth about it.

    Attributes:
        act: Does it; called with the step.
        title: What it is.
        cause: A pattern of the words that name its cause, where a line is not the cause.
        at: Where the loop calls it: "step", at its end; "batch", for its batch; "collate";
            "worker", of a DataLoader; or "start", before the first step. If it is "runner", the
            runner makes the fault.
        every: Steps from one occurrence to the next.
        world_size: Number of ranks.
        rank: The faulty rank.
        forbidden: A pattern that no message may have.
        lasts_s: Seconds for which the job is observed after the onset.
        device_s: Seconds of a step in which the job sleeps, as if a device computed.
        passes: Forward and backward passes in a step.
        prepare: Called before the first step.
    """

    act: Callable[[int], Any]
    title: str
    cause: str = ""
    at: str = "step"
    every: int = 1
    world_size: int = 1
    rank: int | None = None
    forbidden: str = ""
    lasts_s: float = 60.0
    device_s: float = 0.04
    passes: int = 1
    prepare: Callable[[], object] = bool

    @property
    def name(self) -> str:
        """The name."""
        return self.act.__name__

    def lines(self) -> set[int]:
        """Return the numbers of the lines that are marked in the fault's code."""
        code = self.act.__code__
        first, last = code.co_firstlineno, max(n for *_, n in code.co_lines() if n)
        source = Path(__file__).read_text(encoding="utf-8").splitlines()
        own = {n for n in range(first, last + 1) if source[n - 1].endswith("# fault")}
        of_loop = {n for n, line in enumerate(source, 1) if line.endswith(f"# fault: {self.name}")}
        return own | of_loop


FAULTS: dict[str, Fault] = {}
"""All faults, by name."""


def fault(title: str, **truth: Any) -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    """Register a function as a fault."""

    def register(act: Callable[[int], Any]) -> Callable[[int], Any]:
        FAULTS[act.__name__] = Fault(act, title, **truth)
        return act

    return register


# Data.


@fault("the collate function becomes slow", at="collate")
def slow_collate(_step: int) -> None:
    """Sort tokens in Python."""
    for _ in range(12):
        sorted(range(100_000), key=lambda token: -token)  # fault


@fault("workers are slower than the training", cause=r"dataloader\.py|data loading", at="worker")
def starved_workers(_step: int) -> None:
    """Read a sample from a slow store."""
    time.sleep(SLOW_S / BATCH * 2)  # fault


LOCK = multiprocessing.get_context("fork").Lock()
"""A lock of workers."""


@fault("a worker waits for a lock that is never released", at="worker")
def worker_in_lock(_step: int) -> None:
    """Take a lock twice."""
    LOCK.acquire()  # fault


@fault("a step reads elements of a tensor one by one")
def item_in_loop(_step: int) -> None:
    """Count tokens."""
    sum(one.item() for one in torch.ones(60_000))  # fault


LONG_BATCH = torch.rand(BATCH * 2000, WIDTH)


@fault("one rank of two has longer batches", world_size=2, rank=1, at="batch")
def longer_batch(_step: int) -> torch.Tensor:
    """Return a longer batch, with which the usual lines take longer."""
    return LONG_BATCH


# Python.

GARBAGE: list[Any] = []
"""Objects that each full garbage collection visits."""


def _make_objects() -> None:
    GARBAGE.extend([{}] for _ in range(400_000))


@fault("garbage is collected in each step", cause="garbage collection", prepare=_make_objects)
def gc_storm(_step: int) -> None:
    """Collect among many objects."""
    gc.collect()  # fault


def _many_operators(values: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        values = torch.relu(values + 1)
    return values


@functools.cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a compiled function; only the job that calls it loads the compiler."""
    compiled: Callable[[torch.Tensor], torch.Tensor] = torch.compile(
        _many_operators, backend="eager", dynamic=False
    )
    return compiled


@fault(
    "each batch has another shape, so torch.compile compiles again",
    cause=r"_dynamo|compile",
    prepare=_compiled,
)
def recompilation(step: int) -> None:
    """Compute with a compiled function."""
    torch._dynamo.config.recompile_limit = 100_000
    torch._dynamo.config.accumulated_recompile_limit = 100_000
    _compiled()(torch.ones(step))  # fault


@fault("a log of thousands of lines in each step")
def log_flood(step: int) -> None:
    """Log each token."""
    for token in range(4000):
        LOG.info("step %d: token %d", step, token)  # fault


LOG = logging.getLogger("job")
LOG.propagate = False


@fault("a callback sleeps")
def sleeping_callback(_step: int) -> None:
    """Wait for a service of metrics."""
    time.sleep(SLOW_S)  # fault


HELD, WANTED = threading.Lock(), threading.Event()


def _flush() -> None:
    while WANTED.wait():
        with HELD:
            WANTED.clear()
            time.sleep(SLOW_S)  # fault: lock_of_a_thread


@fault("the training waits for a lock that another thread holds", every=20)
def lock_of_a_thread(_step: int) -> None:
    """Log under a lock that a flushing thread has."""
    if not any(one.name == "flush" for one in threading.enumerate()):
        threading.Thread(target=_flush, name="flush", daemon=True).start()
    WANTED.set()
    while WANTED.is_set():
        time.sleep(0.001)
    with HELD:  # fault
        pass


@fault("a C function in another thread keeps the GIL", cause="GIL")
def gil_hog(_step: int) -> None:
    """Start a thread that calls C without releasing the GIL."""
    if not any(one.name == "hog" for one in threading.enumerate()):
        threading.Thread(target=_hog, name="hog", daemon=True).start()


def _hog() -> None:
    library = ctypes.PyDLL(None)
    while True:
        library.usleep(80_000)  # fault: gil_hog
        time.sleep(0.001)


# Disk.


@fault("checkpoints go to a disk that writes 4 MB a second", every=40)
def slow_checkpoint(_step: int) -> None:
    """Save to a pipe, which a slow reader empties: a throttled disk needs rights."""
    if not Path("pipe").exists():
        os.mkfifo("pipe")
    reader = "import time\nwith open('pipe', 'rb') as f:\n while f.read(65536): time.sleep(0.016)"
    with subprocess.Popen([sys.executable, "-S", "-c", reader]), Path("pipe").open("wb") as file:
        torch.save(torch.ones(500_000), file)  # fault


@fault("each step waits until its log is on the disk")
def fsync(_step: int) -> None:
    """Write and sync records."""
    with Path("records").open("wb", buffering=0) as file:
        for _ in range(40):
            file.write(bytes(200_000))
            os.fsync(file.fileno())  # fault


EMBEDDINGS = Path("embeddings")


def _write_embeddings() -> None:
    with EMBEDDINGS.open("wb") as file:
        file.write(os.urandom(1 << 20) * 64)
        os.fsync(file.fileno())


@fault("pages of a mapped file are dropped and read again", prepare=_write_embeddings)
def page_faults(_step: int) -> None:
    """Read a mapped file whose pages the kernel has dropped, as under memory pressure."""
    with EMBEDDINGS.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        sum(pages[place] for place in range(0, len(pages), 4096))  # fault


# Memory and CPUs.


@fault("each step allocates and frees large tensors")
def allocator_storm(_step: int) -> None:
    """Make buffers that the allocator returns to the system at once."""
    for _ in range(6):
        torch.ones(16_000_000)  # fault


KEPT: list[torch.Tensor] = []


@fault("each step keeps a tensor", cause="(?i)memory (grows|grew)|resident.* grew|leak")
def leak(_step: int) -> None:
    """Keep the loss with its graph."""
    KEPT.append(torch.ones(100_000))  # fault


@fault("the cgroup allows a tenth of a CPU", cause="cgroup", at="runner", passes=100)
def cpu_limit(_step: int) -> None:
    """Let the runner put the job into a cgroup with a limit."""


@fault("other processes use all CPUs", cause="for a CPU", at="runner", passes=100)
def noisy_neighbour(_step: int) -> None:
    """Let the runner start processes that compute."""


# Ranks.


@fault("the link between ranks becomes slow", cause="link|network|bandwidth", world_size=2)
def slow_link(_step: int) -> None:
    """Shape the loopback device of the job's network namespace."""
    if not KEPT:
        KEPT.append(torch.ones(1))
        tbf = [
            "tc",
            "qdisc",
            "add",
            "dev",
            "lo",
            "root",
            "tbf",
            "rate",
            "4mbit",
            "burst",
            "256kb",
            "latency",
            "2s",
        ]
        if RANK == 0:
            subprocess.run(tbf, check=True)


@fault("one rank of three calls another collective", cause="broadcast", world_size=3, rank=1)
def mismatched_collective(_step: int) -> None:
    """Broadcast where the others reduce."""
    dist.broadcast(torch.ones(10_000), src=1)  # fault
    dist.broadcast(torch.ones(10_000), src=0)  # fault


@fault("one rank of two is killed", cause="dead|SIGKILL|gone", world_size=2, rank=1)
def dead_peer(_step: int) -> None:
    """Kill this rank."""
    os.kill(os.getpid(), signal.SIGKILL)


@fault("one rank of two is stopped", cause="SIGSTOP", world_size=2, rank=1)
def stopped_rank(_step: int) -> None:
    """Stop this rank."""
    os.kill(os.getpid(), signal.SIGSTOP)


@fault("one rank of four hangs while it fetches", world_size=4, rank=2)
def hanging_fetch(_step: int) -> None:
    """Wait for a store that does not answer."""
    threading.Event().wait()  # fault


# Hangs and long steps.

FIRST, SECOND = threading.Lock(), threading.Lock()


@fault("two threads wait for each other's lock")
def deadlock(_step: int) -> None:
    """Take two locks in an order, while another thread takes them in the other order."""
    both = threading.Barrier(2)

    def refill() -> None:
        with SECOND:
            both.wait()
            with FIRST:
                pass

    threading.Thread(target=refill, name="refill", daemon=True).start()
    with FIRST:
        both.wait()
        with SECOND:  # fault
            pass


@fault("the process is stopped", cause="SIGSTOP")
def stopped(_step: int) -> None:
    """Stop this process."""
    os.kill(os.getpid(), signal.SIGSTOP)


@fault("a C function keeps the GIL and does not return")
def gil_held(_step: int) -> None:
    """Call C without releasing the GIL."""
    ctypes.PyDLL(None).pause()  # fault


@fault("an evaluation of 40 s, which is no fault", forbidden="stuck", every=100_000)
def slow_evaluation(_step: int) -> None:
    """Evaluate samples; a device computes most of the time."""
    until = time.monotonic() + 40
    for batch in DataLoader(Samples(), batch_size=BATCH, sampler=range(1 << 40)):
        with torch.no_grad():
            MODEL(batch).square().mean().item()  # fault
        time.sleep(0.04)  # fault
        if time.monotonic() > until:
            break


@fault("the first step compiles for 50 s, which is no fault", at="start", forbidden="stuck")
def long_first_compile(_step: int) -> None:
    """Compile."""
    until = time.monotonic() + 50
    while time.monotonic() < until:
        time.sleep(0.01)  # fault


@fault("every 100th step is slow", every=100)
def every_100th(_step: int) -> None:
    """Rotate a log."""
    time.sleep(SLOW_S)  # fault


@fault("every 500th step is slow", every=500, lasts_s=120.0, device_s=0.005)
def every_500th(_step: int) -> None:
    """Rotate a log."""
    time.sleep(SLOW_S)  # fault


# The job.

RANK = int(os.environ.get("RANK", "0"))
MODEL = torch.nn.Sequential(
    torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
)


class Samples(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Random samples without end."""

    def __len__(self) -> int:
        """Return more samples than a job uses."""
        return 1 << 40

    def __getitem__(self, place: int) -> torch.Tensor:
        """Return a sample."""
        _act_at("worker", place)
        return torch.rand(WIDTH)


def collate(samples: list[torch.Tensor]) -> torch.Tensor:
    """Return a batch of samples."""
    _act_at("collate", 0)
    return torch.stack(samples)


def _act_at(place: str, step: int) -> None:
    chosen = FAULTS[os.environ["FAULT"]]
    if chosen.at == place and os.path.exists(ONSET):  # noqa: PTH110 - called for each sample
        chosen.act(step)


def train_one(model: torch.nn.Module, batch: torch.Tensor) -> None:
    """Compute one step without updating the model."""
    model(batch).square().mean().backward()  # fault: longer_batch


def batches(chosen: Fault) -> Iterator[torch.Tensor]:
    """Yield batches."""
    workers = 1 if chosen.at == "worker" else 0
    order = range(1 << 40)
    loader = DataLoader(
        Samples(), batch_size=BATCH, sampler=order, collate_fn=collate, num_workers=workers
    )
    yield from loader  # fault: starved_workers


def train(chosen: Fault) -> None:
    """Train until the process is killed."""
    model: torch.nn.Module = MODEL
    if chosen.world_size > 1:
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(MODEL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    chosen.prepare()
    dp.init("prof_config")
    if chosen.at == "start":
        note_onset()
        chosen.act(0)
    for step, batch in enumerate(batches(chosen)):
        is_due = step >= ONSET_STEP and (step - ONSET_STEP) % chosen.every == 0
        is_due &= chosen.rank in (None, RANK)
        if step == ONSET_STEP and (chosen.rank or 0) == RANK:
            note_onset()
        used = chosen.act(step) if chosen.at == "batch" and is_due else batch
        for _ in range(chosen.passes):
            train_one(model, used)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(chosen.device_s)
        if chosen.at == "step" and is_due:
            chosen.act(step)
        dp.step()


def note_onset() -> None:
    """Write when the fault begins."""
    draft = Path(f"{ONSET}.draft")
    draft.write_text(str(time.time()), encoding="utf-8")
    draft.rename(ONSET)


def main() -> None:
    """Run the job that the environment names."""
    torch.set_num_threads(1)
    LOG.addHandler(logging.FileHandler("job.log"))
    LOG.setLevel(logging.INFO)
    with contextlib.suppress(KeyboardInterrupt):
        train(FAULTS[os.environ["FAULT"]])


if __name__ == "__main__":
    main()
