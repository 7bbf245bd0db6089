"""The vendor's json files beside its tables."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, BinaryIO

from dynprof.analysis.measures.steps import collectives
from dynprof.analysis.output.whole_files import whole
from dynprof.analysis.reading.inflate import Readable, Torn, opened
from dynprof.files.layout import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.steps import Marked


def write_json_files(measured: MeasuredTrace, folder: Path) -> Iterator[Path]:
    """Write the json files that have something to say; yield their paths."""
    view = folder / "trace_view.json"
    with opened(measured.path) as source, whole(view) as temporary, temporary.open("wb") as sink:
        _copy(source, sink)
    yield view
    contents = {
        "communication.json": _communication(measured),
        f"profiler_info_{measured.rank}.json": _profiler_info(measured),
        "profiler_metadata.json": measured.metadata,
    }
    for name, content in contents.items():
        if content:
            path = folder / name
            write_atomic(path, json.dumps(content, indent=1) + "\n")
            yield path


def _copy(source: Readable, sink: BinaryIO) -> None:
    """Copy a trace, as far as it is whole."""
    with contextlib.suppress(Torn):
        while chunk := source.read(1 << 20):
            sink.write(chunk)


def _communication(measured: MeasuredTrace) -> dict[str, Any]:
    """Return the collectives of each step: kernels on a device, spans of gloo on the host."""
    trace, spans = measured.trace, measured.trace.spans
    steps = measured.marked
    found: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for place in collectives(trace).tolist():
        begin, length = int(spans["start"][place]), int(spans["length"][place])
        step = _step_at(steps, begin)
        kinds = found.setdefault(f"step{step}", {"p2p": {}, "collective": {}})
        name = trace.name(place)
        kind = "p2p" if "send" in name.lower() or "recv" in name.lower() else "collective"
        seen[name] += 1
        kinds[kind][f"{name}@{seen[name]}"] = {
            "Communication Time Info": {
                "Start Timestamp(us)": (measured.base_ns + begin) / 1000,
                "Elapse Time(ms)": length / 1e6,
            }
        }
    return found


def _step_at(steps: list[Marked], time: int) -> str:
    for number, begin, length in steps:
        if begin <= time < begin + length:
            return "" if number is None else str(number)
    return ""


def _profiler_info(measured: MeasuredTrace) -> dict[str, Any]:
    if measured.manifest is None:
        return {}
    config = dict(measured.manifest.request.config)
    inner = config.pop("experimental_config", {})
    return {
        "config": {"common_config": config, "experimental_config": inner},
        "rank_id": measured.rank,
        "dynprof": measured.manifest.model_dump(mode="json", exclude={"request"}),
    }
