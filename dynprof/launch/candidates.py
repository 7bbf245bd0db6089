"""Finds the processes of this user that run Python and may be ranks of a job."""

from __future__ import annotations

import contextlib
import fnmatch
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from dynprof.launch.foreign_process import why_not_reached
from dynprof.launch.which_process import LAUNCHERS, Program, rank_text, why_not_a_rank


@dataclass(frozen=True)
class Candidate:
    """A process that runs Python.

    Attributes:
        process: The process.
        command: Its command line.
        folder: Its working directory.
        runs: The script or module that it runs, or the first word of its title.
        why_not: Why it cannot be attached to; empty if it can.
    """

    process: psutil.Process
    command: str
    folder: Path
    runs: str
    why_not: str

    @property
    def pid(self) -> int:
        """Its PID."""
        return self.process.pid

    @property
    def path(self) -> str:
        """Absolute path of what it runs, which selects it."""
        return _absolute(self.folder, self.runs)


def candidates(name: str = "") -> list[Candidate]:
    """Return the processes of this user that run a script or module in Python, by PID.

    Launchers, tools, pool workers, and processes that a rank forked or started as helpers are left
    out.

    Args:
        name: The script or module, or the title set with setproctitle; ``*`` matches any text. A
            name with a slash is a path, relative to the caller's working directory; scripts are
            relative to that of their process. Empty for all.
    """
    found: dict[int, tuple[psutil.Process, str]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            rank = _rank_of(process, name)
            if rank is not None:
                found[process.pid] = process, rank
    kept = []
    for pid, (process, rank) in sorted(found.items()):
        with contextlib.suppress(psutil.Error, OSError):
            if any(found[a.pid][1] == rank for a in process.parents() if a.pid in found):
                continue
            folder, called = Path(process.cwd()), process.cmdline()
            runs, command = _script_or_title(called), " ".join(called).strip()
            kept.append(Candidate(process, command, folder, runs, why_not_reached(pid)))
    return kept


def starts_ranks(pid: int) -> str:
    """Return which launcher a process runs; empty if none, or if it cannot be inspected."""
    with contextlib.suppress(psutil.Error, OSError):
        program = _program(psutil.Process(pid).cmdline())
        if program.is_one_of(LAUNCHERS):
            return program.short_name
    return ""


def _rank_of(process: psutil.Process, name: str) -> str | None:
    """Return the rank that a launcher gave to a process; None if it is not a candidate."""
    if process.pid == os.getpid() or process.uids() != psutil.Process().uids():
        return None
    called = process.cmdline()
    if "python" not in Path(process.exe()).name:
        return None
    title = _title(called)
    program = Program("script", title) if title else _program(called)
    if "/" in name:
        names = {_absolute(process.cwd(), _script_or_title(called))}
        name = _absolute(os.getcwd(), name)  # noqa: PTH109
    else:
        names = {program.name, title.partition(" ")[0] or Path(program.name).name}
    if name and not any(one == name or fnmatch.fnmatchcase(one, name) for one in names):
        return None
    if why_not_a_rank(program, {}, process.pid):
        return None
    return f"{rank_text(process.environ())}{title}"


def _script_or_title(called: list[str]) -> str:
    """Return the script or module from a command line, or the first word of a title."""
    return _title(called).partition(" ")[0] or _program(called).name


def _absolute(folder: str | Path, path: str) -> str:
    """Return an absolute path; only links in its folder are resolved."""
    whole = Path(os.path.abspath(Path(folder, path)))  # noqa: PTH100 - ".." as in a shell
    return str(Path(os.path.realpath(whole.parent), whole.name))


def _title(called: list[str]) -> str:
    """Return the title that a process has set over its command line; empty for none.

    vLLM, SGLang and Ray set the titles of their worker processes.
    """
    return "" if not called or "python" in Path(called[0]).name else " ".join(called).strip()


def _program(called: list[str]) -> Program:
    """Return what an interpreter runs, from its command line."""
    words = iter(called[1:])
    for word in words:
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(words, None)
        elif word[:2] in ("-m", "-c"):
            kind = "module" if word[1] == "m" else "code"
            return Program(kind, word[2:] or next(words, ""))
        elif not word.startswith("-"):
            return Program("script", word)
    return Program("terminal", "")
