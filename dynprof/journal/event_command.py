"""The command of ``on_event``: how a job names it, and the process that runs it.

The process outlives the job, so that the event of a capture at the job's end is not lost, and it
keeps the time limit. It gets its work on standard input: neither the command's arguments nor the
job's environment, which may have keys, are in its own command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE = "DYNPROF_ON_EVENT"
LIMIT_S = 60.0
"""Seconds that the command may take for an event: a web request with some retries takes less."""
SUCCEEDED = "done"
"""The last line that the process prints if the command succeeded for all events."""


def command_of(asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return the command that an argument or else the variable names; empty for none.

    Messages name the program only: its arguments may have keys.

    Args:
        asked: The argument.

    Raises:
        ValueError: It is not a list of words, or there is no such program.
    """
    if asked is None:
        return split_command(VARIABLE, os.environ.get(VARIABLE, ""))
    if not isinstance(asked, (list, tuple)) or not all(isinstance(word, str) for word in asked):
        text = 'is not a list of words; write on_event=["notify.sh", "team"]'
        raise ValueError(f"on_event={type(asked).__name__} {text}")
    return _found("on_event", asked)


def split_command(source: str, line: str) -> tuple[str, ...]:
    """Return the words of a command in the syntax of a shell, with the path of its program.

    Args:
        source: The option or variable that has it, for messages.
        line: The command.

    Raises:
        ValueError: A quotation does not end, or there is no such program.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ValueError(f"{source} has {str(error).lower()}; quote it as in a shell") from None
    return _found(source, words)


def _found(source: str, words: Sequence[str]) -> tuple[str, ...]:
    if not words:
        return ()
    program = shutil.which(words[0])
    if program is None:
        raise ValueError(f"{source}: there is no program {words[0]!r} that this user may run")
    return (str(Path(program).absolute()), *words[1:])


def main() -> None:
    """Run the command for each event on standard input, one after the other.

    Raises:
        SystemExit: With the reason why it failed for one.
    """
    asked = json.load(sys.stdin)
    failures = [_run(asked["command"], event, asked["environment"]) for event in asked["events"]]
    if failed := [why for why in failures if why]:
        sys.exit(failed[-1])
    print(SUCCEEDED, file=sys.stderr)  # a job that ignores SIGCHLD gets no exit code


def _run(command: list[str], event: dict[str, Any], environment: Mapping[str, str]) -> str:
    """Run the command for one event; return why it failed, empty if it did not."""
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that its children can be killed with it
        )
    except OSError as error:
        return f"{name} cannot be run: {error.strerror}"
    try:
        process.communicate(f"{json.dumps(event)}\n".encode(), timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"{name} was killed after {LIMIT_S:g} s"
    return f"{name} exited with code {process.returncode}" if process.returncode else ""


if __name__ == "__main__":
    main()
