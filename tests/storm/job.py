"""A training job to which everything happens at once: ``python -m tests.storm.job SEED SECONDS``.

While it trains, threads of its own and the operator do at random what each of them may do: windows
of all settings, forks, profilers of the script's own, ranges across windows, disks that fail,
cancels, signals. At every rest nothing may be left of any of it, and at the end the weights must be
those of the same training without dynprof, to the last bit.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.random  # noqa: F401 - what workers import, as below
import torch
import torch.utils.data.graph_settings  # what workers import: forked amid its import, they hang
from torch.utils.data import DataLoader

import dynprof as dp
from dynprof.backends.kineto import KINETO
from dynprof.backends.open_annotations import ANNOTATIONS
from tests.storm import children, edits
from tests.storm.memory import MemoryGuard
from tests.storm.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path("prof_config")
CONFIG = ROOT / "profiler_config.json"
REST_S = 240.0
"""A save, which gives way to all else, took 200 s where eight others wanted two processors."""
MOST_STUCK = 1
"""So many children of a job that hang are torch's own affair."""
ENDS = ("saved", "failed", "refused")
AT_REST = ("idle", "waiting", "sending")


class Storm:
    """What happens beside the training.

    Args:
        seed: Chooses it.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - the same storm again for a seed
        self.over = threading.Event()
        self.calm = threading.Event()
        self.failures: list[str] = []
        self.done: Counter[str] = Counter()
        self.memory = MemoryGuard()
        self._ranges: list[Any] = []
        self._busy = [threading.Lock() for _ in range(3)]

    def begin(self) -> None:
        """Start the threads."""
        for lock in self._busy:
            threading.Thread(
                target=self._run, args=(lock, self.chance.random()), daemon=True
            ).start()

    def _run(self, lock: threading.Lock, seed: float) -> None:
        chance = random.Random(seed)  # noqa: S311
        acts = [self.edit, self.edit, self.fork, self.profile, self.legacy, self.loader]
        acts += [self.annotate, self.work, self.disk, self.stop, self.start, self.steps]
        while not self.over.is_set():
            if not self.calm.is_set():
                act = chance.choice(acts)
                with lock:
                    self.attempt(act, chance)
                    dp.stop()  # nothing bound to this thread outlives its last step
                    dp.step()
                    dp.stop()
            time.sleep(chance.random() * 0.02)

    def attempt(self, act: Callable[[random.Random], None], chance: random.Random) -> None:
        """Do something; what it raises hurts the job."""
        self.done[act.__name__] += 1
        try:
            act(chance)
        except Exception as error:
            self.failures.append(f"{act.__name__}: {error!r}")

    def rest(self) -> None:
        """Wait until all that was begun has ended; the operator's disk works again."""
        self.calm.set()
        for lock in self._busy:
            lock.acquire()
        self.mend()
        for old in self._ranges:
            old.__exit__(None, None, None)
        self._ranges.clear()

    def resume(self) -> None:
        """Let it go on."""
        for lock in self._busy:
            lock.release()
        self.calm.clear()

    # what the operator does

    def edit(self, chance: random.Random) -> None:
        """Save a config."""
        settings = edits.edit(chance, dp.status().step)
        self.memory.note(edits.switched_on(settings))
        text = json.dumps(settings)
        with contextlib.suppress(OSError):  # the disk fails for this process as well
            CONFIG.write_text(text if chance.random() < 0.9 else text[:40])

    def disk(self, chance: random.Random) -> None:
        """Let the disk fail, or work again."""
        if chance.random() < 0.6:
            self.mend()
        elif chance.random() < 0.5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        else:
            with contextlib.suppress(OSError):
                (ROOT / "captures").rename(ROOT / f"captures.{time.monotonic_ns()}")
            with contextlib.suppress(OSError):
                (ROOT / "captures").touch()

    def mend(self) -> None:
        """Let the disk work again."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        if (ROOT / "captures").is_file():
            (ROOT / "captures").unlink(missing_ok=True)  # another thread mends it as well

    # what the script does

    def fork(self, chance: random.Random) -> None:
        """Fork children that compute, one or several at once."""

        def one() -> None:
            self._note_end(children.fork())

        threads = [threading.Thread(target=one) for _ in range(chance.randint(1, 3))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def loader(self, chance: random.Random) -> None:
        """Load data with forked workers."""
        self._note_end(children.load(chance))

    def _note_end(self, code: int) -> None:
        if code == children.STUCK:
            self.done["stuck"] += 1
        elif code:
            self.failures.append(f"a child ended with {code}")

    _profiling = threading.Lock()

    def profile(self, chance: random.Random) -> None:
        """Run a torch.profiler of the script's own; one at a time, as torch alone demands."""
        with self._profiling:
            # Never with_stack: plain torch hangs and crashes there beside loaders and forks.
            with torch.profiler.profile(profile_memory=chance.random() < 0.5) as mine:
                torch.ones(3).add(1)
                time.sleep(chance.random() * 0.02)
            assert any(event.name == "aten::add" for event in mine.events())

    def legacy(self, chance: random.Random) -> None:
        """Run one of the older profilers."""
        from torch.autograd import profiler, profiler_legacy

        with self._profiling:
            kind = chance.choice([profiler_legacy.profile, profiler.profile])
            with kind() as mine:
                torch.ones(3).add(1)
            assert any(event.name == "aten::add" for event in mine.function_events)

    def annotate(self, chance: random.Random) -> None:
        """Enter a range, and leave an old one, whatever windows came and went between."""
        annotation = torch.profiler.record_function(f"range {chance.random()}")
        annotation.__enter__()
        self._ranges.append(annotation)
        if len(self._ranges) > 20:
            self._ranges.pop(chance.randrange(10)).__exit__(None, None, None)

    def work(self, chance: random.Random) -> None:
        """Run operators on this thread."""
        for _ in range(chance.randint(1, 200)):
            torch.ones(8, 8).mm(torch.ones(8, 8))

    def steps(self, chance: random.Random) -> None:
        """Call ``step()`` from this thread too."""
        for _ in range(chance.randint(1, 5)):
            dp.step()

    def start(self, chance: random.Random) -> None:
        """Open a window from the script."""
        dp.start() if chance.random() < 0.5 else dp.set_state({"cur_step": chance.randint(0, 999)})

    def stop(self, chance: random.Random) -> None:
        """Close what is open."""
        dp.stop() if chance.random() < 0.5 else os.kill(os.getpid(), signal.SIGUSR1)


def settled(storm: Storm, training: Training) -> int:
    """Let all come to rest; complain of what is left; return how many steps were trained."""
    storm.rest()
    trained, deadline_s, asked = 0, time.monotonic() + REST_S, ""
    edit = {"active": 2, "activities": ["CPU"], "metadata": {"rest": time.monotonic_ns()}}
    while time.monotonic() < deadline_s:
        training.step()
        dp.step()
        trained += 1
        status = dp.status()
        last = status.edits[-1] if status.edits else None
        if asked and last and last.sha256 == asked and last.outcome in ENDS:
            if last.outcome != "saved" or not complete(last.capture):
                storm.failures.append(f"the window at rest: {last}")
            KINETO.wait(REST_S)
            storm.memory.look()
            break
        if not asked and (status.state not in AT_REST or KINETO.collecting):
            dp.stop()
        elif not asked:
            storm.failures += left_over()
            text = json.dumps(edit)
            CONFIG.write_text(text)
            asked = hashlib.sha256(text.encode()).hexdigest()
        if status.state in ("recording", "saving"):
            time.sleep(0.001)
    else:
        storm.failures.append(f"no rest after {REST_S} s: {status.state}, {status.edits[-1]}")
    storm.resume()
    return trained


def complete(capture: str | None) -> bool:
    """Return whether a capture has all that was asked for."""
    return bool(json.loads((ROOT / str(capture)).read_text())["complete"])


def left_over() -> list[str]:
    """Return what should not be there when nothing is recorded."""
    facts = {
        "dynprof has libkineto's session": KINETO.has_window,
        "the script has libkineto's session": KINETO.script_has_it,
        "ranges are followed": bool(ANNOTATIONS._open),
        "a profiler is on": torch.autograd._profiler_enabled(),
    }
    return [f"at rest, {what}" for what, found in facts.items() if found]


def main() -> None:
    """Train in the storm; end with what went wrong."""
    seed, seconds = int(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR2)  # whoever hangs is asked where, its children too
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    training, trained = Training(seed), 1
    training.step()  # what torch prepares at its first operators is not prepared in forks
    list(DataLoader(range(4), num_workers=1, generator=torch.Generator()))  # nor what it imports
    dp.init("prof_config")
    children.watch()
    signal.signal(signal.SIGUSR1, lambda *_: dp.step())
    storm = Storm(seed)
    storm.begin()
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        for _ in range(storm.chance.randint(20, 300)):
            in_backward = storm.chance.random() < 0.05
            training.step((lambda _: dp.step()) if in_backward else None)
            if not in_backward:
                dp.step()
            trained += 1
            time.sleep(0.0005)
        trained += settled(storm, training)
    storm.over.set()
    storm.rest()
    dp.shutdown()
    storm.failures += storm.memory.complaints() + wrong_weights(training, seed, trained)
    if storm.done["stuck"] > MOST_STUCK:
        storm.failures.append(f"{storm.done['stuck']} children hung, each said where")
    told = {"trained": trained, "grown_mb": storm.memory.grown_mb, "done": storm.done}
    print(json.dumps({**told, "failures": storm.failures}))
    sys.exit(bool(storm.failures))


def wrong_weights(training: Training, seed: int, trained: int) -> list[str]:
    """Compare the weights with those of the same training without dynprof."""
    bare = Training(seed)
    for _ in range(trained):
        bare.step()
    same = all(map(torch.equal, training.weights, bare.weights))
    return [] if same else ["the weights are not those of the same training without dynprof"]


if __name__ == "__main__":
    main()
