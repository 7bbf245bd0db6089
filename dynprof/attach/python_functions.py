"""Where the functions of Python lie in the memory of another process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAPPED = re.compile(r"([0-9a-f]+)-\S+ \S+ ([0-9a-f]+) \S+ \d+ +(/\S.*)")
_LATER = re.compile(r" \(deleted\)$")
PYTHON = ("Py_AddPendingCall", "PyRun_SimpleString")
LIBC = ("mmap", "munmap")


@dataclass(frozen=True)
class PythonFunctions:
    """Addresses in a process, and which Python it is.

    Attributes:
        addresses: By name: ``Py_AddPendingCall``, ``PyRun_SimpleString``, ``mmap``, ``munmap``.
        version: Of Python, as ``(3, 11)``.
    """

    addresses: dict[str, int]
    version: tuple[int, int]


def python_functions(pid: int) -> PythonFunctions:
    """Return those of a process.

    Raises:
        LaunchError: It has no Python in it, or one whose functions have no names.
        OSError: It cannot be looked at, or has ended.
    """
    bases = _mapped_files(pid)
    python = [path for path in bases if re.match(r"(lib)?python\d", Path(path).name)]
    found = _addresses(pid, bases, [*python, str(_program(pid))], PYTHON)
    if len(found) < len(PYTHON):
        known = "its Python was built without names of functions" if python else "it runs no Python"
        raise LaunchError(f"process {pid} cannot be reached: {known}")
    libc = [
        path for path in bases if re.match(r"(libc\.so|libc-2|ld-musl)", path.rpartition("/")[2])
    ]
    found |= _addresses(pid, bases, libc, LIBC)
    if not set(LIBC) <= set(found):
        raise LaunchError(f"process {pid} cannot be reached: it has no C library of its own")
    return PythonFunctions(found, _version(bases))


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
            symbols: Any = elf.get_section_by_name(".dynsym")
            is_fixed = elf.header.e_type == "ET_EXEC"
            if symbols is None:
                continue
            found = {}
            for name in names:
                for symbol in symbols.get_symbol_by_name(name) or ():
                    if symbol["st_value"]:
                        found[name] = symbol["st_value"] + (0 if is_fixed else bases[path])
            if len(found) == len(names):
                return found
    return {}


def _version(bases: dict[str, int]) -> tuple[int, int]:
    """Return which Python it is, by the name of its program, library or modules."""
    for path in bases:
        if found := re.match(r"(?:lib)?python3\.(\d+)|.*\.cpython-3(\d+)", Path(path).name):
            return 3, int(found[1] or found[2])
    return 3, 0
