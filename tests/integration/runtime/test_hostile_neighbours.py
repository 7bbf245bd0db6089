"""A group member puts links in place of everything that the job writes in a shared folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.real_traces import H100
from tests.users import ALICE, MALLORY, PYTHON, as_root, others_run_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [as_root, others_run_python]

SWAP = """
import contextlib, os, sys, time
shared, victim, home = sys.argv[1:]
print("ready", flush=True)
while True:
    time.sleep(0.0005)
    for place, folders, files in os.walk(shared):
        for name in files:
            if name.endswith((".tmp", ".json", ".parquet", ".db")):
                with contextlib.suppress(OSError):
                    os.unlink(f"{place}/{name}")
                    os.symlink(victim, f"{place}/{name}")
        for name in list(folders):
            if name.endswith((".saving", ".recording", ".tmp")):
                with contextlib.suppress(OSError):
                    os.rename(f"{place}/{name}", f"{place}/{name}.moved")
                    os.symlink(home, f"{place}/{name}")
"""
"""Replaces files, and folders of unfinished captures, by links."""


def open_to_mallory(folder: Path) -> None:
    """Give a folder to Alice and Mallory's group; new files get that group, too."""
    os.chown(folder, ALICE.uid, MALLORY.uid)
    folder.chmod(0o2770)


@pytest.fixture
def shared(shared_tmp: Path) -> Path:
    """Return a folder of Alice's in which Mallory's group may write."""
    folder = shared_tmp / "shared"
    folder.mkdir()
    open_to_mallory(folder)
    return folder


@pytest.fixture
def home(shared_tmp: Path) -> Path:
    """Return Alice's home, with a file that no other user may write."""
    folder = shared_tmp / "home"
    folder.mkdir()
    (folder / "bashrc").write_text("mine\n")
    (folder / "bashrc").chmod(0o600)
    ALICE.own(folder, folder / "bashrc")
    return folder


@contextmanager
def swapping(shared: Path, home: Path) -> Iterator[None]:
    """Run Mallory's replacement by links."""
    process = subprocess.Popen(
        [str(PYTHON), "-c", SWAP, shared, home / "bashrc", home],
        user=MALLORY.uid,
        group=MALLORY.uid,
        extra_groups=[],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield
        assert process.poll() is None, "Mallory has ended early"
    finally:
        process.kill()
        process.communicate()


def is_untouched(home: Path) -> bool:
    """Return whether Alice's home is unchanged."""
    return [(p.name, p.read_text()) for p in home.iterdir()] == [("bashrc", "mine\n")]


def test_analysis_in_a_shared_folder(shared: Path, home: Path) -> None:
    """The tables may get lost, but nothing is written elsewhere."""
    for number in range(3):
        trace = shared / f"step_{number}" / "a.pt.trace.json.gz"
        trace.parent.mkdir()
        shutil.copy(H100 / "train.json.gz", trace)
        trace.chmod(0o444)
        ALICE.own(trace)
        open_to_mallory(trace.parent)
    with swapping(shared, home):
        for folder in sorted(shared.iterdir()):
            code = "import os; os.umask(0o007); from dynprof.__main__ import main; main()"
            ALICE.python(code, "analyse", folder, "--export-type", "db", "--export-type", "text")
            assert is_untouched(home), folder
    assert any(path.is_symlink() for path in shared.rglob("*")), "Mallory did nothing"


JOB = """
import json, os, pathlib, sys, time
os.umask(0o007)
import torch, dynprof as dp
shared, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
while True:
    try:
        dp.init(shared)
        break
    except Exception:  # Mallory has removed what it was writing
        pass
for number in range(count):
    asked = pathlib.Path(sys.argv[3], "asked.json")
    asked.write_text(json.dumps({"activities": ["CPU"], "active": 1, "profile_memory": True,
                                 "experimental_config": {"record_op_args": True}}))
    dp.start(asked)
    for _ in range(4):
        torch.ones(3) + 1
        dp.step()
    while dp.status().state != "idle":
        time.sleep(0.01)
        dp.step()
dp.shutdown()
"""


def test_windows_in_a_shared_folder(shared: Path, home: Path, shared_tmp: Path) -> None:
    """Captures may get lost to Mallory's links; nothing is written elsewhere, and the job ends."""
    pytest.importorskip("torch", reason="torch is not installed")
    own = shared_tmp / "own"
    own.mkdir()
    ALICE.own(own)
    with swapping(shared, home):
        done = ALICE.python(JOB, shared, "5", own)
    assert done.returncode == 0, done.stderr
    assert is_untouched(home)
    assert any(path.is_symlink() for path in shared.rglob("*")), "Mallory did nothing"
