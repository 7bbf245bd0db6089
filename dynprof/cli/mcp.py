"""``dynprof mcp``: answer an agent's questions about jobs, over the Model Context Protocol."""

from __future__ import annotations

from dynprof.cli.config_directory import AllowArm, Directories, check_directories
from dynprof.extras import require


def mcp(
    directories: Directories,
    allow_arm: AllowArm = False,
) -> None:
    """Answer an agent's questions about jobs, over the Model Context Protocol on stdio.

    An agent starts this command; docs/agents.md shows how. The tools are jobs, status, history,
    log, slow_steps, dump, captures, report, query, diff and trend. With --allow-arm also arm and
    cancel: the log of the job names the client that asked. It sees files only, as a person
    does, and ends when the agent closes the connection, or on Ctrl-C. Exit code 0: ended. 2: there
    is no such directory.

    Example: dynprof mcp /runs --allow-arm
    """
    require("serve", "dynprof mcp")
    check_directories(directories)
    from dynprof.fleet.agent_tools import serve_agent

    serve_agent(directories, allows_arm=allow_arm)
