"""The uncompressed bytes of a trace, up to where a truncated file ends."""

from __future__ import annotations

import contextlib
import os
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from dynprof.errors import CaptureError, reason
from dynprof.runtime.safe_open import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 16
"""Bytes that are read and unpacked at a time."""
_GZIP = 31
"""zlib's ``wbits`` for a gzip header and trailer."""
MAX_RATIO = 200
"""Unpacked to packed bytes, at most. Profilers' traces have 10 to 25; spaces can have 1,000."""
NEVER_REFUSED = 64 << 20
"""Unpacked bytes that are never refused: a small trace of one repeated event compresses better."""


class Truncated(Exception):  # noqa: N818 - a property of a file
    """The compressed file ends too early, or is damaged; all bytes before were returned.

    Args:
        packed: The number of compressed bytes before that.
        why: What is wrong there.
    """

    def __init__(self, packed: int, why: str) -> None:
        super().__init__(f"the compressed file {why} after {packed:,} bytes")


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Readable]:
    """Open a trace for reading its uncompressed bytes.

    Raises:
        CaptureError: The file cannot be read.
    """
    try:
        file = open_regular(path)
    except OSError as error:
        raise CaptureError(f"{path} cannot be read: {reason(error)}") from error
    with file:
        packed = file.read(2) == _MAGIC
        file.seek(0)
        yield Inflated(file, path) if packed else file


class Inflated:
    """The content of a gzip file, which may have several members.

    Python's own reader does not return what it decompressed of a truncated or damaged file.

    Args:
        file: The compressed file.
        path: Its name, for messages.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._most = max(NEVER_REFUSED, MAX_RATIO * os.fstat(file.fileno()).st_size)
        self._given = 0
        self._ready = b""
        self._make, self._errors = _inflater()
        self._inflate = self._make()
        self._taken = self._member = 0
        self._damage: Truncated | None = None

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end.

        Raises:
            Truncated: The file ends too early, or is damaged.
            CaptureError: It unpacks to far more than a trace does.
        """
        while not self._ready and self._more():
            pass
        part, self._ready = self._ready[:size], self._ready[size:]
        return part

    def _more(self) -> bool:
        """Decompress some more; False at the end."""
        if self._damage:
            raise self._damage
        ended = self._inflate.eof
        packed = self._inflate.unused_data if ended else b""
        if len(packed) < len(_MAGIC):
            packed += self._file.read(_CHUNK)
        if ended:
            if not packed.startswith(_MAGIC):
                self._check_padding(packed)
                return False
            self._inflate, self._member = self._make(), self._taken
        elif not packed:
            raise Truncated(self._taken, "is truncated")
        try:
            self._ready = self._inflate.decompress(packed)
            self._taken += len(packed) - len(self._inflate.unused_data)
        except self._errors:
            self._ready = self._before_damage(packed)
        self._given += len(self._ready)
        if self._given > self._most:
            size = os.fstat(self._file.fileno()).st_size
            raise CaptureError(
                f"{self._path} is not read: {size / 1e6:,.1f} MB unpack to more than "
                f"{self._most / 1e6:,.0f} MB; no trace unpacks to {MAX_RATIO} times its size"
            )
        return True

    def _check_padding(self, packed: bytes) -> None:
        """Raise :class:`Truncated` if other data than padding follows the last member."""
        if packed.strip(b"\0"):
            raise Truncated(self._taken, "has other data")

    def _before_damage(self, packed: bytes) -> bytes:
        """Return what damaged bytes hold before the damage; the next call raises."""
        inflate, found = self._make(), list[bytes]()
        self._file.seek(self._member)
        for begin in range(self._member, self._taken, _CHUNK):
            inflate.decompress(self._file.read(min(_CHUNK, self._taken - begin)))
        try:
            for byte in packed:
                found.append(inflate.decompress(bytes([byte])))
                self._taken += 1
        except self._errors as error:
            suspect = "; values may be wrong" if self._given or any(found) else ""
            self._damage = Truncated(self._taken, f"is damaged ({error}{suspect})")
        return b"".join(found)


def _inflater() -> tuple[Any, Any]:
    """Return a constructor of isal's decompressor, or Python's own if isal is not available."""
    try:
        from isal import isal_zlib
    except ImportError:
        return (lambda: zlib.decompressobj(wbits=_GZIP)), zlib.error
    return (lambda: isal_zlib.decompressobj(wbits=_GZIP)), isal_zlib.error
