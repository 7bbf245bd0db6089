"""Two hosts without a shared disk: namespaces with their own network, name and mounts."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.captures.window_record import load_window_record
from tests import processes
from tests.integration.launching import end_well
from tests.integration.ranks.agreeing import JOB, SHARED, everything, numbers_in_trace
from tests.integration.running import wait_for
from tests.processes import DYNPROF, Process, start

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

ADDRESSES = {"node0": "10.77.0.1", "node1": "10.77.0.2"}
PAGE = (processes.ROOT / "docs" / "recipes.md").read_text()
OWN = "--net", "--mount", "--uts"
NEW_ROOT = "--user", "--map-root-user"
"""A process may create the other namespaces in its own user namespace, if the machine allows it."""
HOST = """
touch ready
until ip address add {address}/24 dev cable 2>/dev/null; do sleep 0.02; done
ip link set lo up
ip link set cable up
{python} -ISc 'import socket; socket.sethostname("{name}")'
mount -t tmpfs none /dev/shm
mount -t tmpfs none {other}
mount --bind hosts /etc/hosts
exec {command}
"""


class Hosts:
    """Two hosts with a network between them; neither sees the other's folder.

    Args:
        folder: Contains each host's disk, named as the host.
    """

    def __init__(self, folder: Path) -> None:
        self.disks = [folder / name for name in ADDRESSES]
        self._running: list[Process] = []

    @contextlib.contextmanager
    def train(self, script: str) -> Iterator[None]:
        """Run a script with torchrun on both hosts; it must succeed."""
        for disk in self.disks:
            disk.mkdir()
            (disk / "train.py").write_text(script)
            known = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
            (disk / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        with contextlib.ExitStack() as stack:
            for number in range(2):
                self._running.append(stack.enter_context(self._boot(number)))
            other_end = ("peer", "name", "cable", "netns", str(self._running[1].pid))
            self.on(0, "ip", "link", "add", "cable", "type", "veth", *other_end)
            yield
            for disk in self.disks:
                (disk / "enough").touch()
            assert "Traceback" not in end_well(self._running)

    def _boot(self, number: int) -> Process:
        disk = self.disks[number]
        (torchrun,) = re.findall(r"^torchrun (.*)$", PAGE, re.MULTILINE)
        words = torchrun.replace("--nproc-per-node=8", "--nproc-per-node=2").split()
        text = HOST.format(
            address=ADDRESSES[disk.name],
            python=shlex.quote(sys.executable),
            name=disk.name,
            other=shlex.quote(str(self.disks[1 - number])),
            command=shlex.join([sys.executable, "-m", "torch.distributed.run", *words]),
        )
        users = self._enter(0, "--user") if number else []
        apart = ["unshare", *OWN, *(() if number else NEW_ROOT), "sh", "-ec", text]
        process = start([*users, *apart], cwd=disk, env=self._env(disk))
        wait_for("it to be apart", lambda: (disk / "ready").exists() or process.poll())
        return process

    def _env(self, disk: Path) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        own = {"TMPDIR": str(disk), "OMP_NUM_THREADS": "1", "DYNPROF_CLOSE": "inline"}
        return {**clean, **own, "COLUMNS": "200"}

    def _enter(self, number: int, *namespaces: str) -> list[str]:
        target = f"--target={self._running[number].pid}"
        return ["nsenter", "--preserve-credentials", target, *namespaces]

    def on(self, number: int, *command: object) -> subprocess.CompletedProcess[str]:
        """Run a command on one host; it must succeed."""
        words = [*self._enter(number, "--user", *OWN), *map(str, command)]
        done = processes.run(words, env=self._env(self.disks[number]))
        assert done.returncode == 0, done.stderr
        return done

    def record(self, number: int, *arm: object) -> str:
        """Arm a window; repeat if a rank on a busy machine learns of it too late."""
        said = late = ", on which the ranks agreed, has begun here already"
        while late in said:
            command = [*self._enter(number, "--user", *OWN), *map(str, arm)]
            said = processes.run(command, env=self._env(self.disks[number])).stderr
        return said


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    """Return two hosts; skip the test if the machine cannot have them."""
    for name in ("unshare", "nsenter", "ip"):
        if not shutil.which(name):
            pytest.skip(f"there is no {name}, which makes hosts of namespaces")
    cable = "mount -t tmpfs none /dev/shm && ip link add cable type veth peer name other"
    tried = processes.run(["unshare", *OWN, *NEW_ROOT, "sh", "-c", cable])
    if tried.returncode:
        pytest.skip(f"namespaces cannot be made here: {tried.stderr.strip()}")
    return Hosts(tmp_path)


def test_torchrun_on_two_hosts_of_two_ranks(tmp_path: Path, hosts: Hosts) -> None:
    """All four ranks, or two of one host, record the same iterations; the other folder is named."""
    script = JOB.format(directory=SHARED, ms=5, without=(), leaving="")
    with hosts.train(script):
        agree = "4 ranks agree on the steps"
        wait_for(
            "the ranks", lambda: "".join(map(everything, hosts.disks)).count(agree) == 4 or None
        )
        (log,) = (p for p in tmp_path.glob("*/*/log/*") if "this one leads" in p.read_text())
        root = log.parents[1]
        here, there = sorted((0, 1), key=lambda number: hosts.disks[number] != root.parent)
        arm = (*DYNPROF, "arm", root, "--active", 2, "--wait")
        assert "4 of 4 ranks saved it" in hosts.record(here, *arm)
        assert "2 of 2 ranks saved it" in hosts.record(here, *arm, "--ranks", "one per host")
        status = hosts.on(there, *DYNPROF, "status", hosts.disks[there] / SHARED).stdout
        assert f"follow rank 0 on {hosts.disks[here].name} ({root}/profiler_config.json)" in status
    for folder in sorted(root.glob("step_*")):
        record = load_window_record(folder / "info" / "window.json")
        if not record.complete:  # a rank learned of it too late
            continue
        assert {one.host for one in record.ranks.values()} == set(ADDRESSES)
        found = [
            load_manifest(path)
            for path in tmp_path.glob(f"*/*/{folder.name}/info/rank_*.info.json")
        ]
        assert {manifest.rank for manifest in found} == set(record.ranks)
        traces = list(tmp_path.glob(f"*/*/{folder.name}/*.pt.trace.json.gz"))
        iterations = [sorted(numbers_in_trace(path, "Iteration")) for path in traces]
        assert iterations == iterations[:1] * len(record.ranks)
        assert len(iterations[0]) == 2
