"""What is sent by OTLP, and when a capture is sent again."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace.status import StatusCode

from dynprof.fleet.otlp_exporter import Sender
from tests.known_jobs import CLOSED_AT, OPENED_AT, reading, with_capture

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest
    from opentelemetry.sdk.trace import ReadableSpan

    from dynprof.fleet.jobs import Job


class Taken:
    """A sender whose receiver notes the spans, and takes them or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, began_s: float = 0.0) -> None:
        self.spans: list[ReadableSpan] = []
        self.takes = True
        self.sender = Sender("http://127.0.0.1:1")
        taken: Any = self.sender
        monkeypatch.setattr(taken._numbers, "export", lambda _: MetricExportResult.SUCCESS)
        monkeypatch.setattr(taken._spans, "export", self._export)
        monkeypatch.setattr(taken, "_began_s", began_s)

    def _export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS if self.takes else SpanExportResult.FAILURE

    def send(self, *jobs: Job) -> str:
        """Send a reading; return why it was not taken."""
        return self.sender.send(reading(*jobs))


def nanoseconds(text: str) -> int:
    """Return a time in nanoseconds since the epoch."""
    return round(datetime.fromisoformat(text).timestamp() * 1e9)


def test_capture_is_sent_until_the_receiver_takes_it_and_then_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that is down gets it later, with the same ids."""
    taken, job = Taken(monkeypatch), with_capture(tmp_path)
    taken.takes = False
    assert taken.send(job)
    taken.takes = True
    assert taken.send(job) == taken.send(job) == ""
    first, second = taken.spans
    assert first.context == second.context
    assert first.start_time == nanoseconds(OPENED_AT)
    assert first.end_time == nanoseconds(CLOSED_AT)
    assert first.status.status_code == StatusCode.UNSET


def test_capture_from_before_the_start_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender that ran before has sent it."""
    taken = Taken(monkeypatch, began_s=datetime.fromisoformat(CLOSED_AT).timestamp() + 1)
    assert taken.send(with_capture(tmp_path)) == ""
    assert taken.spans == []


def test_failed_capture_is_an_error_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason of the manifest is the description of the span's status."""
    taken = Taken(monkeypatch)
    told = {"complete": False, "trace": None, "reason": "the disk was full"}
    taken.send(with_capture(tmp_path, **told))
    (span,) = taken.spans
    assert span.status.status_code == StatusCode.ERROR
    assert span.status.description == "the disk was full"
    assert span.attributes is not None
    assert span.attributes["dynprof.capture.outcome"] == "failed"


def test_capture_that_is_being_saved_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outcome is not known yet."""
    taken, job = Taken(monkeypatch), with_capture(tmp_path)
    saving = tuple(dataclasses.replace(one, outcome="saving") for one in job.captures)
    assert taken.send(dataclasses.replace(job, captures=saving)) == ""
    assert taken.spans == []
