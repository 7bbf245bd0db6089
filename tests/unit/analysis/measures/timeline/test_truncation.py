"""On a truncated trace, dynprof says nothing that the missing part could contradict."""

from __future__ import annotations

import gzip
import json
import random
import re
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.findings.rules import findings
from dynprof.analysis.measures.difference import MeanStep, why_not_comparable
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.report.contents import contents, verdict
from dynprof.analysis.vendor_files.left_out import left_out
from dynprof.errors import CaptureError
from tests.processes import DYNPROF, run
from tests.real_traces import on_each
from tests.unit.analysis.random_traces import random_trace

if TYPE_CHECKING:
    from pathlib import Path

HEAD = '{"schemaVersion": 1, "deviceProperties": %s, "baseTimeNanoseconds": 0, "traceEvents": ['


def kineto(folder: Path, seed: int, devices: str = '[{"id": 0}]') -> bytes:
    """Return a random job's trace in Kineto's order: the host's threads, then calls and devices."""
    events = json.loads(random_trace(folder, seed).read_text())["traceEvents"]
    host = [e for e in events if e["cat"] in ("cpu_op", "user_annotation")]
    device = [e for e in events if e not in host]
    random.Random(seed).shuffle(device)  # noqa: S311 - nothing is secret here
    host.sort(key=lambda e: (-e["tid"], e["ts"]))
    listed = ",\n".join(json.dumps(e) for e in [*host, *device])
    return (HEAD % devices + listed + "]}").encode()


HOST_CUT = (
    "A trace holds one thread after the other: events may be missing from any step. "
    "No step counts as complete, and none is judged."
)
DEVICES_CUT = (
    "Kineto writes device activities after the host's, not in order of time. They may "
    "be missing from any step, so no step is judged."
)


def cut_off(folder: Path, content: bytes) -> MeasuredTrace:
    """Return the measurements of the beginning of a trace."""
    path = folder / "cut.trace.json"
    path.write_bytes(content)
    return MeasuredTrace(path)


def check(whole: MeasuredTrace, cut: MeasuredTrace, size: int) -> None:
    """Check that all statements on a trace's beginning hold for the whole trace."""
    words = cut.truncation.sentences()
    assert f"{size:,} bytes" in words[0]
    assert words[0].endswith("; the readable part was analysed.")
    assert words[1:] == [HOST_CUT if cut.truncation.host_incomplete else DEVICES_CUT]
    assert not findings(cut, cut.breakdown)
    assert not cut.steps
    said = str(cut.without_outliers.breakdown)
    assert "%" not in said  # no share of a step
    assert "device" not in said
    none_complete = r"No step is complete; the readable part of the trace spans [\d.,]+ ms\."
    if cut.truncation.host_incomplete:
        assert not len(cut.trace.spans["start"]) or re.fullmatch(none_complete, said)
    else:
        if whole.breakdown.marked:
            assert cut.marked == whole.marked
            assert cut.phases == whole.phases
        else:
            assert "the readable part of the trace spans" in said
        assert cut.breakdown.on_host
    page = contents(cut)
    assert page["verdict"] == said
    assert page["findings"] == []
    assert verdict(cut) == [*words, said]
    assert page["warnings"][: len(words)] == words
    assert page["damaged"]
    assert bool(page["steps"]["rows"]) != cut.truncation.host_incomplete


@pytest.mark.parametrize("seed", range(8))
def test_cut_anywhere(tmp_path: Path, seed: int) -> None:
    """Cuts are in the host's part, in that of devices, and behind the last event."""
    content = kineto(tmp_path, seed)
    whole = cut_off(tmp_path, content)
    assert not whole.truncation.sentences()
    assert whole.steps
    first, last = content.index(b"traceEvents") + 20, content.rindex(b"}]")
    for size in (*range(first, last, (last - first) // 15), last, last + 1):
        check(whole, cut_off(tmp_path, content[:size]), size)
    after = cut_off(tmp_path, content[: last + 2])
    assert (after.truncation.incomplete, str(after.breakdown)) == (False, str(whole.breakdown))


@on_each
def test_real_traces_cut(tmp_path: Path, path: Path) -> None:
    """Each trace is cut in four places."""
    content = gzip.decompress(path.read_bytes())
    whole = MeasuredTrace(path)
    if '"deviceProperties": []' in content[:2000].decode():
        pytest.skip("its Kineto knew no device, so that there is no device's part")
    for share in (0.3, 0.6, 0.9):
        size = int(len(content) * share)
        try:
            cut = cut_off(tmp_path, content[:size])
        except CaptureError:
            assert b"traceEvents" not in content[:size]
        else:
            check(whole, cut, size)


def test_without_a_device_the_host_is_judged(tmp_path: Path) -> None:
    """The host is judged if its part is whole and Kineto saw no device."""
    content = kineto(tmp_path, 1, devices="[]")
    host = content[: content.index(b'"correlation"')]
    host = host[: host.rindex(b"}") + 1]
    last = b',{"ph":"X","cat":"Trace","name":"PyTorch Profiler (0)","ts":1,"dur":2}'
    known = cut_off(tmp_path, host + last)
    assert known.truncation.incomplete is False
    assert [step.device for step in known.steps] == [-1] * len(known.marked)
    unknown = cut_off(tmp_path, host.replace(b'"deviceProperties": [], ', b"") + last)
    assert unknown.truncation.devices_incomplete
    assert not unknown.truncation.host_incomplete


PLAIN = "the file ends inside its events, after {0} bytes"
PACKED = "the compressed file is truncated after {1} bytes, {0} uncompressed"
INNER = "the file ends inside its events, after {0} bytes, uncompressed"


@pytest.mark.parametrize("members", [1, 2, 3])
def test_the_size_of_the_rest_is_named(tmp_path: Path, members: int) -> None:
    """This covers plain traces, traces compressed in one or several pieces, and truncated ones."""
    generator = random.Random(7)  # noqa: S311
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"{generator.random()}", "ts": n, "dur": 1}
        for n in range(20_000)
    ]
    content = (HEAD % "[]" + ",".join(map(json.dumps, events)) + "]}").encode()
    part = -(-len(content) // members)
    pieces = [gzip.compress(content[i : i + part]) for i in range(0, len(content), part)]
    packed = b"".join(pieces)

    def truncated(content: bytes) -> str:
        return cut_off(tmp_path, content).trace.truncated

    assert truncated(content[:-5000]) == PLAIN.format(f"{len(content) - 5000:,}")
    inner = gzip.compress(content[: len(content) // 2])
    assert truncated(inner) == INNER.format(f"{len(content) // 2:,}")
    for short in (100, 70_000, len(packed) // 3):
        rest = packed[:-short]
        said = truncated(rest)
        there = int(re.findall(r"([\d,]+) uncompressed", said)[0].replace(",", ""))
        assert said == PACKED.format(f"{there:,}", f"{len(rest):,}")
        assert there == pytest.approx(plain_length(pieces, len(rest)), rel=0, abs=300)
    broken = bytearray(packed)
    broken[len(pieces[0]) // 2 :][:1] = b""
    broken[-40_000:-39_000] = bytes(1000)
    damage = re.search(r"is damaged \(.*\) after ([\d,]+) bytes", truncated(bytes(broken)))
    assert damage
    assert len(packed) - 40_000 - (1 << 16) <= int(damage[1].replace(",", "")) <= len(packed)


def plain_length(pieces: list[bytes], size: int) -> int:
    """Return how many of the first bytes Python's own reader decompresses."""
    import zlib

    found, rest = 0, b"".join(pieces)[:size]
    while rest:
        inflate = zlib.decompressobj(wbits=31)
        found += len(inflate.decompress(rest))
        rest = inflate.unused_data
    return found


@pytest.mark.slow
def test_commands_name_a_truncated_trace(tmp_path: Path) -> None:
    """Each command that reads a trace says it, as the page does."""
    content = kineto(tmp_path, 3)
    whole, path = tmp_path / "whole.trace.json", tmp_path / "a" / "cut.trace.json"
    path.parent.mkdir()
    whole.write_bytes(content)
    path.write_bytes(content[: len(content) * 9 // 10])
    cut = MeasuredTrace(path)
    words = cut.truncation.sentences()
    assert len(words) == 2
    for arguments in (["report", path], ["analyse", path], ["top", path], ["diff", whole, path]):
        done = run([*DYNPROF, *map(str, arguments)])
        said = " ".join(f"{done.stdout} {done.stderr}".split())
        for sentence in words:
            assert sentence in said, arguments
    assert "step_trace_time.csv" in left_out(cut)
    assert "no device worked" not in left_out(cut).values()
    steps = map(MeanStep.of, (MeasuredTrace(whole), cut))
    assert "only the first has all of its events" in why_not_comparable(*steps)
