"""An interpreter that has loaded torch and nothing else; it forks for each script that needs it.

To load torch takes most of the time of a short script. What a fresh interpreter needs of its own
(tunables of the allocator, another command line, threads before the fork) starts one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import types
from typing import TYPE_CHECKING, Any

from tests import processes
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MOST_BYTES = 1 << 20


def run(text: str, folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, as ``python -c`` would, whatever its exit code.

    Raises:
        subprocess.TimeoutExpired: It took too long, and was killed.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        asked = json.dumps({"text": text, "folder": str(folder), "env": dict(env)}).encode()
        code = _ask(asked, [output.fileno(), errors.fileno()])
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess([text], code, output.read(), errors.read())


def _ask(asked: bytes, files: list[int]) -> int:
    """Have a script run, and return its exit code; whatever interrupts that kills it."""
    connection = _interpreter()
    socket.send_fds(connection, [asked], files)
    pid = json.loads(connection.recv(_MOST_BYTES))
    try:
        connection.settimeout(patience_s())
        code: int = json.loads(connection.recv(_MOST_BYTES))
    except BaseException as error:
        _interpreter.cache_clear()  # the next script has another one
        connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if isinstance(error, TimeoutError):
            raise subprocess.TimeoutExpired("the script", patience_s()) from error
        raise
    return code


@functools.cache
def _interpreter() -> socket.socket:
    """Start the interpreter; it ends once nobody has the other end of its socket any more."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
    with there:
        command = [sys.executable, "-m", __name__, str(there.fileno())]
        processes.start_for_all_tests(command, pass_fds=[there.fileno()])
    atexit.register(here.close)
    return here


def _script(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each script that is asked for; return it in the child, and None at the end."""
    while True:
        asked, files, *_ = socket.recv_fds(connection, _MOST_BYTES, 2)
        if not asked:
            return None
        if (pid := os.fork()) == 0:
            connection.close()
            os.setsid()
            for place, file in enumerate(files, start=1):
                os.dup2(file, place)
                os.close(file)
            found: dict[str, Any] = json.loads(asked)
            return found
        for file in files:
            os.close(file)
        connection.send(b"%d" % pid)
        connection.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _main() -> None:
    import torch  # noqa: F401

    script = _script(socket.socket(fileno=int(sys.argv[1])))
    if script is None:
        return
    os.chdir(script["folder"])
    os.environ.clear()
    os.environ.update(script["env"])
    sys.argv, sys.path[0] = ["-c"], ""
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    exec(compile(script["text"], "<string>", "exec"), vars(main))  # noqa: S102


if __name__ == "__main__":
    _main()
