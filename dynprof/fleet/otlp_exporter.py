"""Sends the metrics by OTLP, OpenTelemetry's protocol, and each capture as a span."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from datetime import datetime
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from dynprof.fleet.metrics import measured
from dynprof.runtime.layout import host_name
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dynprof.fleet.jobs import Capture, Job
    from dynprof.fleet.metrics import Metric as Number
    from dynprof.fleet.metrics import Point, Reading

TIMEOUT_S = 10.0
"""Seconds for a request with its repetitions; metrics are sent again soon."""
POINTS = 10_000
"""Values in a request: a receiver takes 4 MiB by default, and a value has up to 200 bytes."""
MAX_REASON = 1000
"""Characters of the reason of a failed capture in its span."""
SCOPE = InstrumentationScope("dynprof", __version__)


class Sender:
    """Sends readings to a receiver; headers come from ``OTEL_EXPORTER_OTLP_HEADERS``.

    A span is sent for each capture that closed after the sender was made: a sender that starts
    again sends none twice.

    Args:
        url: Address of the receiver, such as ``http://127.0.0.1:4318``.
        per_rank: Whether each rank has metrics of its own.
    """

    def __init__(self, url: str, *, per_rank: bool = False) -> None:
        base, self._per_rank = url.rstrip("/"), per_rank
        self._numbers = OTLPMetricExporter(
            f"{base}/v1/metrics", timeout=TIMEOUT_S, max_export_batch_size=POINTS
        )
        self._spans = OTLPSpanExporter(f"{base}/v1/traces", timeout=TIMEOUT_S)
        self._messages = _LastMessage(logging.WARNING)
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self._messages)
        logger.propagate = False  # it reports each try, and many lines for a receiver that is down
        self._began_s = time.time()
        self._sent: set[str] = set()
        self._resource = Resource.create(
            {
                "service.name": "dynprof",
                "service.version": __version__,
                "service.instance.id": host_name(),
                "host.name": host_name(),
            }
        )

    def send(self, reading: Reading) -> str:
        """Send the metrics and the new captures; return why the receiver did not take all."""
        self._messages.last = ""
        sent = self._numbers.export(self._data(reading)) is MetricExportResult.SUCCESS
        there = {str(capture.folder) for job in reading.jobs for capture in job.captures}
        self._sent &= there  # baselines come and go for months
        captures = dict(self._new_captures(reading.jobs))
        if captures:
            taken = self._spans.export(list(captures.values())) is SpanExportResult.SUCCESS
            self._sent |= captures.keys() if taken else set()
            sent = sent and taken
        return "" if sent else self._messages.last or "no reason is known"

    def _data(self, reading: Reading) -> MetricsData:
        numbers = measured(reading, per_rank=self._per_rank)
        metrics = [self._metric(one, points, reading.at_s) for one, points in numbers if points]
        scope = ScopeMetrics(SCOPE, metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    def _metric(self, number: Number, points: Sequence[Point], at_s: float) -> Metric:
        began_ns = _ns(self._began_s) if number.is_counter else 0
        values = [NumberDataPoint(labels, began_ns, _ns(at_s), value) for labels, value in points]
        data = (
            Sum(values, AggregationTemporality.CUMULATIVE, is_monotonic=True)
            if number.is_counter
            else Gauge(values)
        )
        return Metric(number.name, number.text, number.unit, data)

    def _new_captures(self, jobs: Sequence[Job]) -> Iterator[tuple[str, ReadableSpan]]:
        for job in jobs:
            for capture in job.captures:
                key = str(capture.folder)
                closed_s = _seconds(capture.manifest.closed_at)
                is_new = closed_s >= self._began_s and key not in self._sent
                if is_new and capture.outcome != "saving":
                    yield key, self._span(job, capture, closed_s)

    def _span(self, job: Job, capture: Capture, closed_s: float) -> ReadableSpan:
        manifest = capture.manifest
        digest = hashlib.sha256(str(capture.folder).encode("utf-8", "backslashreplace")).digest()
        context = SpanContext(
            int.from_bytes(digest[:16]),
            int.from_bytes(digest[16:24]),
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )
        attributes: dict[str, str | int] = {
            "training_job": job.name,
            "role": manifest.role,
            "host.name": manifest.host,
            "process.pid": manifest.pid,
            "dynprof.capture.directory": str(capture.folder),
            "dynprof.capture.outcome": capture.outcome,
            "dynprof.capture.backend": manifest.backend,
            "dynprof.capture.first_step": manifest.steps.first,
            "dynprof.capture.last_step": manifest.steps.last,
            "dynprof.capture.recorded_steps": manifest.steps.recorded,
            "dynprof.capture.ranks": capture.ranks,
            "dynprof.capture.saved_ranks": capture.saved,
            "dynprof.capture.size": manifest.trace_bytes,
        }
        failed = capture.outcome == "failed"
        return ReadableSpan(
            "dynprof capture",
            context,
            resource=self._resource,
            attributes=attributes,
            status=Status(StatusCode.ERROR, manifest.reason[:MAX_REASON]) if failed else Status(),
            start_time=_ns(capture.opened_at or closed_s),
            end_time=_ns(closed_s),
            instrumentation_scope=SCOPE,
        )


class _LastMessage(logging.Handler):
    """Keeps the last message of the exporters, which return no reason.

    Attributes:
        last: The message, on one line; empty for none.
    """

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.last = " ".join(record.getMessage().split()).rstrip(".")


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _seconds(text: str) -> float:
    """Return a time of a manifest in seconds since the epoch; 0 if it is none."""
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).timestamp()
    return 0.0
