"""Answers Prometheus over HTTP: one path, with the numbers of the current state."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    import socket

    from starlette.requests import Request

    from dynprof.fleet.metrics import Collector

PATH = "/metrics"


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
