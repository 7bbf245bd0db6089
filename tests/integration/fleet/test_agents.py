"""``dynprof mcp`` as an agent runs it: a process on its standard input and output."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from dynprof.journal.status import Status
from tests.integration.running import wait_for
from tests.left_captures import FOLDER, left
from tests.processes import DYNPROF, start
from tests.status_files import write_status

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Process

HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "agent", "version": "1"},
}


def send(process: Process, method: str, **message: Any) -> None:
    """Send a message to the server."""
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", "method": method, **message}) + "\n")
    process.stdin.flush()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, None])
def test_the_server_ends_at_once_while_a_tool_runs(
    tmp_path: Path, number: signal.Signals | None
) -> None:
    """By a signal, or as the agent closes the connection; it leaves no command and no file."""
    scratch, job = tmp_path / "scratch", tmp_path / "run" / "prof"
    scratch.mkdir()
    write_status(job, Status("idle", heartbeat=time.time()))
    left(job).rename(job / FOLDER)
    command = [*DYNPROF, "mcp", str(tmp_path / "run")]
    env = {**os.environ, "TMPDIR": str(scratch)}
    with start(command, stdin=-1, env=env) as process:
        send(process, "initialize", id=1, params=HELLO)
        send(process, "notifications/initialized")
        asked = {"name": "report", "arguments": {"job": "run/prof"}}
        send(process, "tools/call", id=2, params=asked)
        server = psutil.Process(process.pid)
        (made,) = wait_for("the command", lambda: server.children() or None)
        made.suspend()
        assert list(scratch.iterdir())
        if number is None:
            assert process.stdin is not None
            process.stdin.close()
            process.stdin = None
        else:
            process.send_signal(number)
        assert process.wait() == 0
        assert not made.is_running()
        assert list(scratch.iterdir()) == []
