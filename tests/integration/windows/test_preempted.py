"""Timeouts of the script's, whose signal handlers raise, at any line of dynprof's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import manifests, run_without_torch

if TYPE_CHECKING:
    from pathlib import Path

PREEMPTED = """
import linecache, random
chance = random.Random(13)
class Preempted(TimeoutError):
    pass
def handler(number, frame):
    raise Preempted
signal.signal(signal.SIGUSR1, handler)
def run(action, at, where):
    lines = 0
    def trace(frame, event, arg):
        nonlocal lines
        if not any(name in frame.f_code.co_filename for name in where):
            return None
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event != "line" or text.lstrip().startswith("with "):  # no signal parts these
            return trace
        lines += 1
        if lines == at:
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR1)
        return trace
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(None)
    return lines
def preempted(action, at, *where):
    try:
        run(action, at, where)
    except Preempted:
        return True
    return False
def await_untraced():
    for _ in range(20_000):
        if not (sys.getprofile() or threading.getprofile()):
            return
        time.sleep(0.001)
    raise AssertionError("calls are still traced")
"""


def test_a_timeout_while_a_window_of_plain_python_opens(tmp_path: Path) -> None:
    """Also the first one, for which a VizTracer is made: nothing stays on, the next is whole."""
    printed = run_without_torch(
        tmp_path,
        PREEMPTED
        + """
from dynprof.backends.viztracers import VIZTRACERS
at = 1
def serve():
    while dp.status().state != "idle":
        dp.step()
        time.sleep(0.001)
where = "/viztracer", "/backends/python.py"
while True:
    VIZTRACERS._free.clear()
    if not preempted(lambda: window(active=1), at, *where):
        break
    serve()
    await_untraced()
    window(active=1)
    serve()
    at += 1
serve()
print(at)
""",
    )
    assert int(printed) > 10
    assert sum(manifest.complete for manifest in manifests(tmp_path)) >= int(printed)


def test_a_timeout_while_it_is_shut_down(tmp_path: Path) -> None:
    """It arrives; shutting down once more goes on: the window is saved, and no thread is left."""
    printed = run_without_torch(
        tmp_path,
        PREEMPTED
        + """
def begin(number):
    dp.shutdown()
    dp.init(f"job{number}")
    window(active=1000)
    dp.step()
begin(0)
count = run(dp.shutdown, 0, ["/dynprof/"])
OWN = {"dynprof-watch", "dynprof-export", "dynprof-journal"}
for number in range(1, 40):
    begin(number)
    preempted(dp.shutdown, chance.randrange(1, count), "/dynprof/")
    dp.shutdown()
    await_untraced()
    while {thread.name for thread in threading.enumerate()} & OWN:
        time.sleep(0.001)
    saved = list(Path(f"job{number}").rglob("*.info.json"))
    assert len(saved) == 1, (number, saved)
print(count > 100)
""",
    )
    assert printed == "True\n"


def test_a_timeout_while_it_begins(tmp_path: Path) -> None:
    """The script's own exception arrives, which is an OSError, and no other in its place."""
    printed = run_without_torch(
        tmp_path,
        PREEMPTED
        + """
dp.shutdown()
def begin():
    dp.init("again")
count = run(begin, 0, ["/dynprof/"])
arrived = 0
for _ in range(60):
    dp.shutdown()
    arrived += preempted(begin, chance.randrange(1, count), "/dynprof/")
print(arrived > 50)
""",
    )
    assert printed == "True\n"


def test_timeouts_amid_steps_while_a_request_waits(tmp_path: Path) -> None:
    """No turn stays taken: steps of another thread go on, also while the exceptions are kept."""
    printed = run_without_torch(
        tmp_path,
        PREEMPTED
        + """
config = Path("prof_config/profiler_config.json")
config.write_text(json.dumps({"activities": ["CPU"], "active": 2, "start_step": 10**9}))
while dp.status().state != "waiting":
    time.sleep(0.001)
signal.signal(signal.SIGALRM, handler)
stood, over = [0.0], []
def step_on():
    while not over:
        began = time.monotonic()
        dp.step()
        stood.append(time.monotonic() - began)
        time.sleep(0.001)
other = threading.Thread(target=step_on)
other.start()
kept = []
while len(kept) < 2000:
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(2e-6, 4e-5))
        for _ in range(200):
            dp.step()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Preempted as error:
        kept.append(error)
signal.setitimer(signal.ITIMER_REAL, 0)
over.append(True)
other.join()
print(max(stood) < 30, dp.status().state)
""",
    )
    assert printed == "True waiting\n"


@pytest.mark.parametrize("kind", ["MemoryError", "RecursionError", "TimeoutError"])
def test_what_handlers_raise_amid_steps(tmp_path: Path, kind: str) -> None:
    """The script gets each, also one that is what a full memory or stack raises; so do sources."""
    printed = run_without_torch(
        tmp_path,
        PREEMPTED.replace("(TimeoutError)", f"({kind})")
        + """
from dynprof.requests.inbox import Inbox
from dynprof.steps.source import EndedSteps
def turn():
    for _ in range(5):
        pass
inbox = Inbox(turn)
inbox.due = True
source = EndedSteps(inbox, print)
dp.shutdown()
dp.dynamic_profile._inbox = inbox
for action in (dp.step, source.end_step):
    inbox.step = source.next
    turn_of = turn.__code__.co_filename
    lines = run(action, 10**9, [turn_of])
    assert lines > 5
    got = [preempted(action, at, turn_of) for at in range(1, lines + 1)]
    print(got == [True] * lines, inbox.passed_over)
""",
    )
    assert printed == "True 0\nTrue 0\n"
