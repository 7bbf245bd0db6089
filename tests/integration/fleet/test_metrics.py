"""Real jobs, watched by monitoring: over HTTP, by a textfile, by OTLP and by Prometheus itself."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import signal
import socket
import stat
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from dynprof.cli.metrics import RULES
from tests.integration.commands import dynprof, start
from tests.integration.launching import free_port
from tests.integration.running import LOOP, RunningJob, wait_for
from tests.processes import start as start_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HANGS = LOOP.replace("while True:", "for _ in range(50):") + "time.sleep(3600)\n"
"""A job that hangs after 50 steps."""
TOKEN = "0123456789abcdef" * 2


@contextlib.contextmanager
def serving(*arguments: object) -> Iterator[str]:
    """Serve the numbers of jobs; yield the address."""
    with start("metrics", *arguments, "--listen", "0") as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def get(address: str, method: str = "GET", **headers: str) -> tuple[int, Any, str]:
    """Send a request; return the status, the headers and the body."""
    request = urllib.request.Request(address, method=method, headers=headers)  # noqa: S310 - http
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def numbers(text: str) -> dict[tuple[str, ...], float]:
    """Return the values of an exposition: by name, and the labels other than the job's."""
    return {
        (one.name.removeprefix("dynprof_"), *sorted(
            value for label, value in one.labels.items() if label not in ("training_job", "role")
        )): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }  # fmt: skip


def scraped(address: str) -> dict[tuple[str, ...], float]:
    """Return the values that a scrape gets."""
    status, _, text = get(address)
    assert status == 200
    return numbers(text)


def statuses(job: RunningJob) -> list[dict[str, Any]]:
    """Return what ``dynprof status --json`` tells of each rank."""
    ranks: list[dict[str, Any]] = json.loads(dynprof("status", job.root, "--json")[1])["ranks"]
    return ranks


def test_numbers_of_a_job_are_those_of_its_status(tmp_path: Path) -> None:
    """The command's own numbers lie around those of a scrape between two calls of it."""
    size = {"WORLD_SIZE": "2"}
    with (
        RunningJob(tmp_path, LOOP, RANK="0", **size) as job,
        RunningJob(tmp_path, LOOP, RANK="1", **size) as other,
        serving(tmp_path, "--per-rank") as address,
    ):
        job.when("its pace", lambda status: status.step_ms is not None)
        other.when("its pace", lambda status: status.step_ms is not None, rank=1)
        before, found, after = statuses(job), scraped(address), statuses(job)
        for first, last in zip(before, after, strict=True):
            labels = sorted([str(first["rank"]), first["host"]])
            assert first["step"] <= found["rank_steps_total", *labels] <= last["step"]
            resident = found["rank_memory_resident_bytes", *labels]
            assert resident in {one["memory"]["resident_mb"] * 1e6 for one in (first, last)}
        assert found["job_ranks", "alive"] == len(before) == found["job_world_size",] == 2
        steps = [one["step"] for one in before], [one["step"] for one in after]
        assert min(steps[0]) <= found["job_steps_total",] <= min(steps[1])
        assert time.time() - found["job_last_step_timestamp_seconds",] < 60
        times = [found[f"job_step_duration_{which}_seconds",] for which in ("min", "median", "max")]
        assert 0.005 <= times[0] <= times[1] <= times[2]  # 10 ms, from readings a second apart


def test_hang_shows_as_a_counter_that_stands_still(tmp_path: Path) -> None:
    """The step counter keeps its value and the time of the last step, while the job lives on."""
    with RunningJob(tmp_path, HANGS) as job, serving(tmp_path) as address:
        job.when("the hang", lambda status: status.step == 50 and status.since_last_step_s > 4)
        first = scraped(address)
        written_s = first["read_timestamp_seconds",]
        job.when("another write", lambda status: status.heartbeat > written_s + 4)
        last = scraped(address)
        step, at = ("job_steps_total",), ("job_last_step_timestamp_seconds",)
        assert first[step] == last[step] == 50
        assert first[at] == pytest.approx(last[at], abs=2)  # the counter is read every second
        assert last["read_timestamp_seconds",] - last[at] > 8
        assert last["job_ranks", "alive"] == 1


def test_killed_rank_shows_as_dead(tmp_path: Path) -> None:
    """A rank that is killed counts as dead, and the others go on."""
    with (
        RunningJob(tmp_path, LOOP, RANK="0", WORLD_SIZE="2") as job,
        RunningJob(tmp_path, LOOP, RANK="1", WORLD_SIZE="2") as other,
        serving(tmp_path) as address,
    ):
        job.when("its pace", lambda status: status.step_ms is not None)
        other.when("its pace", lambda status: status.step_ms is not None, rank=1)
        other.process.send_signal(signal.SIGKILL)
        other.process.wait()

        def dead() -> dict[tuple[str, ...], float] | None:
            found = scraped(address)
            return found if found["job_ranks", "dead"] else None

        found = wait_for("a dead rank", dead)
        assert (found["job_ranks", "dead"], found["job_ranks", "alive"]) == (1, 1)


def test_only_one_path_and_method_are_served(tmp_path: Path) -> None:
    """Nothing else is answered, and the answer does not name the server."""
    with serving(tmp_path) as address:
        status, headers, _ = get(address)
        assert (status, headers["server"]) == (200, None)
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        assert {get(address, host=name)[0] for name in ("evil.example", "127.0.0.1.evil")} == {421}
        assert get(address, host="localhost:9464")[0] == 200
        assert {get(address, method)[0] for method in ("POST", "PUT", "DELETE", "OPTIONS")} == {405}
        root = address.removesuffix("/metrics")
        assert {get(f"{root}{path}")[0] for path in ("/", "/metrics/x", "/..%2fmetrics")} == {404}


def test_interrupt_ends_the_server_without_a_traceback(tmp_path: Path) -> None:
    """Ctrl-C is how an operator ends it."""
    with start("metrics", tmp_path, "--listen", "0") as process:
        assert process.stdout is not None
        assert get(process.stdout.readline().strip())[0] == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")


SERVES_MUCH = f"""
import socket
from types import SimpleNamespace
from prometheus_client.core import GaugeMetricFamily
from dynprof.fleet import scrape_server
values = GaugeMetricFamily("x", "x" * {32 << 20})
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
collector = SimpleNamespace(collect=lambda: [values])
scrape_server.serve(collector, listener, "", "127.0.0.1")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_client_that_reads_slowly_does_not_keep_the_server(number: signal.Signals) -> None:
    """More than the system's buffers take is on its way."""
    with start_process([sys.executable, "-c", SERVES_MUCH]) as process:
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        with socket.create_connection(address) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(9) == b"HTTP/1.1 "
            process.send_signal(number)
            _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")


def test_a_scrape_needs_the_token_if_there_is_one(tmp_path: Path) -> None:
    """Without the token of the file, or with another one, the answer is 401 and empty."""
    file, mounted = tmp_path / "token", tmp_path / "mounted"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o640)
    mounted.symlink_to(file)  # as Kubernetes mounts a secret
    with serving(tmp_path, "--token-file", mounted) as address:
        assert get(address)[0] == 401
        assert get(address, authorization=f"Bearer {TOKEN[:-1]}")[::2] == (401, "")
        assert get(address, authorization=f"Bearer {TOKEN}")[0] == 200
        by_name = {"host": "node7.cluster", "authorization": f"Bearer {TOKEN}"}
        assert get(address, **by_name)[0] == 200


def test_other_machines_need_a_token(tmp_path: Path) -> None:
    """An address that other machines reach is refused without a private token that is long."""
    code, _, errors = dynprof("metrics", tmp_path, "--listen", "0.0.0.0:0")
    assert (code, "add --token-file" in errors) == (2, True)
    file = tmp_path / "token"
    for content, mode, problem in (
        (TOKEN, 0o604, "every user may open"),
        ("short", 0o600, "fewer than 32 characters"),
    ):
        file.write_text(content)
        file.chmod(mode)
        listen = ("--listen", "0.0.0.0:0", "--token-file", file)
        code, _, errors = dynprof("metrics", tmp_path, *listen)
        assert (code, problem in errors) == (2, True)


def test_textfile_is_whole_and_readable_by_node_exporter(tmp_path: Path) -> None:
    """The file has the numbers at once, and again after each interval; links are replaced."""
    file = tmp_path / "jobs.prom"
    precious = tmp_path / "precious"
    precious.write_text("x")
    file.symlink_to(precious)
    (tmp_path / "prof").mkdir()
    (tmp_path / "prof" / "profiler_config.json").write_text("{}")
    assert dynprof("metrics", tmp_path, "--textfile", file)[0] == 0
    assert (precious.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("x", 0o644)
    assert numbers(file.read_text())["jobs",] == 1
    first = numbers(file.read_text())["read_timestamp_seconds",]
    with start("metrics", tmp_path, "--textfile", file, "--every", "1"):
        wait_for(
            "a later reading",
            lambda: numbers(file.read_text())["read_timestamp_seconds",] > first or None,
        )
    assert dynprof("metrics", tmp_path, "--textfile", tmp_path / "jobs.txt")[0] == 2
    code, _, errors = dynprof("metrics", tmp_path, "--every", "5")
    assert (code, errors) == (2, "--every repeats --textfile and --otlp; add one of them\n")
    code, _, errors = dynprof("metrics", tmp_path, "--textfile", tmp_path / "none" / "jobs.prom")
    assert (code, "cannot be written" in errors) == (2, True)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes what OTLP sends, and keeps it decoded."""

    metrics: list[ExportMetricsServiceRequest]
    traces: list[ExportTraceServiceRequest]

    def do_POST(self) -> None:
        """Decode a request."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/metrics":
            self.metrics.append(ExportMetricsServiceRequest.FromString(content))
        else:
            assert self.path == "/v1/traces"
            self.traces.append(ExportTraceServiceRequest.FromString(content))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Print nothing."""


@contextlib.contextmanager
def receiving() -> Iterator[tuple[str, type[Receiver]]]:
    """Run a receiver of OTLP; yield its address, and what it has received."""
    received = type("Received", (Receiver,), {"metrics": [], "traces": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), received) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


def points(request: ExportMetricsServiceRequest) -> dict[tuple[str, ...], float]:
    """Return the values of a request, as :func:`numbers` does."""
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    found = {}
    for metric in scope.metrics:
        data = metric.sum if metric.HasField("sum") else metric.gauge
        for point in data.data_points:
            labels = {one.key: one.value.string_value for one in point.attributes}
            rest = [v for label, v in labels.items() if label not in ("training_job", "role")]
            found[metric.name.removeprefix("dynprof."), *sorted(rest)] = point.as_double
    return found


def spans(received: type[Receiver]) -> list[Any]:
    """Return all spans that were received."""
    return [
        span
        for request in received.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def test_otlp_has_the_same_numbers_and_a_span_for_each_capture(tmp_path: Path) -> None:
    """A span begins and ends with its window; a sender that starts again sends no second one."""
    pytest.importorskip("viztracer", reason="VizTracer is not installed")
    with RunningJob(tmp_path, LOOP) as job, receiving() as (url, received):
        job.when("its pace", lambda status: status.step_ms is not None)
        with start("metrics", tmp_path, "--otlp", url, "--every", "1"):
            wait_for("numbers", lambda: received.metrics or None)
            job.edit(active=2)
            manifest, _ = job.capture()
            wait_for("a span", lambda: spans(received) or None)
            count = len(received.metrics)
            wait_for("two more rounds", lambda: len(received.metrics) > count + 2 or None)
        (span,) = spans(received)
        times = [datetime.fromisoformat(at) for at in (manifest.opened_at, manifest.closed_at)]
        seconds = [ns / 1e9 for ns in (span.start_time_unix_nano, span.end_time_unix_nano)]
        assert seconds == [pytest.approx(at.timestamp(), abs=0.001) for at in times]
        told = {one.key: one.value for one in span.attributes}
        assert told["dynprof.capture.outcome"].string_value == "saved"
        assert told["dynprof.capture.backend"].string_value == manifest.backend
        assert told["dynprof.capture.first_step"].int_value == manifest.steps.first
        assert told["host.name"].string_value == os.uname().nodename
        folder = told["dynprof.capture.directory"].string_value
        assert folder == str(next(job.root.glob("step_*")))
        found = points(received.metrics[-1])
        assert found["job.captures", "saved"] == found["job.ranks", "alive"] == 1
        assert found["job.steps",] > points(received.metrics[0])["job.steps",]
        (resource,) = received.metrics[-1].resource_metrics
        service = {one.key: one.value.string_value for one in resource.resource.attributes}
        assert service["service.name"] == "dynprof"
        with start("metrics", tmp_path, "--otlp", url, "--every", "1"):
            count = len(received.metrics)
            wait_for("two rounds", lambda: len(received.metrics) > count + 1 or None)
        assert len(spans(received)) == 1


def test_receiver_that_does_not_answer_is_named(tmp_path: Path) -> None:
    """Without an interval, the command says that nothing was sent, and ends with 2."""
    url = f"http://127.0.0.1:{free_port()}"
    code, _, errors = dynprof("metrics", tmp_path, "--otlp", url)
    assert (code, errors.count("\n")) == (2, 1)
    assert errors.startswith(f"{url} did not take the metrics: ")


@pytest.mark.parametrize(
    "url", ["http://me:secret@127.0.0.1:1", "http://127.0.0.1:1/?key=secret", "me:secret@host"]
)
def test_a_receiver_with_credentials_in_its_url_is_refused(tmp_path: Path, url: str) -> None:
    """The error message does not repeat them, and names the variable that has them."""
    code, output, errors = dynprof("metrics", tmp_path, "--otlp", url)
    assert (code, "OTEL_EXPORTER_OTLP_HEADERS" in errors) == (2, True)
    assert "secret" not in output + errors


@pytest.mark.skipif(not shutil.which("prometheus"), reason="Prometheus is not installed")
def test_prometheus_scrapes_a_real_job_and_takes_the_rules(tmp_path: Path) -> None:
    """Its own queries see the job and its steps, and each rule can be evaluated."""
    with RunningJob(tmp_path, LOOP) as job, serving(tmp_path) as address:
        job.when("its pace", lambda status: status.step_ms is not None)
        target, port = address.split("/")[2], free_port()
        (tmp_path / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: [{RULES}]\n"
            "scrape_configs:\n"
            f"  - {{job_name: dynprof, static_configs: [{{targets: ['{target}']}}]}}\n"
        )
        with prometheus(tmp_path, port) as asked:
            ask = f"{asked}/api/v1/query?query=dynprof_job_steps_total"

            def answer() -> Any:
                with contextlib.suppress(OSError):  # it does not listen yet
                    status, _, text = get(ask)
                    return json.loads(text)["data"]["result"] or None if status == 200 else None
                return None

            (found,) = wait_for("a scrape", answer)
            labels = {"job": "dynprof", "instance": target, "__name__": "dynprof_job_steps_total"}
            name = f"{tmp_path.name}/prof_config"
            assert found["metric"] == {**labels, "training_job": name}
            assert 0 < float(found["value"][1]) <= statuses(job)[0]["step"]
            rules = json.loads(get(f"{asked}/api/v1/rules")[2])["data"]["groups"][0]["rules"]
            assert {rule["health"] for rule in rules} <= {"ok", "unknown"}  # not evaluated yet


@contextlib.contextmanager
def prometheus(folder: Path, port: int) -> Iterator[str]:
    """Run Prometheus on the loopback address with the config of a folder."""
    address = f"127.0.0.1:{port}"
    options = ("--config.file=prometheus.yml", "--storage.tsdb.path=tsdb")
    with start_process(
        ["prometheus", *options, f"--web.listen-address={address}"], cwd=folder
    ) as process:
        yield f"http://{address}"
        assert process.poll() is None
