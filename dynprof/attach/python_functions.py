"""Where the functions of Python lie in the memory of another process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAPPED = re.compile(r"([0-9a-f]+)-\S+ \S+ ([0-9a-f]+) \S+ \d+ +(/\S.*)")
_LATER = re.compile(r" \(deleted\)$")
PYTHON = (
    "Py_AddPendingCall",
    "PyRun_SimpleString",
    "PyGILState_Ensure",
    "PyGILState_Release",
)
LIBC = ("mmap", "mprotect")
THREADS = ("pthread_create", "pthread_detach")


def python_version(pid: int) -> tuple[int, int]:
    """Return which Python a process runs, as ``(3, 11)``, by the files in its memory.

    Raises:
        LaunchError: It runs none.
        OSError: It cannot be looked at, or has ended.
    """
    for path in _mapped_files(pid):
        if found := re.match(r"(?:lib)?python3\.(\d+)|.*\.cpython-3(\d+)", Path(path).name):
            return 3, int(found[1] or found[2])
    raise LaunchError(f"process {pid} cannot be reached: it runs no Python")


def python_functions(pid: int) -> dict[str, int]:
    """Return where functions of a process lie: those of :data:`PYTHON` and :data:`LIBC`.

    Those of :data:`THREADS` too, where it has them of glibc.

    Raises:
        LaunchError: Its Python was built without their names, or it has no C library of its own.
        OSError: It cannot be looked at, or has ended.
    """
    bases = _mapped_files(pid)
    python = [path for path in bases if re.match(r"(lib)?python\d", Path(path).name)]
    found = _addresses(pid, bases, [*python, str(_program(pid))], PYTHON)
    if not found:
        text = "its Python was built without names of functions"
        raise LaunchError(f"process {pid} cannot be reached: {text}")
    libc = [path for path in bases if re.match(r"libc\.so|libc-2|ld-musl", Path(path).name)]
    of_libc = _addresses(pid, bases, libc, LIBC)
    if not of_libc:
        raise LaunchError(f"process {pid} cannot be reached: it has no C library of its own")
    glibc = [path for path in bases if re.match(r"lib(c|pthread)(\.so\.6|-2)", Path(path).name)]
    return {**found, **of_libc, **_addresses(pid, bases, glibc, THREADS)}


def _program(pid: int) -> Path:
    return Path(f"/proc/{pid}/exe").readlink()


def _mapped_files(pid: int) -> dict[str, int]:
    """Return the files in its memory, and where the beginning of each lies."""
    found: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if named := _MAPPED.fullmatch(line):
            start, offset, path = int(named[1], 16), int(named[2], 16), named[3]
            if offset == 0:
                found.setdefault(_LATER.sub("", path), start)
    return found


def _addresses(
    pid: int, bases: dict[str, int], files: Iterable[str], names: tuple[str, ...]
) -> dict[str, int]:
    """Return where names lie, from the first file that has them all."""
    from elftools.elf.elffile import ELFFile

    for path in files:
        if path not in bases:
            continue
        with Path(f"/proc/{pid}/root{path}").open("rb") as file:
            elf = ELFFile(file)
            base = 0 if elf.header.e_type == "ET_EXEC" else bases[path]
            table: Any = elf.get_section_by_name(".gnu.hash") or elf.get_section_by_name(".hash")
            symbols = {name: table.get_symbol(name) for name in names} if table else {}
            found = {name: base + known["st_value"] for name, known in symbols.items() if known}
            if len(found) == len(names):
                return found
    return {}
