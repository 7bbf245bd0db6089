"""Answers Prometheus over HTTP: one path, with the metrics of the current state.

Without a token, a request must name this machine as its host, as for the page: another site could
have its name resolve to it. With one, a scrape may come by any name of the machine.
"""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING

import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Route

from dynprof.fleet.access import OTHER_NAME, Access
from dynprof.fleet.listening import SHUTDOWN_S, Server

if TYPE_CHECKING:
    import socket

    from starlette.requests import Request

    from dynprof.fleet.metrics import Collector

PATH = "/metrics"


def serve(collector: Collector, listener: socket.socket, token: str, host: str) -> None:
    """Answer until Ctrl-C.

    Args:
        collector: The metrics.
        listener: The socket that listens.
        token: What a client must show as a bearer token; empty if it need not.
        host: The address that the user gave.
    """
    config = uvicorn.Config(
        application(collector, Access(host, listener.getsockname()[1], token), token),
        access_log=False,
        date_header=False,
        lifespan="off",
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    Server(config).run(sockets=[listener])


def application(collector: Collector, access: Access, token: str) -> Starlette:
    """Return what answers at :data:`PATH`.

    Args:
        collector: The metrics.
        access: The names of this server.
        token: What a client must show; empty if it need not.
    """
    wanted = f"Bearer {token}".encode()

    def answer(request: Request) -> Response:
        shown = request.headers.get("authorization", "").encode()
        if token and not secrets.compare_digest(shown, wanted):
            return Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
        if not token and not access.is_here(request.headers.getlist("host")):
            return Response(OTHER_NAME, HTTPStatus.MISDIRECTED_REQUEST)
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(collector), headers={"Content-Type": kind})

    route = Route(PATH, answer, methods=["GET"])
    return Starlette(routes=[route], middleware=[Middleware(GZipMiddleware)])
