"""``dynprof view``: the page and the trace, for this machine alone, in a real browser."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.perfetto import CHROMIUM, needs_browser
from tests.integration.running import wait_for
from tests.pace import patience_s
from tests.processes import DYNPROF, Process, run, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}


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
    """Return what it prints."""
    assert viewer.stdout is not None
    lines = [viewer.stdout.readline() for _ in range(2)]
    assert lines[0].strip().endswith("newer.trace.json")
    return lines[1].strip()


def get(url: str) -> Any:
    """Return the body of an answer."""
    with urllib.request.urlopen(url, timeout=patience_s()) as answer:  # noqa: S310 - of this machine
        return answer.read()


def test_the_page_and_the_trace_are_served(viewer: Process) -> None:
    """On loopback, nothing beside them, until Ctrl-C."""
    root, _, query = address(viewer).partition("/#!/?url=")
    assert root.startswith("http://127.0.0.1:")
    assert b"<html" in get(root + "/index.html").lower()
    assert json.loads(get(urllib.parse.unquote(query)))["who"] == "newer"
    for path in ("/../viztracer.py", "/%2e%2e/viztracer.py", "/trace.py"):
        with pytest.raises(urllib.error.HTTPError):
            get(root + path)
    viewer.send_signal(signal.SIGINT)
    assert viewer.wait() == 0


def test_no_capture_is_said(tmp_path: Path) -> None:
    """With exit code 2."""
    done = run([*DYNPROF, "view", tmp_path])
    assert (done.returncode, "holds no trace" in done.stderr) == (2, True)


@needs_browser
def test_a_browser_opens_the_trace(tmp_path: Path, viewer: Process) -> None:
    """Perfetto's page reads the trace and shows it, with no other host to be reached."""
    page = address(viewer)
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
