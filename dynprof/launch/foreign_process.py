"""Checks before attaching whether a process can be reached."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from dynprof.errors import LaunchError
from dynprof.launch.python_functions import python_version
from dynprof.runtime.stacks import why_ptrace_forbidden


def why_not_reached(pid: int) -> str:
    """Return why a process cannot be attached to; empty if no reason is known."""
    folder = Path(f"/proc/{pid}")
    if not folder.parent.joinpath("self").exists():
        return "attaching needs Linux with /proc"
    try:
        return _reason_against(pid, folder)
    except FileNotFoundError:
        return f"there is no process {pid}"
    except PermissionError:
        return f"process {pid} cannot be inspected: {why_ptrace_forbidden()}"
    except LaunchError as error:
        return str(error)


def _reason_against(pid: int, folder: Path) -> str:
    if pid == os.getpid():
        return f"process {pid} is this command itself"
    status = dict(line.split(":\t", 1) for line in _lines(folder / "status") if ":\t" in line)
    if set(status["Uid"].split()) != {str(os.geteuid())}:
        return f"process {pid} belongs to another user; attach as that user"
    if status["State"].startswith("Z"):
        return f"process {pid} has ended"
    if status["State"].startswith("T"):
        return f"process {pid} is stopped; kill -CONT {pid} resumes it"
    if status["TracerPid"] != "0":
        return f"process {pid} is being debugged by process {status['TracerPid']}"
    own = Path("/proc/self")
    if any((folder / one).readlink() != (own / one).readlink() for one in ("ns/mnt", "root")):
        text = f"process {pid} runs in a container with its own file system"
        return f"{text}; run dynprof attach in it, for example with docker exec"
    version = python_version(pid)
    if version != sys.version_info[:2]:
        here, there = (".".join(map(str, each)) for each in (sys.version_info[:2], version))
        text = f"process {pid} runs Python {there}, but this dynprof runs Python {here}"
        return f"{text}; install dynprof for Python {there}, anywhere, and attach with it"
    return ""


def describe_main_thread(pid: int) -> str:
    """Describe a main thread that runs no Python, and name a tool that shows more."""
    does, task = "runs no Python", Path(f"/proc/{pid}/task/{pid}")
    with contextlib.suppress(OSError):
        does = "computes in compiled code"
        if (task / "stat").read_text().rpartition(")")[2].split()[0] != "R":
            does = f"waits in the system ({(task / 'wchan').read_text()})"
    return f"Its main thread {does}; py-spy dump --pid {pid} shows the line that called it"


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()
