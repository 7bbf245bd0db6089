"""Connections of this process that others have made: which there are, and whether they stand."""

from __future__ import annotations

import contextlib
import ctypes
import select
import socket
import sys
from pathlib import Path
from typing import NamedTuple

_DESCRIPTORS = Path("/proc/self/fd")
_ADDRESS_BYTES = 128
"""As long as any address of a socket."""


class Connection(NamedTuple):
    """A socket of somebody else in this process.

    Attributes:
        descriptor: Its file descriptor, which may be another's once it is closed.
        link: What tells it from all other sockets of the machine.
    """

    descriptor: int
    link: str

    @property
    def port(self) -> int:
        """Where its other end is; 0 where that is at no port."""
        # A socket of Python's for it would change how it blocks, after socket.setdefaulttimeout().
        address, size = ctypes.create_string_buffer(_ADDRESS_BYTES), ctypes.c_uint32(_ADDRESS_BYTES)
        if ctypes.CDLL(None).getpeername(self.descriptor, address, ctypes.byref(size)):
            return 0
        family = int.from_bytes(address.raw[:2], sys.byteorder)
        is_at_a_port = family in (socket.AF_INET, socket.AF_INET6)
        return int.from_bytes(address.raw[2:4], "big") if is_at_a_port else 0

    @property
    def is_closed(self) -> bool:
        """Whether its other end has closed it."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLRDHUP)
        return bool(poll.poll(0)) and _link_of(self.descriptor) == self.link


def connections() -> set[Connection]:
    """Return all sockets of this process; none where the system does not tell."""
    found = set[Connection]()
    with contextlib.suppress(OSError):
        for number in (int(path.name) for path in _DESCRIPTORS.iterdir()):
            if (link := _link_of(number)).startswith("socket:"):
                found.add(Connection(number, link))
    return found


def _link_of(descriptor: int) -> str:
    """Return what tells the open file of a descriptor from others; empty where it is closed."""
    with contextlib.suppress(OSError):
        return str((_DESCRIPTORS / str(descriptor)).readlink())
    return ""
