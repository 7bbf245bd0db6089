"""Answers Prometheus over HTTP: one path, with the numbers of the current state."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import stat
from typing import TYPE_CHECKING

import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Route

from dynprof.runtime.safe_open import read_regular

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

    from dynprof.fleet.metrics import Collector

PATH = "/metrics"
MAX_TOKEN_BYTES = 4096
LEAST_TOKEN = 16
"""Characters of a token; shorter ones can be guessed over the network."""


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
    token = content.decode("ascii", "replace").strip()
    if len(token) < LEAST_TOKEN:
        why = f"the token in {path} has fewer than {LEAST_TOKEN} characters"
        raise ValueError(f"{why}; write a random one, such as that of: openssl rand -hex 32")
    return token


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        OSError: The port is taken, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def serve(collector: Collector, listener: socket.socket, token: str = "") -> None:
    """Answer until Ctrl-C.

    Args:
        collector: The numbers.
        listener: The socket that listens.
        token: What a client must show as a bearer token; empty if it need not.
    """
    config = uvicorn.Config(
        _application(collector, token),
        access_log=False,
        date_header=False,
        lifespan="off",
        log_level="warning",
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[listener])


def _application(collector: Collector, token: str) -> Starlette:
    wanted = f"Bearer {token}".encode()

    def answer(request: Request) -> Response:
        shown = request.headers.get("authorization", "").encode()
        if token and not secrets.compare_digest(shown, wanted):
            return Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(collector), headers={"Content-Type": kind})

    route = Route(PATH, answer, methods=["GET"])
    return Starlette(routes=[route], middleware=[Middleware(GZipMiddleware)])
