"""Which processes of this user run Python, and which of them are ranks of a job."""

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
        folder: Where it works.
        runs: The script or module that it runs, or the first word of its title.
        why_not: What speaks against reaching into it; empty for nothing.
    """

    process: psutil.Process
    command: str
    folder: Path
    runs: str
    why_not: str

    @property
    def pid(self) -> int:
        """Its id."""
        return self.process.pid

    @property
    def path(self) -> str:
        """What it runs, from the root on: the path that means it."""
        return _absolute(self.folder, self.runs)


def candidates(name: str = "") -> list[Candidate]:
    """Return the processes of this user that run a script or module in Python, by id.

    Launchers, tools, workers of pools and what a rank has forked or started as a helper are none.

    Args:
        name: Which script or module they have to run, or the title that they gave themselves, as
            by setproctitle; ``*`` stands for any text. One with a slash is a path: its folder,
            from where the caller works, is the one of the script, from where the process works.
            Empty for all.
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
    """Return which launcher a process runs; empty where it runs none, or that cannot be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        program = _program(psutil.Process(pid).cmdline())
        if program.is_one_of(LAUNCHERS):
            return program.short_name
    return ""


def _rank_of(process: psutil.Process, name: str) -> str | None:
    """Return which rank a launcher has made of a process; None where it is none that is meant."""
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
    """Return what a process runs, by its command line, or the first word of its title."""
    return _title(called).partition(" ")[0] or _program(called).name


def _absolute(folder: str | Path, path: str) -> str:
    """Return a path from the root on; links are followed in its folder only."""
    whole = Path(os.path.abspath(Path(folder, path)))  # noqa: PTH100 - of ".." as a shell has it
    return str(Path(os.path.realpath(whole.parent), whole.name))


def _title(called: list[str]) -> str:
    """Return what a process has written over its command line; empty where that is as it was.

    vLLM, SGLang and Ray name their workers so, which are processes of their own.
    """
    return "" if not called or "python" in Path(called[0]).name else " ".join(called).strip()


def _program(called: list[str]) -> Program:
    """Return what an interpreter was asked to run, by its command line."""
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
