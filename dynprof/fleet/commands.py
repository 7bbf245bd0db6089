"""Runs commands of dynprof for another program: the same messages and exit codes as in a shell."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from dynprof.runtime.fresh_interpreter import command, environment

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def run_command(arguments: Sequence[str], *, timeout_s: float, stdin: str = "") -> Answer:
    """Run ``dynprof ARGUMENTS`` in a process of its own, and wait for it.

    Args:
        arguments: The command and its arguments. A value from elsewhere comes after ``--``, or
            joined to its option, so that none is taken for an option.
        timeout_s: Seconds after which it is ended.
        stdin: Its standard input.

    Raises:
        OSError: No process can be started.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            command("dynprof", *arguments),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=messages,
            env={**environment(), "COLUMNS": str(CELLS), "NO_COLOR": "1"},
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


def _start_of(file: IO[bytes]) -> tuple[str, bool]:
    file.seek(0)
    content = file.read(MAX_OUTPUT_BYTES + 1)
    return content[:MAX_OUTPUT_BYTES].decode(errors="replace"), len(content) > MAX_OUTPUT_BYTES
