"""Runs commands of dynprof for another program: the same messages and exit codes as in a shell."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import psutil

from dynprof.errors import NotLoggedError, reason
from dynprof.journal.journal import LineFormatter, printable
from dynprof.runtime.fresh_interpreter import command, environment
from dynprof.runtime.layout import LOG_DIR, host_name
from dynprof.runtime.safe_open import make_dir
from dynprof.runtime.safe_write import open_to_append

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_OUTPUT_BYTES = 256 << 10
"""Bytes of each stream that are returned; a dump of a thousand ranks is larger."""
CELLS = 120
"""Width of tables in the output."""


@dataclass(frozen=True)
class Answer:
    """How a command ended.

    Attributes:
        code: Its exit code; None if the time was up and it was ended.
        output: Its standard output, up to :data:`MAX_OUTPUT_BYTES`.
        messages: Its standard error, up to as much.
        is_cut: Whether there was more output.
    """

    code: int | None
    output: str
    messages: str
    is_cut: bool = False


def run_command(
    arguments: Sequence[str],
    *,
    timeout_s: float,
    stdin: str = "",
    urls: Sequence[str] = (),
    scratch: Path | None = None,
) -> Answer:
    """Run ``dynprof ARGUMENTS`` in a process of its own, and wait for it.

    Args:
        arguments: The command and its arguments. A value from elsewhere comes after ``--``, or
            joined to its option, so that none is taken for an option.
        timeout_s: Seconds after which it is ended.
        stdin: Its standard input.
        urls: What it may read in stores: it gets the credentials for these.
        scratch: A folder for its temporary files, such as a download; that of the system if None.

    Raises:
        OSError: No process can be started.
    """
    env = {**environment(*urls), "COLUMNS": str(CELLS), "NO_COLOR": "1"}
    if scratch is not None:
        env["TMPDIR"] = str(scratch)
    with _in_memory() as output, _in_memory() as messages:
        process = subprocess.Popen(
            command("dynprof", *arguments),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=messages,
            env=env,
        )
        code: int | None
        try:
            process.communicate(stdin.encode(), timeout=timeout_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        text, is_cut = _start_of(output)
        return Answer(code, text, _start_of(messages)[0], is_cut)


def end_commands() -> None:
    """End the commands that run for this process, whose threads wait for them."""
    commands = psutil.Process().children()
    for one in commands:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(commands, timeout=1.0)


def _in_memory() -> IO[bytes]:
    """Return a file that takes the output of a command, also while all disks are full."""
    return os.fdopen(os.memfd_create("dynprof"), "w+b")


def _start_of(file: IO[bytes]) -> tuple[str, bool]:
    file.seek(0)
    content = file.read(MAX_OUTPUT_BYTES + 1)
    return content[:MAX_OUTPUT_BYTES].decode(errors="replace"), len(content) > MAX_OUTPUT_BYTES


def as_options(settings: Mapping[str, str | float | bool]) -> list[str]:
    """Return settings of the config as options of ``dynprof arm``, each joined to its value.

    Raises:
        ValueError: One cannot be a setting; ``arm`` refuses names that it does not know.
    """
    options = []
    for key, value in settings.items():
        if not re.fullmatch("[a-z][a-z0-9_]{0,40}", key) or key in ("help", "wait", "timeout"):
            raise ValueError(f"{key[:80]!r} is no setting")
        name = key.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{name}" if value else f"--no-{name}")
        else:
            options.append(f"--{name}={value}")
    return options


def run_logged(
    directory: Path, program: str, line: Sequence[str], asked: str, *, timeout_s: float
) -> Answer:
    """Run a command that changes a job, once the job's log says who asked for it.

    Args:
        directory: The directory of the job's config, the command's last argument.
        program: The name of the program that runs it, as in :func:`note_in_log`.
        line: The command and its options.
        asked: Who asked for it, for the log.
        timeout_s: Seconds after which it is ended.

    Raises:
        NotLoggedError: The log cannot be written, so the command was not run.
        OSError: No process can be started.
    """
    try:
        note_in_log(directory, program, f"{shlex.join(line)}, {asked} {getpass.getuser()}")
    except OSError as error:
        text = f"{line[0]} is not logged, so it is not done: {reason(error)}"
        raise NotLoggedError(text) from None
    return run_command([*line, "--", str(directory)], timeout_s=timeout_s)


def note_in_log(directory: Path, program: str, text: str) -> None:
    """Write a line to the log of a job, which ``dynprof log`` merges with those of its ranks.

    Args:
        directory: The directory of the job's config.
        program: The name of the program that writes it, in place of a rank: ``mcp``, ``page``.
        text: What it did, and who asked for it, on one line.

    Raises:
        OSError: The log cannot be written.
    """
    folder = directory / LOG_DIR
    directory.stat()  # a job that was removed is not made again
    make_dir(folder)
    record = logging.LogRecord("dynprof", logging.INFO, "", 0, printable(text), None, None)
    descriptor = open_to_append(folder / f"dp_{host_name()}_{os.getpid()}_{program}.log")
    with os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{LineFormatter(program).format(record)}\n")
