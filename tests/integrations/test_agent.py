"""An agent finds injected faults over MCP: from "the job is slow" to the responsible function.

The agent is a few rules that see the answers only. The truth is the code of the fault benchmark. A
stack and a record of a slow step name the line, a trace of torch the first line of the function.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

pytest.importorskip("mcp", reason="mcp is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from mcp import StdioServerParameters
from mcp.client import Client

from benchmarks.faults.jobs import FAULTS, ONSET
from tests.integration.running import wait_for
from tests.processes import ROOT, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_CALLS = 8
SLOW_S, STUCK_S = 5.0, 45.0
"""Seconds after which a person says that a job is slow, and after which a hanging step is stuck."""
pytestmark = pytest.mark.timeout(300)


@contextlib.contextmanager
def faulty_job(folder: Path, name: str, **watch: float) -> Iterator[None]:
    """Run a job of the fault benchmark, past the onset of its fault."""
    (folder / "prof_config").mkdir()
    config = {"watch": watch} if watch else {}
    (folder / "prof_config" / "profiler_config.json").write_text(json.dumps(config))
    env = {**os.environ, "FAULT": name, "PYTHONPATH": str(ROOT)}
    with (folder / "output").open("wb") as output:
        command = [sys.executable, "-m", "benchmarks.faults.jobs"]
        job = start(command, cwd=folder, env=env, stdout=output, stderr=output)
    wait_for("the onset", lambda: (folder / ONSET).exists() or None)
    yield
    job.kill()


class Agent:
    """Asks with the SDK's client, over stdio, and counts its calls."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.calls: list[str] = []

    async def ask(self, tool: str, **arguments: Any) -> Any:
        """Return what a tool says of the job."""
        self.calls.append(tool)
        answer = await self._client.call_tool(tool, arguments)
        assert not answer.is_error, answer.content
        assert answer.structured_content is not None
        return answer.structured_content["from_job"]

    async def find_cause(self) -> str:
        """Return the text that should name the responsible line."""
        jobs = (await self.ask("jobs"))["jobs"]["items"]
        name = jobs[0]["job"]
        status = await self.ask("status", job=name)
        if status["health"] == "stuck":
            return str((await self.ask("dump", job=name))["stacks"])
        log = (await self.ask("log", job=name))["lines"]
        if slow := re.findall(r"step \d+ took .*", log):
            return "\n".join(slow)
        armed = await self.ask("arm", job=name, settings={"active": 2, "with_stack": True})
        assert armed["exit_code"] == 0, armed
        return str((await self.ask("report", job=name))["in_words"])


def find_cause(folder: Path) -> tuple[str, list[str]]:
    """Return what an agent finds about the jobs below a folder, and its calls."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "dynprof", "mcp", str(folder), "--allow-arm"]
    )

    async def ask() -> tuple[str, list[str]]:
        async with Client(server) as client:
            agent = Agent(client)
            return await agent.find_cause(), agent.calls

    return anyio.run(ask)


def log_of(folder: Path) -> str:
    """Return the log of the job."""
    return "".join(path.read_text() for path in (folder / "prof_config" / "log").glob("*.log"))


@pytest.mark.parametrize(
    ("name", "watch", "sign"),
    [
        ("slow_collate", {}, SLOW_S),
        ("item_in_loop", {}, SLOW_S),
        ("sleeping_callback", {}, SLOW_S),
        ("every_100th", {"slower_than": 1.5}, r"step \d+ took"),
        ("deadlock", {}, STUCK_S),
    ],
)
def test_agent_finds_the_responsible_function(
    tmp_path: Path, name: str, watch: dict[str, float], sign: str | float
) -> None:
    """It takes at most eight calls."""
    with faulty_job(tmp_path, name, **watch):
        if isinstance(sign, float):
            time.sleep(sign)
        else:
            wait_for("the sign of the fault", lambda: re.search(sign, log_of(tmp_path)))
        cause, calls = find_cause(tmp_path)
    assert len(calls) <= MAX_CALLS
    code = FAULTS[name].act.__code__
    lines = FAULTS[name].lines() | {code.co_firstlineno, code.co_firstlineno + 1}
    named = {int(line) for line in re.findall(r"jobs\.py:(\d+)", cause)}
    assert named & lines, (lines, cause)
