"""The page of many jobs: what each address answers, for browsers that may use it.

No path from a client reaches the file system. A job, a capture and a result are looked up by name
among those that the last reading found.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import getpass
import gzip
import json
import shlex
import signal
import time
import urllib.parse
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dynprof.errors import CaptureError, NotLoggedError, reason
from dynprof.fleet.access import HEADERS, Access, Guard
from dynprof.fleet.commands import as_options, end_commands, run_logged
from dynprof.fleet.config_form import differing, form
from dynprof.fleet.jobs import Fleet
from dynprof.fleet.listening import SHUTDOWN_S, Server
from dynprof.fleet.live_log import POLL_S, LiveLogs
from dynprof.fleet.page_data import SPANS_S, elsewhere, history, record_of_slow_step
from dynprof.fleet.page_results import Results
from dynprof.fleet.snapshots import EVERY_S, Snapshots, as_body
from dynprof.journal.journal import printable
from dynprof.runtime.destination import is_url
from dynprof.runtime.layout import SLOW_STEPS_DIR
from dynprof.runtime.safe_open import open_inside
from dynprof.version import __version__

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.requests import Request

    from dynprof.fleet.config_form import Setting
    from dynprof.fleet.jobs import Capture, Job
    from dynprof.fleet.page_data import Data
    from dynprof.fleet.page_results import Key

FILES = Path(__file__).parent / "page"
"""The files of the page; the chart library is the report's."""
BUNDLED = Path(__file__).parents[1] / "analysis" / "report" / "bundled"
PAGES = {"/": "index.html", "/job": "job.html", "/login": "login.html"}
KINDS = {
    ".css": "text/css",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
)
"""A report has scripts of its own. The sandbox gives it an origin of its own, so that a hostile
trace cannot act as this page, even if it found a way into a report."""
SANDBOXED = {**HEADERS, "Content-Security-Policy": REPORT_POLICY}
del SANDBOXED["Cross-Origin-Opener-Policy"]
MAX_STREAMS = 256
"""Browsers that watch at once; each watches a job and its log."""
MAX_BODY_BYTES = 64 << 10
"""Bytes of a request; a form with all settings has some thousand."""
AT_ONCE = 4
"""Traces in stores that are sent at once; a store that does not answer delays nothing else."""
LOOK_S, ALIVE_S = 0.5, 15.0
"""Seconds between two looks for a new reading, and between two signs of life to a browser."""
COMMAND_S = 60.0
"""Seconds that ``arm`` and ``cancel`` may take."""
CHUNK_BYTES = 1 << 20


def application(
    paths: Sequence[Path],
    access: Access,
    *,
    settings: Sequence[Setting] = (),
    every_s: float = EVERY_S,
) -> Guard:
    """Return the page of the jobs below some directories.

    Args:
        paths: The directories.
        access: Who may use it.
        settings: Those of the form that arms a job; without any it only reads.
        every_s: Seconds between two readings.
    """
    snapshots = Snapshots(Fleet(paths), every_s)
    page = _Page(snapshots, access, settings)
    errors: dict[Any, Callable[[Request, Any], Response]] = {
        HTTPException: _refused,
        Exception: _failed,
    }
    app = Starlette(routes=page.routes(), lifespan=page.life, exception_handlers=errors)
    return Guard(app, access)


def serve(
    paths: Sequence[Path],
    listener: socket.socket,
    token: str,
    host: str,
    *,
    settings: Sequence[Setting] = (),
) -> None:
    """Answer until Ctrl-C, or another signal to end.

    Args:
        paths: The directories of jobs, or above them.
        listener: The socket that listens.
        token: What a client must show.
        host: The address that the user gave.
        settings: Those of the form that arms a job; without any it only reads.
    """
    access = Access(host, listener.getsockname()[1], token)
    config = uvicorn.Config(
        application(paths, access, settings=settings),
        access_log=False,
        date_header=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    server = _PageServer(config)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, server.handle_exit)
    server.run(sockets=[listener])


class _PageServer(Server):
    """Ends the commands that run for requests, too."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End open requests, then the commands that run for them."""
        await super().shutdown(sockets)
        end_commands()


class _Page:
    """Answers requests that have passed :class:`Guard`."""

    def __init__(self, snapshots: Snapshots, access: Access, settings: Sequence[Setting]) -> None:
        self._snapshots, self._access, self._settings = snapshots, access, settings
        self._logs, self._results, self._streams = LiveLogs(), Results(), 0
        self._stores = anyio.CapacityLimiter(AT_ONCE)
        found = [path for path in (*FILES.iterdir(), *BUNDLED.iterdir()) if path.suffix in KINDS]
        self._files = {path.name: (path.read_bytes(), KINDS[path.suffix]) for path in found}

    @contextlib.asynccontextmanager
    async def life(self, _: Starlette) -> AsyncIterator[None]:
        """Read the jobs until the server ends; then remove all results."""
        self._snapshots.start()
        try:
            yield
        finally:
            self._snapshots.end()
            self._results.close()

    def routes(self) -> list[Route]:
        """Return what is answered."""
        reading = [
            *(Route(path, self.page) for path in PAGES),
            Route("/page/{name}", self.file),
            Route("/api/about", self.about),
            Route("/api/events", self.events),
            Route("/api/fleet", self.fleet),
            Route("/api/job", self.job),
            Route("/api/history", self.history),
            Route("/api/log", self.log),
            Route("/api/trace", self.trace),
            Route("/api/results", self.make_result, methods=["POST"]),
            Route("/results/{identity}", self.result),
            Route("/slow-step", self.slow_step),
            Route("/login", self.login, methods=["POST"]),
        ]
        changing = [
            Route("/api/form", self.form),
            Route("/api/arm", self.arm, methods=["POST"]),
            Route("/api/cancel", self.cancel, methods=["POST"]),
        ]
        return [*reading, *(changing if self._settings else [])]

    def page(self, request: Request) -> Response:
        """Return a page, which asks for its content itself."""
        return self._file(PAGES[request.url.path])

    def file(self, request: Request) -> Response:
        """Return a script, a style sheet or a picture."""
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        if name not in self._files:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        content, kind = self._files[name]
        return Response(content, media_type=kind)

    def about(self, _: Request) -> Response:
        """Return what the pages need to know of this server."""
        return JSONResponse(
            {
                "version": __version__,
                "allows_arm": bool(self._settings),
                "csrf": self._access.csrf,
                "user": getpass.getuser(),
            }
        )

    async def login(self, request: Request) -> Response:
        """Give a cookie to a browser that shows the token."""
        shown = (await _content(request)).get("token")
        if not isinstance(shown, str) or not self._access.is_token(shown.strip()):
            return _error(HTTPStatus.UNAUTHORIZED, "this is not the token")
        answer = JSONResponse({})
        name, value = self._access.cookie, self._access.session
        answer.set_cookie(name, value, httponly=True, samesite="strict")
        return answer

    def fleet(self, request: Request) -> Response:
        """Return all jobs."""
        return _json(request, self._snapshots.newest().listed)

    def job(self, request: Request) -> Response:
        """Return one job."""
        body = self._snapshots.full(request.query_params.get("job", ""))
        return _no_job() if body is None else _json(request, body)

    def history(self, request: Request) -> Response:
        """Return the pace of a rank over a time."""
        asked = request.query_params
        place, span = asked.get("place", "0"), asked.get("span", "hour")
        if (job := self._job(asked.get("job"))) is None:
            return _no_job()
        if span not in SPANS_S or not (place.isascii() and place.isdecimal()):
            return _error(HTTPStatus.BAD_REQUEST, "there is no such span or place")
        return _json(request, as_body(history(job, int(place[:9]), span)))

    async def events(self, _: Request) -> Response:
        """Tell a browser the number of each new reading."""
        return self._stream(self._readings())

    async def _readings(self) -> AsyncIterator[bytes]:
        told, silent_s = 0, 0.0
        while True:
            now = await run_in_threadpool(self._snapshots.newest)
            if now.number != told:
                told, silent_s = now.number, 0.0
                yield _event(now.number, {"number": now.number})
            elif silent_s >= ALIVE_S:
                silent_s = 0.0
                yield b":\n\n"
            await asyncio.sleep(LOOK_S)
            silent_s += LOOK_S

    async def log(self, request: Request) -> Response:
        """Tell a browser the newest records of a job's log, and then each new one."""
        job = await run_in_threadpool(self._job, request.query_params.get("job"))
        if job is None:
            return _no_job()
        seen = request.headers.get("last-event-id", "")
        return self._stream(self._records(job.directory, seen))

    async def _records(self, directory: Path, seen: str) -> AsyncIterator[bytes]:
        log, silent_s = self._logs.of(directory), 0.0
        after = log.number_of(seen)
        while True:
            is_all = after == 0
            records = await run_in_threadpool(log.after, after)
            if records:
                after, silent_s = records[-1][0], 0.0
                texts = [text for _, text in records]
                yield _event(log.id_of(after), {"records": texts, "is_all": is_all})
            elif silent_s >= ALIVE_S:
                silent_s = 0.0
                yield b":\n\n"
            await asyncio.sleep(POLL_S)
            silent_s += POLL_S

    def _stream(self, content: AsyncIterator[bytes]) -> Response:
        if self._streams >= MAX_STREAMS:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "too many browsers watch; close some")
        return StreamingResponse(self._counted(content), media_type="text/event-stream")

    async def _counted(self, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self._streams += 1
        try:
            async for piece in content:
                yield piece
        finally:
            self._streams -= 1

    async def trace(self, request: Request) -> Response:
        """Return the trace of a capture's lowest rank, as a file to keep."""
        asked = request.query_params
        job = await run_in_threadpool(self._job, asked.get("job"))
        if job is None:
            return _no_job()
        place = asked.get("capture", "")
        limiter = self._stores if is_url(place) else None
        apart = functools.partial(anyio.to_thread.run_sync, limiter=limiter, abandon_on_cancel=True)
        try:
            name, file = await apart(_trace_of, job, place)
        except (CaptureError, OSError) as error:
            text = f"the trace cannot be read: {reason(error)}"
            return _error(HTTPStatus.NOT_FOUND, text)

        async def pieces() -> AsyncIterator[bytes]:
            with file:
                while piece := await apart(file.read, CHUNK_BYTES):
                    yield piece

        disposition = f"attachment; filename*=utf-8''{urllib.parse.quote(name)}"
        headers = {"Content-Disposition": disposition, "Content-Security-Policy": "sandbox"}
        return StreamingResponse(pieces(), headers=headers, media_type="application/octet-stream")

    async def make_result(self, request: Request) -> Response:
        """Make a report, a trend or a comparison; answer when it is ready."""
        asked = await _content(request)
        job = await run_in_threadpool(self._job, asked.get("job"))
        if job is None:
            return _no_job()
        wanted = _wanted(asked, job)
        if wanted is None:
            return _error(HTTPStatus.BAD_REQUEST, "there is no such capture or result")
        result = await self._results.make(*wanted)
        if result is None:
            text = "too many reports are being made; try again in a minute"
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, text)
        capture = _capture(job, asked.get("capture"))
        if asked.get("kind") == "report" and capture and result.page:
            self._snapshots.verdicts.note(capture, result.page)
        return JSONResponse(
            {
                "exit_code": result.code,
                "output": result.output,
                "messages": result.messages,
                "page": f"/results/{result.id}" if result.page else None,
            }
        )

    def result(self, request: Request) -> Response:
        """Return a page that a command has made, in a sandbox."""
        page = self._results.page(request.path_params["identity"])
        if page is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return FileResponse(page, media_type=KINDS[".html"], headers=SANDBOXED)

    def slow_step(self, request: Request) -> Response:
        """Return the record of a job's newest slow step, in a sandbox."""
        job = self._job(request.query_params.get("job"))
        if job is None or not (record := record_of_slow_step(job)):
            return _no_job()
        try:
            with open_inside(job.directory / SLOW_STEPS_DIR / record) as file:
                return Response(file.read(), media_type=KINDS[".html"], headers=SANDBOXED)
        except OSError as error:
            return _error(HTTPStatus.NOT_FOUND, f"the record cannot be read: {reason(error)}")

    def form(self, request: Request) -> Response:
        """Return the fields of the form that arms a job."""
        job = self._job(request.query_params.get("job"))
        return _no_job() if job is None else JSONResponse(form(job.directory, self._settings))

    async def arm(self, request: Request) -> Response:
        """Run ``dynprof arm`` with the settings of the form that the config does not have."""
        asked = await _content(request)
        settings = asked.get("settings", {})
        plain = isinstance(settings, dict) and all(
            isinstance(value, str | int | float) and str(value).isprintable()
            for value in settings.values()
        )
        job = await run_in_threadpool(self._job, asked.get("job"))
        if plain and job is not None:
            settings = await run_in_threadpool(differing, job.directory, self._settings, settings)
        try:
            options = as_options(settings) if plain else None
        except ValueError as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        if options is None:
            return _error(
                HTTPStatus.BAD_REQUEST, "settings are printable texts, numbers or booleans"
            )
        return await self._change(request, asked, "arm", options)

    async def cancel(self, request: Request) -> Response:
        """Run ``dynprof cancel``."""
        return await self._change(request, await _content(request), "cancel", [])

    async def _change(
        self, request: Request, asked: Data, command: str, options: list[str]
    ) -> Response:
        job = await run_in_threadpool(self._job, asked.get("job"))
        if job is None:
            return _no_job()
        address = request.client.host if request.client else "an unknown address"
        line, by = [command, *options], f"asked from {address} through the page of user"
        try:
            answer = await run_in_threadpool(
                run_logged, job.directory, "page", line, by, timeout_s=COMMAND_S
            )
        except NotLoggedError as error:
            return _error(HTTPStatus.CONFLICT, str(error))
        told = {"output": answer.output, "messages": answer.messages}
        shown = printable(shlex.join(["dynprof", command, str(job.directory), *options]))
        return JSONResponse({"command": shown, "exit_code": answer.code, **told})

    def _job(self, name: object) -> Job | None:
        return self._snapshots.newest().jobs.get(name) if isinstance(name, str) else None


def _capture(job: Job, name: object) -> Capture | None:
    """Return the capture of a name among those of a job on this machine."""
    return next((one for one in job.captures if one.folder.name == name), None)


def _place_of(job: Job, name: object) -> Key | None:
    """Return the folder or URL of a job's capture, and its state; None if it has no such capture.

    Args:
        job: The job.
        name: The name of a folder here, or a URL.
    """
    if capture := _capture(job, name):
        return str(capture.folder), capture.outcome, str(capture.saved)
    return (str(name),) if name in elsewhere(job) else None


def _trace_of(job: Job, name: str) -> tuple[str, IO[bytes]]:
    """Return the name and the content of the trace of a capture's lowest rank.

    Raises:
        CaptureError: There is none.
        OSError: It cannot be read.
    """
    if capture := _capture(job, name):
        trace = capture.manifest.trace or ""
        if not trace or trace != Path(trace).name or trace.startswith("."):
            raise CaptureError("the capture has none")
        return trace, open_inside(capture.folder / trace)
    if name not in elsewhere(job):
        raise CaptureError("there is no such capture; it may have been removed")
    from dynprof.analysis.runs.one_trace import traces_in
    from dynprof.analysis.runs.remote_files import located

    remote = min(traces_in(located(name)), key=lambda path: (len(path.name), path.name))
    return remote.name, remote.open("rb")


def _wanted(asked: Data, job: Job) -> tuple[Key, list[str], str] | None:
    """Return what a result is about, the command that makes it, and its page; None for no kind."""
    kind = asked.get("kind")
    if kind == "trend":
        newest = job.captures[0].folder.name if job.captures else ""
        key = ("trend", str(job.directory), newest, str(len(job.captures)))
        return key, ["trend", "--", str(job.directory)], "trend.html"
    if kind == "stacks":
        return (
            ("stacks", str(job.directory), str(time.time())),
            ["dump", "--", str(job.directory)],
            "",
        )
    place, before = (_place_of(job, asked.get(which)) for which in ("capture", "before"))
    if kind == "report" and place:
        return ("report", *place), ["report", "--", place[0]], "report.html"
    if kind == "diff" and place and before:
        return ("diff", before[0], place[0]), ["diff", "--", before[0], place[0]], ""
    return None


async def _content(request: Request) -> Data:
    """Return the JSON object of a request.

    Raises:
        HTTPException: There is none, or it is too large.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the request has no JSON object")
    return found


def _json(request: Request, body: bytes) -> Response:
    """Return an answer with compressed JSON; a client that does not take this gets it as text."""
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(body), media_type="application/json")
    headers = {"Content-Encoding": "gzip"}
    return Response(body, headers=headers, media_type="application/json")


def _event(number: int | str, content: Data) -> bytes:
    return f"id: {number}\ndata: {json.dumps(content)}\n\n".encode()


def _error(status: HTTPStatus, text: str) -> Response:
    return JSONResponse({"error": text}, status)


def _refused(_: Request, error: HTTPException) -> Response:
    """Return the answer to a request that is refused or leads nowhere."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def _failed(_: Request, __: Exception) -> Response:
    text = "the server failed at this request; its terminal says why"
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, text)


def _no_job() -> Response:
    return _error(HTTPStatus.NOT_FOUND, "there is no such job or capture; it may have been removed")
