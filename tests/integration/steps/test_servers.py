"""Servers whose requests end the steps on many threads; captures are compared with their counts."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.scripts import events, manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

SERVER = """
import asyncio, json, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
calls, over = [], threading.Event()

def infer():
    began = time.time_ns()
    torch.ones(64, 64) @ torch.ones(64, 64)
    calls.append((threading.get_native_id(), began, time.time_ns()))

def handle():
    infer()

def clients(call):
    def ask():
        while not over.is_set():
            call()
            time.sleep(0.002)
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    return threads

def operate():
    for _ in range(3):
        window(active=8)
        while dp.status().state == "waiting":
            time.sleep(0.001)
        idle()
    over.set()

def serve_and_operate(serve, steps):
    dp.shutdown()
    dp.init("prof_config", steps=steps)
    operator = threading.Thread(target=operate)
    operator.start()
    serve()
    operator.join()
    Path("calls.json").write_text(json.dumps(calls))
"""
"""A server with a model, its clients, an operator, and the number of calls."""
KINDS = {
    "a thread for each request": """
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        handle()
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_):
        pass
def serve():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    address = f"http://127.0.0.1:{server.server_port}/"
    threading.Thread(target=server.serve_forever).start()
    for thread in clients(lambda: opener.open(address).close()):
        thread.join()
    server.shutdown()
    server.server_close()
serve_and_operate(serve, ":handle")
""",
    "an event loop": """
async def answer():
    await asyncio.get_running_loop().run_in_executor(None, infer)
async def client():
    while not over.is_set():
        await answer()
async def clients_of_the_loop():
    await asyncio.gather(*(client() for _ in range(3)))
serve_and_operate(lambda: asyncio.run(clients_of_the_loop()), ":answer")
""",
    "coroutines that call step()": """
async def client():
    while not over.is_set():
        with torch.profiler.record_function("request"):
            await asyncio.sleep(0.001)
            infer()
            await asyncio.sleep(0.001)
        dp.step()
async def clients_of_the_loop():
    await asyncio.gather(*(client() for _ in range(3)))
serve_and_operate(lambda: asyncio.run(clients_of_the_loop()), "script")
""",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_has_the_work_of_all_server_threads(tmp_path: Path, kind: str) -> None:
    """The steps are the manifest's, and each thread has the operators that it counted."""
    run(tmp_path, SERVER + KINDS[kind])
    calls = json.loads((tmp_path / "calls.json").read_text())
    found = manifests(tmp_path)
    assert [manifest.complete for manifest in found] == [True] * 3
    for manifest in found:
        seen = events(tmp_path, manifest)
        steps = sorted(
            (event for event in seen if event["name"].startswith("ProfilerStep#")),
            key=lambda event: float(event["ts"]),
        )
        numbers = [int(event["name"].partition("#")[2]) for event in steps]
        assert numbers == list(range(manifest.steps.first, manifest.steps.last + 1))
        assert len(numbers) == manifest.steps.recorded == 8
        began, ended = steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
        within = Counter(
            event["tid"]
            for event in seen
            if event["name"] == "aten::mm" and began <= event["ts"] <= ended
        )
        base_us = base_ns(tmp_path, manifest) / 1e3
        whole, touched = Counter[int](), Counter[int]()
        for thread, call_began, call_ended in calls:
            first_us, last_us = call_began / 1e3 - base_us, call_ended / 1e3 - base_us
            whole[thread] += began < first_us and last_us < ended
            touched[thread] += began < last_us and first_us < ended
        for thread in {*within, *touched}:
            assert whole[thread] <= within[thread] <= touched[thread], (thread, within)
        assert within.total() >= 8 - 3  # three may have begun before the window


def base_ns(folder: Path, manifest: Any) -> int:
    """Return the start time of a trace, in ns since the epoch."""
    (path,) = (folder / "prof_config").rglob(manifest.trace)
    return int(json.loads(gzip.decompress(path.read_bytes()))["baseTimeNanoseconds"])


def test_a_window_of_a_server_that_gets_no_more_requests(tmp_path: Path) -> None:
    """The window closes at its time limit although no step ends, and keeps what it has."""
    log = run(
        tmp_path,
        """
        from dynprof.windows import early_close
        window(active=1000, limits={"max_seconds": 3})
        at_once(3, lambda: steps(1))
        assert dp.status().state == "recording"  # by itself it waits a minute for another step
        early_close.NO_STEP_S = 0.2
        idle()
        window(active=2)
        steps(2)
        """,
    )
    first, second = manifests(tmp_path)
    assert "limits.max_seconds is 3, and no step has ended for" in first.reason
    assert (first.steps.recorded, second.complete) == (3, True)
    seen = events(tmp_path, first)
    assert sum(event["name"] == "aten::add" for event in seen) == 3
    assert "Traceback" not in log
