"""A training job in a storm: ``python -m tests.storm.job SEED SECONDS``.

Each event below is a row of "Survived" in ``docs/guarantees.md``, in the same words. No other
events occur. Some edits of the operator are refused. Threads of the job draw events at random from
a seed. At each rest nothing of the events may be left. At the end the weights must equal those of
the same training without dynprof, bit by bit.
"""

from __future__ import annotations

import contextlib
import cProfile
import faulthandler
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from collections import Counter
from multiprocessing.context import ForkProcess, SpawnProcess
from typing import TYPE_CHECKING, Any

import numpy.random  # noqa: F401 - what workers import, as below
import torch
import torch.utils.data.graph_settings  # workers import it; a fork during that import hangs
from torch.autograd import profiler, profiler_legacy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import dynprof as dp
from tests.storm import children, edits
from tests.storm.memory import MemoryGuard
from tests.storm.rest import CONFIG, ROOT, settled
from tests.storm.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

MOST_STUCK = 1
"""Children of a job that may hang in plain torch: docs/guarantees.md, "Undefined"."""


class Events:
    """What happens to the job, by the sections of ``docs/guarantees.md``.

    Args:
        memory: Notes which settings were on.
        note_end: Takes the exit codes of children.
        compiles: Whether the job compiles, and so binds no profiler to a thread.
        signals: Whether signal handlers end windows, which then have no stacks.
    """

    def __init__(
        self,
        memory: MemoryGuard,
        note_end: Callable[[int], None],
        *,
        compiles: bool,
        signals: bool,
    ) -> None:
        self._memory, self._compiles, self._signals = memory, compiles, signals
        self._call: Callable[[], object] = dp.stop
        self._note_end = note_end
        self._ranges: list[Any] = []
        self._profiling, self._signalling = threading.Lock(), threading.Lock()
        self._handled = threading.Event()
        signal.signal(signal.SIGUSR1, self._handle)
        self._compiled = torch.compile(lambda value: value + 1, backend="eager")
        self._compiled(torch.ones(1))

    # Disks

    def full_disk(self, chance: random.Random) -> None:
        """The disk fills up while a capture is saved."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        time.sleep(chance.random() * 0.1)
        self.end_faults()

    def no_directory(self, chance: random.Random) -> None:
        """A file takes the place of a directory."""
        with contextlib.suppress(OSError):
            (ROOT / "captures").rename(ROOT / f"captures.{time.monotonic_ns()}")
        with contextlib.suppress(OSError):
            (ROOT / "captures").touch()
        time.sleep(chance.random() * 0.1)
        self.end_faults()

    def end_faults(self) -> None:
        """Let the disk work again."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        if (ROOT / "captures").is_file():
            (ROOT / "captures").unlink(missing_ok=True)  # another thread repairs it as well

    # The config

    def many_edits(self, chance: random.Random) -> None:
        """An operator saves thousands of configs a minute."""
        settings = edits.edit(chance, dp.status().step)
        settings["profile_memory"] &= not self._compiles  # as for BOUND
        # Torch's tracer hangs where a signal handler ends it: "Undefined" in docs/guarantees.md.
        settings["with_stack"] &= not self._signals
        settings["with_modules"] &= not self._signals
        self._memory.note(edits.switched_on(settings))
        with contextlib.suppress(OSError):  # the disk is full for this process as well
            CONFIG.write_text(json.dumps(settings))

    def half_edit(self, chance: random.Random) -> None:
        """A config is half written, or wrong."""
        text = json.dumps(edits.edit(chance, dp.status().step))
        with contextlib.suppress(OSError):
            CONFIG.write_text(text[:40])

    def deleted_config(self, _: random.Random) -> None:
        """The config is deleted."""
        with contextlib.suppress(OSError):
            CONFIG.unlink()

    # Processes and signals

    def fork(self, chance: random.Random) -> None:
        """Several threads fork at once."""
        together([lambda: self._note_end(children.fork())] * chance.randint(1, 3))

    def loader(self, chance: random.Random) -> None:
        """DataLoaders with workers begin on several threads."""
        self._note_end(children.load(chance))

    def process(self, chance: random.Random) -> None:
        """A process of multiprocessing starts, by fork or spawn."""
        self._note_end(children.start(SpawnProcess if chance.random() < 0.03 else ForkProcess))

    def signal(self, chance: random.Random) -> None:
        """A signal handler calls stop() or shutdown()."""
        if not self._signals:
            return
        with self._signalling:
            self._handled.clear()
            self._call = chance.choice([dp.stop, dp.stop, dp.stop, dp.shutdown])
            os.kill(os.getpid(), signal.SIGUSR1)
            self._handled.wait()
            if self._call is dp.shutdown:
                dp.init("prof_config")

    def _handle(self, *_: object) -> None:
        self._call()
        self._handled.set()

    # Threads and servers

    def steps(self, chance: random.Random) -> None:
        """Several threads call step()."""
        for _ in range(chance.randint(1, 5)):
            dp.step()

    def request(self, _: random.Random) -> None:
        """Each request of a server has a thread of its own."""
        together([lambda: dp.step() if torch.ones(3).add(1).sum() == 6 else None])

    def operators(self, chance: random.Random) -> None:
        """Other threads run operators when a window closes."""
        for _ in range(chance.randint(1, 200)):
            torch.ones(8, 8).mm(torch.ones(8, 8))

    def calls(self, chance: random.Random) -> None:
        """Several threads open and close windows."""
        calls = (dp.start, dp.stop, lambda: dp.set_state({"cur_step": chance.randint(0, 999)}))
        chance.choice(calls)()

    # Profilers and debuggers of the script

    def own_profiler(self, chance: random.Random) -> None:
        """The script starts a torch.profiler while a window is open."""
        with self._profiling:  # torch allows one at a time
            # Never with_stack: plain torch hangs and crashes there next to loaders and forks.
            with torch.profiler.profile(profile_memory=chance.random() < 0.5) as mine:
                torch.ones(3).add(1)
                time.sleep(chance.random() * 0.02)
            assert any(event.name == "aten::add" for event in mine.events())

    def older_profiler(self, chance: random.Random) -> None:
        """The script starts one of torch's older profilers while a window is open."""
        with self._profiling:
            with chance.choice([profiler_legacy.profile, profiler.profile])() as mine:
                torch.ones(3).add(1)
            assert any(event.name == "aten::add" for event in mine.function_events)

    def cprofile(self, _: random.Random) -> None:
        """The script starts cProfile while a window of plain Python is open."""
        with self._profiling, cProfile.Profile():
            torch.ones(3).add(1)

    def debugger(self, _: random.Random) -> None:
        """Coverage or a debugger traces the script."""
        seen: list[FrameType] = []
        sys.settrace(lambda frame, *_: seen.append(frame))
        together([])
        sys.settrace(None)
        assert seen

    def annotation(self, chance: random.Random) -> None:
        """A record_function range crosses the border of a window."""
        annotation = torch.profiler.record_function(f"range {chance.random()}")
        annotation.__enter__()
        self._ranges.append(annotation)
        if len(self._ranges) > 20:
            self._ranges.pop(chance.randrange(10)).__exit__(None, None, None)

    def end_annotations(self) -> None:
        """Leave all ranges."""
        while self._ranges:
            self._ranges.pop().__exit__(None, None, None)

    # What torch does

    def dispatch_mode(self, _: random.Random) -> None:
        """A TorchDispatchMode is on while a step ends."""
        mode = Dispatched()
        with mode:
            torch.ones(3).add(1)
            dp.step()
        assert mode.seen == ["aten::ones", "aten::add.Tensor"], mode.seen

    def graph_capture(self, _: random.Random) -> None:
        """A graph is captured, on any thread."""
        with dp.graph_capture():
            dp.step()
            torch.ones(3).add(1)

    def compiled(self, chance: random.Random) -> None:
        """torch.compile compiles inside a window."""
        size = chance.randint(2, 9)
        assert self._compiled(torch.ones(size)).sum() == 2 * size


class Dispatched(TorchDispatchMode):  # type: ignore[misc]
    """A mode that names the operators it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note an operator, and run it."""
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


def together(calls: list[Callable[[], object]]) -> None:
    """Make each call on a new thread; wait for all."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


EVENTS = [value for name, value in vars(Events).items() if not name.startswith(("_", "end_"))]
OFTEN = [Events.many_edits] * 4
BOUND = (Events.own_profiler, Events.older_profiler)
"""Events that bind a profiler to its thread. They are undefined if another thread compiles."""


def events_of(*, compiles: bool) -> list[Callable[..., None]]:
    """Return the events of a job that compiles, or of one with profilers of one thread."""
    without = BOUND if compiles else (Events.compiled,)
    return [event for event in EVENTS + OFTEN if event not in without]


class Storm:
    """Three threads that cause events while the job trains.

    Args:
        seed: The seed of the events.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - the same storm again for a seed
        self.over = threading.Event()
        self.calm = threading.Event()
        self.failures: list[str] = []
        self.done: Counter[str] = Counter()
        self.memory = MemoryGuard()
        compiles = self.chance.random() < 0.5
        self.drawn = events_of(compiles=compiles)
        signals = self.chance.random() < 0.5
        self.events = Events(self.memory, self._note_end, compiles=compiles, signals=signals)
        self._busy = [threading.Lock() for _ in range(3)]

    def begin(self) -> None:
        """Start the threads."""
        for lock in self._busy:
            threading.Thread(
                target=self._run, args=(lock, self.chance.random()), daemon=True
            ).start()

    def _run(self, lock: threading.Lock, seed: float) -> None:
        chance = random.Random(seed)  # noqa: S311
        while not self.over.is_set():
            if not self.calm.is_set():
                event = chance.choice(self.drawn)
                with lock:
                    self._attempt(event, chance)
                    dp.stop()  # nothing bound to this thread outlives its last step
                    dp.step()
                    dp.stop()
            time.sleep(chance.random() * 0.02)

    def _attempt(self, event: Callable[..., None], chance: random.Random) -> None:
        """Cause an event; an exception from it counts as harm to the job."""
        self.done[event.__name__] += 1
        try:
            event(self.events, chance)
        except Exception as error:
            self.failures.append(f"{event.__name__}: {error!r}")

    def _note_end(self, code: int) -> None:
        if code == children.STUCK:
            self.done["stuck"] += 1
        elif code:
            self.failures.append(f"a child ended with {code}")

    def rest(self) -> None:
        """Wait until all events have ended and the disk works again."""
        self.calm.set()
        for lock in self._busy:
            lock.acquire()
        self.events.end_faults()
        self.events.end_annotations()

    def resume(self) -> None:
        """Resume the events."""
        for lock in self._busy:
            lock.release()
        self.calm.clear()


def main() -> None:
    """Train in the storm; exit with the errors."""
    seed, seconds = int(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR2)  # prints the stacks of a process that hangs
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    training, trained = Training(seed), 1
    training.step()  # otherwise forks would do torch's first-use preparation
    list(DataLoader(range(4), num_workers=1, generator=torch.Generator()))  # and its imports
    storm = Storm(seed)
    dp.init("prof_config")
    children.watch()
    storm.begin()
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        for _ in range(storm.chance.randint(20, 300)):
            in_backward = storm.chance.random() < 0.05  # "step() is called in a backward pass"
            training.step((lambda _: dp.step()) if in_backward else None)
            if not in_backward:
                dp.step()
            trained += 1
            time.sleep(0.0005)
        storm.rest()
        steps, wrong = settled(training, storm.memory)
        storm.failures += wrong
        trained += steps
        storm.resume()
    storm.over.set()
    storm.rest()
    dp.shutdown()
    storm.failures += storm.memory.complaints()
    if not training.is_that_of(seed, trained):
        storm.failures.append("the weights are not those of the same training without dynprof")
    if storm.done["stuck"] > MOST_STUCK:
        storm.failures.append(f"{storm.done['stuck']} children hung; each printed where")
    told = {"trained": trained, "grown_mb": storm.memory.grown_mb, "done": storm.done}
    print(json.dumps({**told, "failures": storm.failures}))
    sys.exit(bool(storm.failures))


if __name__ == "__main__":
    main()
