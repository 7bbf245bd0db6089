"""Where a server of dynprof listens, the token that its clients must show, and how it ends."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import stat
import time
from typing import TYPE_CHECKING

import uvicorn

from dynprof.errors import reason
from dynprof.runtime.safe_open import read_regular
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

LOOPBACK = "127.0.0.1"
MAX_TOKEN_BYTES = 4096
MIN_TOKEN = 32
"""Characters of a token; shorter ones can be guessed over the network."""
SHUTDOWN_S, LAST_S = 1, 3.0
"""Seconds that open requests get at the end, and threads after that: a store, or a file system of
another machine, may never answer them."""
_RANDOM = "write a random one, such as that of: openssl rand -hex 32"


def address(listen: str) -> tuple[str, int]:
    """Return host and port of ``9464``, ``127.0.0.1:9464`` or ``[::1]:9464``.

    Raises:
        ValueError: There is no port.
    """
    host, _, port = listen.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"--listen {listen} has no port; write a port, or HOST:PORT")
    return host.strip("[]") or LOOPBACK, int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def token_in(path: Path) -> str:
    """Return the token in a file.

    Raises:
        ValueError: Users outside its group may read the file, or the token is too short.
        OSError: It cannot be read.
    """
    if path.stat().st_mode & stat.S_IRWXO:
        raise ValueError(f"every user may open {path}; run chmod o= {path}")
    content = read_regular(path, MAX_TOKEN_BYTES, follow_symlinks=True)  # as Kubernetes mounts it
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        raise ValueError(f"the token in {path} has bytes that are not ASCII; {_RANDOM}") from None
    if len(token) < MIN_TOKEN:
        why = f"the token in {path} has fewer than {MIN_TOKEN} characters"
        raise ValueError(f"{why}; {_RANDOM}")
    return token


def listening(listen: str, token_file: Path | None) -> tuple[socket.socket, str]:
    """Return a socket that listens, and the token of its clients; empty without a file.

    Args:
        listen: Port, or host and port.
        token_file: The file with the token.

    Raises:
        ValueError: The message says what is wrong with the address, the token or its file.
    """
    host, port = address(listen)
    if not token_file and not is_loopback(host):
        text = f"other machines can reach {host}; add --token-file, or listen on {LOOPBACK}"
        raise ValueError(text)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        token = token_in(token_file) if token_file else ""
        return socket.create_server((host, port), family=family), token
    except OSError as error:
        raise ValueError(f"{error.filename or listen} cannot be used: {reason(error)}") from None


def url_of(listener: socket.socket) -> str:
    """Return the address of a server, for people."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Ends on a signal as it is meant to: soon, without an error, and with nothing left behind."""

    def handle_exit(self, sig: int, _: FrameType | None) -> None:
        """Begin to end; a second Ctrl-C does not wait for open requests."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it cancels open streams
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End open requests; then leave threads that do not end."""
        await super().shutdown(sockets)
        own_thread(_exit_late, "exit").start()


def _exit_late() -> None:
    time.sleep(LAST_S)
    os._exit(0)
