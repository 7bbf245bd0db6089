"""From a stopped recording to files: compression, disk space, and what lies there if it fails."""

from __future__ import annotations

import gzip
import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.captures import disk_guard as diskguard
from dynprof.captures.disk_guard import DiskGuard
from dynprof.captures.exporter import Export
from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps, load_manifest
from dynprof.captures.trace_packing import CHUNK, pack
from dynprof.errors import BackendError, CaptureError, DynprofError
from dynprof.files.layout import Layout
from dynprof.testing import FakeBackend, FakeRecording, HandExporter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dynprof.backends.base import Saved
    from dynprof.companions import Event


def packed(raw: bytes, events: Sequence[Event] = (), **first_members: Any) -> bytes:
    """Return a packed trace."""
    sink = io.BytesIO()
    pack(
        io.BytesIO(raw),
        sink,
        name="trace",
        first_members=first_members,
        on_chunk=lambda: None,
        events=events,
    )
    return sink.getvalue()


@pytest.mark.parametrize("isal", [True, False], ids=["isal", "gzip"])
def test_a_packed_trace_has_our_members_first(monkeypatch: pytest.MonkeyPatch, isal: bool) -> None:
    """The same with isal and on a machine that has none; Python's gzip reads both."""
    if not isal:
        monkeypatch.setitem(sys.modules, "isal", None)
    raw = b'{"traceEvents": [' + b"1," * CHUNK + b"2]}"
    read = json.loads(gzip.decompress(packed(raw, who={"rank": 3}, text='a "quote"')))
    assert list(read) == ["who", "text", "traceEvents"]
    assert read["text"] == 'a "quote"'
    assert len(read["traceEvents"]) == CHUNK + 1


def test_a_line_break_in_a_name_does_not_break_the_trace() -> None:
    """VizTracer writes names of functions as they are."""
    read = json.loads(gzip.decompress(packed(b"{" + b" " * 70 + b'"name": "one\n\ttwo"}', a=1)))
    assert read["name"] == "one  two"


@pytest.mark.parametrize("head", [b"", b'"long": "' + b"x" * 2 * CHUNK + b'", '])
@pytest.mark.parametrize(("rest", "count"), [(b'{"ph": "X"}]}', 1), (b"\n]}", 0)])
def test_events_are_added_at_their_times(head: bytes, rest: bytes, count: int) -> None:
    """They come first, in microseconds since the trace's base time, whatever stands before."""
    raw = b"{" + head + b'"baseTimeNanoseconds": 5000000, "traceEvents": [\n' + rest
    added = {"ph": "X", "name": "mine", "ts": 5_001_500, "dur": 250}
    read = json.loads(gzip.decompress(packed(raw, [added], a=1)))
    assert read["traceEvents"][0] == {"ph": "X", "name": "mine", "ts": 1.5, "dur": 0.25}
    assert len(read["traceEvents"]) == 1 + count


def test_a_base_time_of_ours_counts_too() -> None:
    """VizTracer's traces get their base time as one of our members."""
    raw = b'{"traceEvents": [{"ph": "X"}]}'
    added = {"ph": "i", "name": "mine", "ts": 9_000}
    read = json.loads(gzip.decompress(packed(raw, [added], baseTimeNanoseconds=1_000)))
    assert read["traceEvents"][0]["ts"] == 8.0


def test_without_a_list_there_is_no_place_for_events() -> None:
    """That is said, and nothing is torn."""
    with pytest.raises(BackendError, match="no list of events"):
        packed(b'{"events": 1}', [{"ph": "i", "ts": 1}], a=1)


def test_packing_is_reproducible() -> None:
    """No time of day in the compressed file."""
    assert packed(b'{"a": 1}', b=2) == packed(b'{"a": 1}', b=2)


@pytest.mark.parametrize("raw", [b"", b"[1]", b"torn"])
def test_what_is_no_object_is_not_packed(raw: bytes) -> None:
    """A profiler that wrote nothing is named."""
    with pytest.raises(BackendError, match="did not write a JSON object"):
        packed(raw)


class Disk:
    """A disk with as much room as the test says, less what lies in a folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, size_mb: float) -> None:
        self.folder, self.size_mb = folder, size_mb
        monkeypatch.setattr(diskguard, "free_disk_mb", self.free_mb)
        monkeypatch.setattr(diskguard, "POLL_S", 0.001)

    def free_mb(self, _: Path) -> float:
        """Return what is left."""
        return self.size_mb - sum(p.stat().st_size for p in self.folder.rglob("*")) / 1e6


class GreedyRecording(FakeRecording):
    """Writes without looking, as libkineto does, until its file is cut."""

    def save(self, path: Path) -> Saved:
        """Write 1 MB after the other."""
        saved = super().save(path)
        with path.open("ab") as file:
            while path.stat().st_size:
                file.write(bytes(1_000_000))
                file.flush()
                if self.written(path) > 100:
                    raise AssertionError("nobody cut the file")
        return saved

    def written(self, path: Path) -> float:
        """Return the MB that the file has now."""
        return path.stat().st_size / 1e6


@pytest.fixture
def export(tmp_path: Path) -> Callable[[FakeRecording, float | None], Manifest]:
    """Return a function that exports a recording and returns the manifest left on disk."""
    layout = Layout(tmp_path, 0, "host", 42)
    folder = tmp_path / "step_1-2_x"

    def attempt(_: str, action: Callable[[], object]) -> Exception | None:
        try:
            action()
        except (DynprofError, OSError, RuntimeError) as error:
            return error
        return None

    def run(recording: FakeRecording, least_free_mb: float | None) -> Manifest:
        exporter = HandExporter(attempt)
        exporter.submit(
            Export(
                recording=recording,
                manifest=a_manifest(),
                folder=folder,
                trace_name="t.json",
                layout=layout,
                least_free_mb=least_free_mb,
                on_end=lambda *_: None,
            )
        )
        return load_manifest(layout.manifest(folder))

    return run


def a_manifest() -> Manifest:
    """Return the manifest of a window that was just closed."""
    return Manifest(
        dynprof="0",
        backend="fake",
        versions={},
        host="host",
        pid=42,
        rank=0,
        world_size=1,
        request=RequestRecord(number=1, edited_at="", sha256="", config={"metadata": {"run": 7}}),
        steps=Steps(first=1, last=2, recorded=2, warmup=0),
        activities=("CPU",),
        opened_at="",
        closed_at="",
        complete=True,
        cost=Cost(open_ms=1, close_ms=1),
    )


def test_a_filling_disk_costs_the_capture_not_the_space(
    export: Callable[[FakeRecording, float | None], Manifest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A profiler that writes past the limit is cut off; the manifest says so; nothing is torn."""
    Disk(monkeypatch, tmp_path, size_mb=50)
    manifest = export(GreedyRecording(FakeBackend()), 20.0)
    assert not manifest.complete
    assert "the disk filled up while the capture was saved" in manifest.reason
    assert "limits.min_free_disk_mb keeps 20 for the job" in manifest.reason
    assert manifest.trace is None
    names = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    assert names == ["rank_0.info.json", "rank_0.metadata.json"]


def test_too_little_disk_is_seen_before_saving(
    export: Callable[[FakeRecording, float | None], Manifest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The profiler is not even asked to write."""
    Disk(monkeypatch, tmp_path, size_mb=10)
    recording = FakeRecording(FakeBackend())
    assert "10 MB are free there" in export(recording, 20.0).reason
    assert "save" not in recording.calls


def test_a_full_disk_is_named_without_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the job asked for no limit, the failure still says that the disk is full."""
    Disk(monkeypatch, tmp_path, size_mb=0.5)
    with (
        pytest.raises(CaptureError, match="the disk is full: 0 MB"),
        DiskGuard(tmp_path, None).watch(),
    ):
        raise BackendError("could not write")


def test_another_failure_keeps_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room enough the disk is not blamed."""
    Disk(monkeypatch, tmp_path, size_mb=5000)
    with pytest.raises(BackendError, match="out of luck"), DiskGuard(tmp_path, 1024).watch():
        raise BackendError("out of luck")


class DyingRecording(FakeRecording):
    """Its saving ends with the process."""

    def save(self, path: Path) -> Saved:
        """Do as a killed process does: nothing any more."""
        del path
        raise SystemExit


def test_a_process_killed_while_saving_leaves_a_manifest_that_says_so(
    export: Callable[[FakeRecording, float | None], Manifest], tmp_path: Path
) -> None:
    """The manifest is there before the trace."""
    with pytest.raises(SystemExit):
        export(DyingRecording(FakeBackend()), None)
    (path,) = tmp_path.rglob("rank_0.info.json")
    manifest = load_manifest(path)
    assert not manifest.complete
    assert "has begun and not ended" in manifest.reason


def test_the_manifest_of_a_whole_capture(
    export: Callable[[FakeRecording, float | None], Manifest], tmp_path: Path
) -> None:
    """Sizes before and after compression; nothing else is left behind."""
    manifest = export(FakeRecording(FakeBackend()), None)
    assert manifest.complete
    assert manifest.reason == ""
    trace = tmp_path / "step_1-2_x" / str(manifest.trace)
    assert manifest.trace_bytes == trace.stat().st_size
    assert json.loads(gzip.decompress(trace.read_bytes()))["metadata"] == {"run": 7}
    assert not list(tmp_path.rglob("*.saving"))
