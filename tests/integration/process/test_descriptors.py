"""Descriptors: those of a job that goes on as another program, or that closes them all."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests import processes

if TYPE_CHECKING:
    from pathlib import Path

GENERATIONS = """
import json, os, sys, time
from pathlib import Path
number = int(sys.argv[1])
def link(name):
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:  # what the listing itself had open
        return None
print(sorted(filter(None, map(link, os.listdir("/proc/self/fd")))), flush=True)
if number < 3:
    import dynprof as dp
    dp.init("prof_config", watch="events")
    assert "inotify" in str(list(map(link, os.listdir("/proc/self/fd"))))
    Path("asked.json").write_text(json.dumps({"active": 1, "activities": ["CPU"]}))
    dp.start("asked.json")
    dp.step()
    while dp.status().state != "idle":
        time.sleep(0.001)
    os.execv(sys.executable, [sys.executable, __file__, str(number + 1)])
"""


def test_a_job_that_executes_itself_again_and_again(tmp_path: Path) -> None:
    """No descriptor of dynprof's is open in the program that the process goes on as."""
    (tmp_path / "job.py").write_text(GENERATIONS)
    done = processes.run([sys.executable, "job.py", "0"], cwd=tmp_path, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (0, "")
    first, *later = done.stdout.splitlines()
    assert later == [first] * 3


FIRST_MOMENTS = """
import json, os, sys, threading, time
from pathlib import Path
import dynprof as dp
def wait_for_its_first_moments():  # in which it reads and writes all the time, by several threads
    begun, status = time.time(), Path("prof_config/status/rank_0.json")
    while not status.exists() or json.loads(status.read_text())["heartbeat"] < begun + 0.5:
        dp.step()
        time.sleep(0.01)
"""
CLOSES_ALL = """
dp.init("prof_config", watch=sys.argv[1])
dp.step()
wait_for_its_first_moments()
os.closerange(3, int(sys.argv[2]))
pipes = [os.pipe() for _ in range(4)]
for entry, exit_ in pipes:
    os.write(exit_, b"of the script")
files = [open(f"checkpoint{number}", "wb", buffering=0) for number in range(8)]
begun = time.time()
while dp.status().watching == "events (watch=events)" and time.time() < begun + 3:
    dp.step()  # until it is noticed, or is not going to be
    time.sleep(0.01)
for file in files:
    file.write(b"weights")
for entry, exit_ in pipes:
    os.close(exit_)
    assert os.read(entry, 100) == b"of the script"
print(dp.status().watching, flush=True)
"""


@pytest.mark.parametrize(
    ("watch", "below", "then"),
    [
        ("events", 256, "events (watch=events)"),
        ("events", 4096, "poll (watch=events)"),
        ("poll", 4096, "poll (watch=poll)"),
    ],
)
def test_a_script_that_closes_every_descriptor(
    tmp_path: Path, watch: str, below: int, then: str
) -> None:
    """Nothing of dynprof's closes, reads or writes what the script opens then."""
    script = FIRST_MOMENTS + CLOSES_ALL
    command = [sys.executable, "-c", script, watch, str(below)]
    done = processes.run(command, cwd=tmp_path, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (0, f"{then}\n"), done.stderr
    written = [path.read_bytes() for path in tmp_path.glob("checkpoint*")]
    assert written == [b"weights"] * 8


GOES_ON = """
def readers():  # of watchdog's, which read in vain as fast as they can
    return [thread for thread in threading.enumerate() if type(thread).__name__.startswith("Ino")]
for _ in range(2):  # the second after an end, with events anew
    dp.init("prof_config", watch="events")
    assert dp.status().watching == "events (watch=events)", dp.status().watching
    assert any(type(thread).__name__ in ("InotifyFD", "InotifyBuffer") for thread in readers())
    wait_for_its_first_moments()
    os.closerange(3, 4096)
    while not dp.status().watching.startswith("poll"):
        dp.step()
        time.sleep(0.01)
    while any(type(thread).__name__ != "InotifyEmitter" for thread in readers()):
        time.sleep(0.01)
    Path("prof_config/profiler_config.json").write_text(
        json.dumps({"active": 1, "activities": ["CPU"], "metadata": {"at": time.time_ns()}})
    )
    while not (edits := dp.status().edits) or edits[-1].outcome != "saved":
        dp.step()
        time.sleep(0.001)
    dp.shutdown()
print("trained", flush=True)
"""


def test_a_script_that_closes_every_descriptor_and_trains_on(tmp_path: Path) -> None:
    """The config is polled from then on, and nothing reads in vain beside the training."""
    done = processes.run(
        [sys.executable, "-c", FIRST_MOMENTS + GOES_ON], cwd=tmp_path, env=dict(os.environ)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")
    log = "".join(path.read_text() for path in tmp_path.glob("prof_config/log/*.log"))
    said = "polling every 0.5 s, as events cannot be had: the script has closed the descriptor"
    assert log.count(said) == 2
