"""A server that forks interpreters with loaded modules, for all processes of pytest.

The server itself loads nothing. For each set of modules it starts one interpreter that loads them.
That interpreter forks once for each client. The client's fork forks once for each of its scripts.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from typing import TYPE_CHECKING, Any

from tests import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ADDRESS = "DYNPROF_TEST_FORKSERVER"
"""The variable with the server's address, for processes that the starting process starts."""
ITSELF = (sys.executable, "-m", "tests.forkserver")
MOST_BYTES = 1 << 20


def begin() -> None:
    """Start the server if no parent process has; it ends with the process that started it."""
    if ADDRESS in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="dynprof-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"{folder}/forkserver")
        listening.listen()
        command = [*ITSELF, str(listening.fileno())]
        fds = [listening.fileno()]
        processes.start_for_all_tests(command, pass_fds=fds, start_new_session=True)
    os.environ[ADDRESS] = f"{folder}/forkserver"


def connect(needs: tuple[str, ...], env: Mapping[str, str]) -> socket.socket:
    """Ask for an interpreter.

    Args:
        needs: The modules that it has loaded.
        env: Variables to add to the common environment.
    """
    begin()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.environ[ADDRESS])
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
    connection.send(json.dumps([needs, env]).encode())
    atexit.register(connection.close)
    return connection


def _serve(listening: socket.socket) -> None:
    """Connect each client to an interpreter that has loaded the modules it needs."""
    loaded: dict[bytes, socket.socket] = {}
    while True:
        client, _ = listening.accept()
        with client:
            wanted = client.recv(MOST_BYTES)
            if wanted and wanted not in loaded:
                loaded[wanted] = _interpreter(*json.loads(wanted))
            with contextlib.suppress(KeyError, OSError):  # client or interpreter has just ended
                socket.send_fds(loaded[wanted], [b"a client"], [client.fileno()])


def _interpreter(needs: list[str], env: dict[str, str]) -> socket.socket:
    """Start an interpreter; it ends when the other end of its socket is closed."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        command = [*ITSELF, str(there.fileno()), *needs]
        subprocess.Popen(command, env={**os.environ, **env}, pass_fds=[there.fileno()])
    return here


def _client(control: socket.socket) -> socket.socket | None:
    """Fork for each client; return the connection in the child, None in the parent at the end."""
    while True:
        told, fds, *_ = socket.recv_fds(control, MOST_BYTES, 1)
        if not told:
            return None
        if os.fork() == 0:
            control.close()
            return socket.socket(fileno=fds[0])
        _close(*fds)


def _script(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each requested script; return it in the child, None in the parent at the end."""
    running: dict[int, tuple[int, int]] = {}  # pidfd: process, pipe to notify
    while True:
        (ready, *_), *_ = select.select([*running, connection.fileno()], [], [])
        if ready in running:
            pid, told = running.pop(ready)
            os.write(told, b"%d" % os.waitpid(pid, 0)[1])
            _close(told, ready)
            continue
        asked, files, *_ = socket.recv_fds(connection, MOST_BYTES, 3)
        if not asked:
            _kill(pid for pid, _ in running.values())
            return None
        told, *of_script = files
        if (pid := os.fork()) == 0:
            _close(connection.detach(), told, *running, *(other for _, other in running.values()))
            return _as_its_own(json.loads(asked), of_script)
        _close(*of_script)
        running[os.pidfd_open(pid)] = pid, told
        connection.send(b"%d" % pid)


def _kill(scripts: Iterable[int]) -> None:
    """Kill the processes that a client left running when it was killed."""
    for pid in scripts:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _close(*files: int) -> None:
    for file in files:
        os.close(file)


def _as_its_own(script: dict[str, Any], files: list[int]) -> dict[str, Any]:
    """Make this fork look like a new interpreter, except for its loaded modules."""
    os.setsid()
    for place, file in enumerate(files, start=1):
        os.dup2(file, place)
        os.close(file)
    os.chdir(script["folder"])
    os.environ.clear()
    os.environ.update(script["env"])
    sys.argv, sys.path[0] = [script["path"], *script["arguments"]], ""
    for each in script["warnings"]:
        sys.warnoptions.append(each)
        action, _, category = each.partition("::")
        warnings.filterwarnings(action, category=getattr(builtins, category))
    return script


def _load(control: socket.socket, needs: list[str]) -> None:
    """Load the modules, then run each script that a client requests."""
    gc.disable()  # the collector would scan the loaded modules repeatedly
    for name in needs:
        importlib.import_module(name)
    gc.enable()
    gc.freeze()  # otherwise each fork scans and copies the loaded modules as it ends
    client = _client(control)
    script = _script(client) if client else None
    if script is None:
        return
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    if script["path"] != "-c":
        main.__file__, sys.path[0] = script["path"], script["folder"]
    code = compile(script["text"], main.__dict__.get("__file__", "<string>"), "exec")
    if script["unloads"]:
        exec(code, vars(main))  # noqa: S102
    else:
        _end_without_unloading(lambda: exec(code, vars(main)))  # noqa: S102


def _end_without_unloading(script: Callable[[], None]) -> None:
    """Run a script and end as it does, after its threads and its ``atexit`` functions."""
    code = 0
    try:
        script()
    except SystemExit as error:
        told = error.code if error.code is not None else 0
        code = told if isinstance(told, int) else 1
        if code != told:
            print(told, file=sys.stderr)
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        _load(given, sys.argv[2:]) if sys.argv[2:] else _serve(given)
