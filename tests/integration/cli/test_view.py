"""``dynprof view``: the page and the trace, for this machine only, in a real browser."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import webbrowser
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.reading.spans import not_drawn_by_perfetto
from dynprof.analysis.reading.trace import load_trace
from dynprof.cli import view
from dynprof.cli.view import MAX_UNVERIFIED, Server, address_of, open_privately, serve
from tests.integration.perfetto import CHROMIUM, asked, needs_browser, opened, show
from tests.integration.running import wait_for
from tests.pace import patience_s
from tests.processes import DYNPROF, Process, run, start
from tests.real_traces import REAL
from tests.users import ALICE, COMMAND, MALLORY, ROOT, as_root, others_run_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPMessage

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
SHOWN = """() => {
  const time = (window.app ?? window.globals).trace?.timeline.visibleWindow;
  return time && time.duration < 5e6 && `${time.start.integral} ${time.duration}`;
}"""
TEXT = json.dumps({"traceEvents": [EVENT]})
DROPPED = "SELECT value FROM stats WHERE name = 'slice_drop_overlapping_complete_event'"


def write_crossing(path: Path) -> Path:
    """Write spans of which Perfetto leaves out two: each ends after one that it began in."""
    spans = [
        ("inside", 1, 0, 100), ("it", 1, 10, 20), ("crosses", 1, 50, 60), ("after", 1, 200, 10),
        ("negative", -7, 205, 10), ("other", 2, 205, 10),
    ]  # fmt: skip
    events = [{**EVENT, "name": n, "tid": tid, "ts": ts, "dur": dur} for n, tid, ts, dur in spans]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[Process]:
    """Serve the newest of two traces on a free port."""
    for name in ("older", "newer"):
        content = {"traceEvents": [EVENT], "who": name}
        (tmp_path / f"{name}.trace.json").write_text(json.dumps(content))
    python, *code = DYNPROF
    with start([python, "-u", *code, "view", tmp_path, "--no-browser"]) as process:
        yield process


def address(viewer: Process) -> str:
    """Return the address that it prints."""
    assert viewer.stdout is not None
    lines = [viewer.stdout.readline() for _ in range(2)]
    assert lines[0].strip().endswith("newer.trace.json")
    return lines[1].strip()


def get(url: str) -> Any:
    """Return the body of a response."""
    with urllib.request.urlopen(url, timeout=patience_s()) as answer:  # noqa: S310 - of this machine
        return answer.read()


def test_the_page_and_the_trace_are_served(viewer: Process) -> None:
    """The command serves them on loopback, without other files, until Ctrl-C."""
    root, _, query = address(viewer).partition("/#!/?url=")
    assert root.startswith("http://127.0.0.1:")
    assert get(root + "/") == get(root + "/index.html")
    assert b"<html" in get(root + "/index.html").lower()
    assert json.loads(get(urllib.parse.unquote(query)))["who"] == "newer"
    for path in ("/../viztracer.py", "/%2e%2e/viztracer.py", "/trace.py", "/trace/", "/trace"):
        with pytest.raises(urllib.error.HTTPError):
            get(root + path)
    viewer.send_signal(signal.SIGINT)
    assert viewer.wait() == 0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    """Serve one trace from this process."""
    trace = tmp_path / "a.trace.json"
    trace.write_text(TEXT)
    with serve(trace, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def answer(
    server: Server, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, HTTPMessage, bytes]:
    """Return code, headers and body of a response."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=patience_s())
    with contextlib.closing(connection):
        connection.putrequest(method, path, skip_host=True)
        if host != "":
            connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
        connection.endheaders()
        found = connection.getresponse()
        return found.status, found.headers, found.read()


def test_without_the_token_nothing_is_served(served: Server, tmp_path: Path) -> None:
    """Neither trace nor page: every user of the machine can connect to the port."""
    assert answer(served, f"/{served.token}/{served.trace}")[2].decode() == TEXT
    wrong = "x" * len(served.token)
    for path in (
        "/",
        "/index.html",
        f"/{served.trace}",
        f"/{wrong}/{served.trace}",
        "//",
        "*",
        "/[",
    ):
        assert answer(served, path)[0] == 404, path
    with serve(tmp_path / "a.trace.json", 0) as other:
        assert other.token != served.token


def test_only_requests_addressed_to_this_machine_are_answered(served: Server) -> None:
    """A site of another name may lead here by DNS rebinding, and know the token."""
    path, port = f"/{served.token}/{served.trace}", served.server_port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert answer(served, path, host)[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil:{port}", ""):
        assert answer(served, path, host)[0] == 421, host


def test_responses_do_not_name_the_server(served: Server) -> None:
    """Neither its name nor Python's version, also not in errors."""
    for path in (f"/{served.token}/", "/", f"/{served.token}/{served.trace}"):
        for method in ("GET", "HEAD", "PUT"):
            _, headers, body = answer(served, path, method=method)
            assert headers["Server"] is None
            assert b"Python" not in body[:1000]
            assert (headers["Referrer-Policy"], headers["Cache-Control"]) == (
                "no-referrer", "no-store",
            )  # fmt: skip


def connected(server: Server, text: bytes) -> socket.socket:
    """Return a connection on which part of a request was sent."""
    connection = socket.create_connection(("127.0.0.1", server.server_port), patience_s())
    connection.sendall(text)
    return connection


def ends(connection: socket.socket) -> bytes:
    """Return the bytes that arrive until the server closes a connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(1 << 16):
            found += piece
    return found


def test_connections_without_the_token_block_no_reader(served: Server) -> None:
    """The oldest connections end; those with the token stay."""
    path = f"/{served.token}/{served.trace}"
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(connected(served, b"GET / HTTP/1.1\r\n"))
            for _ in range(5 * MAX_UNVERIFIED)
        ]
        assert [ends(one) for one in opened[: 4 * MAX_UNVERIFIED]] == [b""] * 4 * MAX_UNVERIFIED
        wait_for("16", lambda: threading.active_count() <= before + MAX_UNVERIFIED or None)
        assert answer(served, path)[2].decode() == TEXT


def test_an_oversized_request_is_refused(served: Server) -> None:
    """The number of lines does not matter; the rest of the request is not read."""
    line = b"X-A: " + b"a" * 1000 + b"\r\n"
    with connected(served, b"GET / HTTP/1.1\r\n" + line * 17) as connection:
        assert ends(connection).startswith(b"HTTP/1.0 431 ")


def test_a_request_that_does_not_end_times_out(
    served: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout starts with the connection and is not extended by single bytes."""
    monkeypatch.setattr(view, "HEAD_S", 0.3)
    with connected(served, b"GET / HTTP/1.1\r\n") as connection:
        connection.settimeout(0.05)
        until_s = time.monotonic() + patience_s()
        while time.monotonic() < until_s:
            try:
                connection.sendall(b"X")
                assert connection.recv(1) == b""
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the connection stays open")


def test_head_returns_the_size(served: Server) -> None:
    """HEAD gives the sizes of the trace and of the page."""
    for path in (f"/{served.token}/{served.trace}", f"/{served.token}/index.html"):
        code, headers, body = answer(served, path, method="HEAD")
        assert (code, body) == (200, b"")
        assert int(headers["Content-Length"]) == len(answer(served, path)[2])


def test_a_replaced_trace_is_not_served(served: Server, tmp_path: Path) -> None:
    """The trace was opened once, before the first request."""
    (tmp_path / "secret").write_text("S3CRET")
    (tmp_path / "a.trace.json").unlink()
    (tmp_path / "a.trace.json").symlink_to("secret")
    assert answer(served, f"/{served.token}/{served.trace}")[2].decode() == TEXT


def test_a_trace_that_shrinks_ends_the_answer(served: Server, tmp_path: Path) -> None:
    """The browser sees that bytes are missing; the next response has the new size."""
    trace, size = tmp_path / "a.trace.json", 64 << 20
    os.truncate(trace, size)  # larger than the connection's buffers
    connection = HTTPConnection("127.0.0.1", served.server_port, timeout=patience_s())
    with contextlib.closing(connection):
        connection.request("GET", f"/{served.token}/{served.trace}")
        found = connection.getresponse()
        os.truncate(trace, len(TEXT))
        with pytest.raises(IncompleteRead) as error:
            found.read()
    assert error.value.partial.startswith(TEXT.encode())
    assert len(error.value.partial) < size
    assert answer(served, f"/{served.token}/{served.trace}")[2].decode() == TEXT


def test_several_requests_at_a_time_read_the_whole_trace(served: Server, tmp_path: Path) -> None:
    """Each request reads from its own position in one open file."""
    whole = os.urandom(1 << 20) * 5
    (tmp_path / "a.trace.json").write_bytes(whole)
    path = f"/{served.token}/{served.trace}"
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: answer(served, path)[2], range(8)))
    assert all(one == whole for one in found)


@as_root
@others_run_python
def test_a_trace_of_a_user_who_does_not_own_its_folder_is_not_served(shared_tmp: Path) -> None:
    """The error names the owner. The folder owner's traces may be served by any user."""
    trace = shared_tmp / "a.trace.json"
    trace.write_text(TEXT)
    ALICE.own(shared_tmp)
    MALLORY.own(trace)
    done = ROOT.python(COMMAND, "view", trace, "--no-browser")
    assert done.returncode == 2
    assert f"belongs to uid {MALLORY.uid}" in done.stderr
    ALICE.own(trace)
    serve(trace, 0).server_close()


def test_view_without_a_capture_exits_with_2(tmp_path: Path) -> None:
    """The exit code is 2."""
    done = run([*DYNPROF, "view", tmp_path])
    assert (done.returncode, "holds no trace" in done.stderr) == (2, True)


def test_the_browser_gets_the_address_in_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user can read a command line: it names a file that only this user can read."""
    pages: list[str] = []
    monkeypatch.setattr(webbrowser, "open", pages.append)
    with open_privately("http://127.0.0.1:1/secret/#!/?url=a&b"):
        page = Path(urllib.parse.urlparse(pages[0]).path)
        assert "secret" not in pages[0]
        assert 'url=http://127.0.0.1:1/secret/#!/?url=a&amp;b"' in page.read_text()
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
    assert not page.parent.exists()


@needs_browser
def test_the_page_shows_the_requested_time(tmp_path: Path) -> None:
    """``--at`` counts from the first event, which need not begin at 0."""
    from playwright.sync_api import sync_playwright

    events = [{**EVENT, "ts": ts, "dur": 1000} for ts in (7_000_000, 7_020_000, 7_050_000)]
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    python, *code = DYNPROF
    command = [python, "-u", *code, "view", str(path), "--no-browser"]
    with start([*command, "--at", "20", "--for", "4"]) as process, sync_playwright() as playwright:
        assert process.stdout is not None
        url = [process.stdout.readline() for _ in range(2)][1].strip()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(url)
        shown = page.wait_for_function(SHOWN, timeout=patience_s() * 1000).json_value()
        browser.close()
    assert shown == "7020000000 4000000"


def test_what_perfetto_does_not_draw_is_counted(tmp_path: Path) -> None:
    """A span that crosses another one, also from a thread that Perfetto takes for the main one."""
    path = write_crossing(tmp_path / "a.trace.json")
    python, *code = DYNPROF
    with start([python, "-u", *code, "view", path, "--no-browser"]) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
    assert "import error, as it leaves out 2 events of 6: they cross others" in line


@needs_browser
def test_perfetto_leaves_out_that_many_and_reaches_no_other_host(tmp_path: Path) -> None:
    """Its statistics have the same number; the policy blocks what the page asks of others."""
    from playwright.sync_api import sync_playwright

    requests: list[tuple[str, str | None]] = []
    with (
        serve(write_crossing(tmp_path / "a.trace.json"), 0) as server,
        sync_playwright() as playwright,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        for event in ("requestfailed", "requestfinished"):
            page.on(event, lambda request: requests.append((request.url, request.failure)))
        show(page, address_of(server))
        rows = asked(page, DROPPED)
        browser.close()
        server.shutdown()
    assert rows == [["2"]]
    assert {failure for url, failure in requests if "127.0.0.1" not in url} == {"csp"}


@needs_browser
@pytest.mark.skipif(not REAL.exists(), reason="there is no folder of real GPU traces")
@pytest.mark.parametrize("name", ["a100_control", "alexnet", "mi250"])
def test_of_real_traces_perfetto_leaves_out_as_many(name: str) -> None:
    """A thread with a negative number, spans that cross on one thread, and neither."""
    path = REAL / f"{name}.json.gz"
    trace = load_trace(path)
    start, length, thread = (trace.spans[column] for column in ("start", "length", "thread"))
    count = not_drawn_by_perfetto(start, length, thread, trace.tables["thread"])
    with opened(path) as page:
        assert asked(page, DROPPED) == [[str(count)]]


@needs_browser
def test_a_browser_opens_the_trace(
    tmp_path: Path, viewer: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Perfetto's page reads the trace and shows it without another host."""
    pages: list[str] = []
    monkeypatch.setattr(webbrowser, "open", pages.append)
    with open_privately(address(viewer)):
        shows_the_trace(tmp_path, pages[0])


def shows_the_trace(tmp_path: Path, page: str) -> None:
    """Wait until a browser with the page shows the trace."""
    browser = start(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
         "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
         f"--user-data-dir={tmp_path / 'profile'}", page],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def opened() -> bool | None:
        ports = tmp_path / "profile" / "DevToolsActivePort"
        if not ports.exists() or not ports.read_text():
            return None
        try:
            tabs = json.loads(get(f"http://127.0.0.1:{ports.read_text().split()[0]}/json"))
        except OSError:
            return None
        return any("newer.trace.json" in tab["title"] and "#!/viewer" in tab["url"]
                   for tab in tabs) or None  # fmt: skip

    with browser:
        wait_for("the trace in the page", opened)
