"""Finds the addresses of Python's functions in another process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dynprof.errors import LaunchError
from dynprof.extras import require

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
