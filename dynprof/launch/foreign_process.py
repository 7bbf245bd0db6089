"""What is known of another process before attaching: can it be reached, which Python, and where."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dynprof.errors import LaunchError
from dynprof.extras import require
from dynprof.runtime.stacks import why_ptrace_forbidden

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ \d+ +(/\S.*)")
_DELETED = re.compile(r" \(deleted\)$")
PYTHON = (
    "Py_AddPendingCall",
    "PyRun_SimpleString",
    "PyGILState_Ensure",
    "PyGILState_Release",
)
LIBC = ("mmap", "mprotect")
THREADS = ("pthread_create", "pthread_detach")


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


@dataclass(frozen=True)
class _Mapped:
    """A file that is mapped into the memory of a process.

    Attributes:
        start: Address of its first byte.
        content: Path to read it from.
        is_removed: Whether the file was deleted; its path may now name another file.
    """

    start: int
    content: Path
    is_removed: bool


def python_version(pid: int) -> tuple[int, int]:
    """Return the Python version of a process, such as ``(3, 11)``, from its mapped files.

    Raises:
        LaunchError: It does not run Python.
        OSError: It cannot be inspected, or has ended.
    """
    for path in _mapped_files(pid):
        if found := re.match(r"(?:lib)?python3\.(\d+)|.*\.cpython-3(\d+)", Path(path).name):
            return 3, int(found[1] or found[2])
    raise LaunchError(f"process {pid} cannot be reached: it runs no Python")


def python_functions(pid: int) -> dict[str, int]:
    """Return the addresses of the functions in :data:`PYTHON` and :data:`LIBC` in a process.

    Those in :data:`THREADS` are included if the C library is glibc.

    Raises:
        LaunchError: Its Python was built without symbol names, it has no C library file, or the
            files were replaced and cannot be read.
        OSError: It cannot be inspected, or has ended.
    """
    files = _mapped_files(pid)
    python = [path for path in files if re.match(r"(lib)?python\d", Path(path).name)]
    found = _addresses(pid, files, [*python, str(_program(pid))], PYTHON)
    if not found:
        text = "its Python was built without symbol names"
        raise LaunchError(f"process {pid} cannot be reached: {text}")
    libc = [path for path in files if re.match(r"libc\.so|libc-2|ld-musl", Path(path).name)]
    of_libc = _addresses(pid, files, libc, LIBC)
    if not of_libc:
        raise LaunchError(f"process {pid} cannot be reached: it has no C library file")
    glibc = [path for path in files if re.match(r"lib(c|pthread)(\.so\.6|-2)", Path(path).name)]
    return {**found, **of_libc, **_addresses(pid, files, glibc, THREADS)}


def _program(pid: int) -> Path:
    return Path(_DELETED.sub("", str(Path(f"/proc/{pid}/exe").readlink())))


def _mapped_files(pid: int) -> dict[str, _Mapped]:
    """Return the mapped files of a process, by their paths."""
    found: dict[str, _Mapped] = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if (named := _MAPPED.fullmatch(line)) and int(named[3], 16) == 0:
            start, end, path = int(named[1], 16), int(named[2], 16), _DELETED.sub("", named[4])
            is_removed = path != named[4]
            place = f"map_files/{start:x}-{end:x}" if is_removed else f"root{path}"
            found.setdefault(path, _Mapped(start, Path(f"/proc/{pid}/{place}"), is_removed))
    return found


def _addresses(
    pid: int, mapped: dict[str, _Mapped], paths: Iterable[str], names: tuple[str, ...]
) -> dict[str, int]:
    """Return the addresses of symbols, from the first file that has them all."""
    require("attach", "reaching a process")
    from elftools.elf.elffile import ELFFile

    for path in paths:
        if path not in mapped:
            continue
        with _open(pid, path, mapped[path]) as file:
            elf = ELFFile(file)
            base = 0 if elf.header.e_type == "ET_EXEC" else mapped[path].start
            table: Any = elf.get_section_by_name(".gnu.hash") or elf.get_section_by_name(".hash")
            symbols = {name: table.get_symbol(name) for name in names} if table else {}
            found = {name: base + known["st_value"] for name, known in symbols.items() if known}
            if len(found) == len(names):
                return found
    return {}


def _open(pid: int, path: str, file: _Mapped) -> BinaryIO:
    """Open a mapped file; its path may name another file now."""
    try:
        return file.content.open("rb")
    except PermissionError:
        if not file.is_removed:
            raise
    text = f"its {path} was replaced or removed since it started"
    raise LaunchError(f"process {pid} cannot be reached: {text}, and only root can still read it")
