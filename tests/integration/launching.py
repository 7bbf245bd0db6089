"""Jobs of several processes, started by a launcher, and their statuses."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from typing import TYPE_CHECKING

from dynprof.errors import CaptureError
from dynprof.journal.status import Status, load_status
from tests import warm_interpreter
from tests.integration.running import wait_for
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.processes import Process

TORCHRUN = """
from tests import warm_interpreter
from torch.distributed.run import main
warm_interpreter.begin_workers_of_torchrun()
main()
"""
_random = random.SystemRandom()  # not seeded like that of pytest's other processes


def statuses(folder: Path) -> dict[str, Status]:
    """Return the content of the status directory, by file name."""
    found = {}
    for path in (folder / "prof_config/status").glob("*.json"):
        with contextlib.suppress(CaptureError):
            found[path.name] = load_status(path)
    return found


def when(folder: Path, what: str, wanted: Callable[[dict[str, Status]], bool]) -> dict[str, Status]:
    """Wait until the statuses of a folder meet a condition."""

    def found() -> dict[str, Status] | None:
        now = statuses(folder)
        return now if wanted(now) else None

    try:
        return wait_for(what, found)
    except AssertionError as error:
        raise AssertionError(f"{error}; there are {statuses(folder)}") from None


def free_port() -> int:
    """Return a port without a listener that the system does not assign.

    The system assigns ports from 32768 on. Ranks of another test could get such a port before it is
    used.
    """
    while True:
        port = _random.randrange(15_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def launched(
    folder: Path,
    script: str,
    *torchrun: str,
    more: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """Run a script by itself, or through torchrun with these options; end the whole tree.

    Args:
        folder: The working directory.
        script: The script.
        torchrun: Options of torchrun.
        more: Variables to add.
    """
    path = folder / "job.py"
    path.write_text(script)
    arguments: list[str] = []
    if torchrun:
        arguments = [*torchrun, path.name]
        path = folder / "torchrun.py"
        path.write_text(TORCHRUN)
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    env = {**clean, "OMP_NUM_THREADS": "1", **(more or {})}
    with warm_interpreter.start(path, env, arguments=arguments) as process:
        yield process


def end_well(running: Sequence[Process], patience: float = 1) -> str:
    """Wait until all processes have ended successfully; return their errors.

    Args:
        running: The processes.
        patience: The factor for the usual timeout.
    """
    said = []
    for process in running:
        _, errors = process.communicate(timeout=patience * patience_s())
        assert process.returncode == 0, errors
        said.append(errors)
    return "".join(said)


@contextlib.contextmanager
def ranks(
    folder: Path, script: str, count: int, *, unloads: bool = False
) -> Iterator[list[Process]]:
    """Run a script as each rank of a job without a launcher, and end them all.

    Args:
        folder: The working directory.
        script: The script.
        count: The number of ranks.
        unloads: As :func:`warm_interpreter.start` takes it.
    """
    path = folder / "job.py"
    path.write_text(script)
    port = str(free_port())
    job = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env = {**os.environ, **job, "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as all_of_them:
        yield [
            all_of_them.enter_context(
                warm_interpreter.start(path, {**env, "RANK": str(rank)}, unloads=unloads)
            )
            for rank in range(count)
        ]
