"""Children that the job forks while a dynprof thread reads or writes for the first time."""

from __future__ import annotations

import sys

import pytest

from tests.processes import run

FORKING = """
import os, signal, sys, threading, time
from dynprof.captures.manifest import RequestRecord
from dynprof.ranks.messages import (
    LeaderMessage,
    Opening,
    Reply,
    Report,
    parse_leader_message,
    parse_rank_messages,
    to_text,
)
from dynprof.session.startup import use_readers
use_readers()  # as dp.init() does

def read_and_write():
    parse_leader_message(to_text(LeaderMessage("", 0, Opening(1, 5, {2: "why"}))).encode())
    parse_rank_messages(to_text(Reply(1, 2, Report(1))).encode())
    record = RequestRecord(number=1, edited_at="", sha256="", config={})
    RequestRecord.model_validate_json(record.model_dump_json())

def job(busy_s):
    thread = threading.Thread(target=read_and_write, daemon=True)
    sys.setswitchinterval(1e-6)  # between any two steps of Python another thread goes on
    thread.start()
    until_s = time.perf_counter() + busy_s
    while time.perf_counter() < until_s:
        pass
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        read_and_write()
        os._exit(0)
    os._exit(os.waitpid(child, 0)[1] != 0)

def ended_well(busy_s):
    pid = os.fork()
    if pid == 0:
        job(busy_s)
    return os.waitpid(pid, 0)[1] == 0

print(sum(not ended_well(trial * 2e-5) for trial in range(150)), "children hang")
"""


@pytest.mark.slow
def test_a_child_forked_during_the_first_use_does_not_hang() -> None:
    """Pydantic holds locks at the first use of a type, and a child would inherit them."""
    forks = "ignore::DeprecationWarning"  # Python 3.12 warns of forks with other threads
    done = run([sys.executable, "-W", forks, "-c", FORKING])
    assert (done.stdout, done.stderr) == ("0 children hang\n", "")
