"""From a stopped recording to files: compression, disk space, and the results of failures."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import threading
from typing import TYPE_CHECKING

import pytest

from dynprof.captures import exporter
from dynprof.captures import exporter as diskguard
from dynprof.captures.exporter import DiskGuard, Export, Exporter
from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps, load_manifest
from dynprof.errors import BackendError, CaptureError, DynprofError
from dynprof.runtime import memory
from dynprof.runtime.layout import Layout
from dynprof.testing import FakeBackend, FakeRecording, HandExporter
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pydantic import JsonValue

    from dynprof.backends.base import Saved


class Disk:
    """A disk with the test's free space, minus the content of a folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, size_mb: float) -> None:
        self.folder, self.size_mb = folder, size_mb
        monkeypatch.setattr(diskguard, "free_disk_mb", self.free_mb)
        monkeypatch.setattr(diskguard, "POLL_S", 0.001)

    def free_mb(self, _: Path) -> float:
        """Return the free space."""
        return self.size_mb - sum(p.stat().st_size for p in self.folder.rglob("*")) / 1e6


class GreedyRecording(FakeRecording):
    """A recording that writes without a check, like libkineto, until its file is cut."""

    def save(self, path: Path) -> Saved:
        """Write MB after MB."""
        saved = super().save(path)
        with path.open("ab") as file:
            while path.stat().st_size:
                file.write(bytes(1_000_000))
                file.flush()
                if self.written(path) > 1000:
                    raise AssertionError("nobody cut the file")
        return saved

    def written(self, path: Path) -> float:
        """Return the present size of the file in MB."""
        return path.stat().st_size / 1e6


@pytest.fixture
def export(tmp_path: Path) -> Callable[[FakeRecording, float | None], Manifest]:
    """Return a function that exports a recording and returns the manifest on disk."""
    layout = Layout(tmp_path, 0, "host", 42)

    def attempt(_: str, action: Callable[[], object]) -> Exception | None:
        try:
            action()
        except (DynprofError, OSError, RuntimeError) as error:
            return error
        return None

    def run(
        recording: FakeRecording,
        least_free_mb: float | None,
        kind: type[Exporter] = HandExporter,
        name: str = "step_1-2_x",
        **changed: object,
    ) -> Manifest:
        exporter, folder = kind(attempt), tmp_path / name
        exporter.start()
        exporter.submit(
            Export(
                recording=recording,
                manifest=a_manifest().model_copy(update=changed),
                folder=folder,
                trace_name="t.json",
                layout=layout,
                least_free_mb=least_free_mb,
                on_end=lambda *_: None,
            )
        )
        assert exporter.wait(60)
        exporter.stop()
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


def test_a_process_with_unknown_memory_saves(
    export: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may have too many open files, for example."""

    def fail() -> float:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(memory, "resident_mb", fail)
    assert export(FakeRecording(FakeBackend()), None, Exporter).complete


def test_a_filling_disk_costs_the_capture_not_the_space(
    export: Callable[[FakeRecording, float | None], Manifest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A profiler that writes past the limit is cut off. The manifest says so; no trace is left."""
    Disk(monkeypatch, tmp_path, size_mb=50)
    manifest = export(GreedyRecording(FakeBackend()), 20.0)
    assert not manifest.complete
    assert "the disk filled up while the capture was saved" in manifest.reason
    free = re.search(r"(\d+) MB were free there", manifest.reason)
    assert free
    assert int(free[1]) < 20  # as it was before the cut made room
    assert "limits.min_free_disk_mb keeps 20 for the job" in manifest.reason
    assert manifest.trace is None
    names = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    assert names == ["profiler_metadata.json", "rank_0.info.json"]


def test_a_full_disk_is_noticed_before_saving(
    export: Callable[[FakeRecording, float | None], Manifest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The profiler is not asked to write."""
    Disk(monkeypatch, tmp_path, size_mb=10.5)  # less a few files that are written first
    recording = FakeRecording(FakeBackend())
    assert "10 MB were free there" in export(recording, 20.0).reason
    assert "save" not in recording.calls


def test_a_full_disk_is_named_without_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the config has no limit, the error still says that the disk is full."""
    Disk(monkeypatch, tmp_path, size_mb=0.5)
    with (
        pytest.raises(CaptureError, match="the disk is full: 0 MB"),
        DiskGuard(tmp_path, None).watch(),
    ):
        raise BackendError("could not write")


def test_another_failure_keeps_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With enough space the error is the original one."""
    Disk(monkeypatch, tmp_path, size_mb=5000)
    with pytest.raises(BackendError, match="out of luck"), DiskGuard(tmp_path, 1024).watch():
        raise BackendError("out of luck")


class BrokenRecording(FakeRecording):
    """A recording whose trace is not JSON, even with escaped names."""

    def save(self, path: Path) -> Saved:
        """Write half a list."""
        path.write_text('{"traceEvents": [{"ph": "X", "args": [}]}')
        return super().save(path.with_name("other"))


def test_a_trace_that_is_not_json_is_kept_as_incomplete(
    export: Callable[[FakeRecording, float | None], Manifest], tmp_path: Path
) -> None:
    """The manifest names the byte; the steps are the recorded ones."""
    manifest = export(BrokenRecording(FakeBackend()), None)
    assert not manifest.complete
    (path,) = tmp_path.rglob("t.json.gz")
    text = gzip.decompress(path.read_bytes())
    assert manifest.reason == (
        f"its uncompressed trace is invalid JSON from byte {text.index(b'[}') + 1:,} on"
    )
    assert (manifest.trace, manifest.steps.recorded) == (path.name, 2)


def test_a_capture_that_does_not_fit_leaves_no_empty_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: Callable[[FakeRecording, None], object]
) -> None:
    """Not even the first manifest fits."""

    def write(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(exporter, "write_if_absent", write)
    with pytest.raises(CaptureError):
        export(FakeRecording(FakeBackend()), None)
    assert list(tmp_path.iterdir()) == []


def metadata_of(export: Callable[..., Manifest], folder: Path, metadata: JsonValue) -> list[str]:
    """Export a capture with this metadata; return the metadata files in the folder."""
    request = a_manifest().request.model_copy(update={"config": {"metadata": metadata}})
    export(FakeRecording(FakeBackend()), None, request=request)
    return sorted(path.name for path in folder.glob("step_1-2_x/profiler_metadata*.json"))


def test_metadata_is_in_the_captures_root_under_the_vendors_name(
    export: Callable[..., Manifest], tmp_path: Path
) -> None:
    """profiler_metadata.json is next to the trace, without a second copy."""
    assert metadata_of(export, tmp_path, {"run": 7}) == ["profiler_metadata.json"]
    (found,) = tmp_path.rglob("*metadata*")
    assert json.loads(found.read_text()) == {"run": 7}
    assert found.parent == tmp_path / "step_1-2_x"


def test_captures_of_one_folder_share_the_same_metadata(
    export: Callable[..., Manifest], tmp_path: Path
) -> None:
    """The same metadata adds no file; other metadata adds its own.

    The first file stays as it is.
    """
    metadata_of(export, tmp_path, {"run": 7})
    assert metadata_of(export, tmp_path, {"run": 7}) == ["profiler_metadata.json"]
    names = metadata_of(export, tmp_path, {"run": 8})
    assert names == ["profiler_metadata.json", "profiler_metadata_0.3.json"]
    found = [json.loads((tmp_path / "step_1-2_x" / name).read_text()) for name in names]
    assert found == [{"run": 7}, {"run": 8}]


def test_without_metadata_there_is_no_file(export: Callable[..., Manifest], tmp_path: Path) -> None:
    """A config without metadata gives no file."""
    assert metadata_of(export, tmp_path, {}) == []


def test_a_folder_named_as_the_vendors_has_its_files_without_analysis(
    export: Callable[..., Manifest], tmp_path: Path
) -> None:
    """A vendor's folder has profiler_info.json and profiler_metadata.json at once."""
    name = "w0_1_20260101000000000_ascend_pt"
    export(FakeRecording(FakeBackend()), None, name=name)
    names = {path.name for path in (tmp_path / name).iterdir()}
    assert names == {"info", "profiler_info.json", "profiler_metadata.json", "t.json.gz"}


def test_a_rank_repeats_no_file_of_its_own_metadata(
    export: Callable[..., Manifest], tmp_path: Path
) -> None:
    """A capture adds no file if the newest file of its rank has its metadata."""
    for run in (7, 8, 8, 8, 7):
        names = metadata_of(export, tmp_path, {"run": run})
    assert names == ["profiler_metadata.json", "profiler_metadata_0.2.json"]


def test_a_link_in_the_place_of_info_is_not_followed(
    export: Callable[..., Manifest], tmp_path: Path
) -> None:
    """A capture whose info folder is a symbolic link is not saved, and nothing goes through it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "step_1-2_x").mkdir()
    (tmp_path / "step_1-2_x" / "info").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CaptureError):  # there is no manifest
        export(FakeRecording(FakeBackend()), None)
    assert list((tmp_path / "elsewhere").iterdir()) == []


class WatchedRecording(FakeRecording):
    """A recording that reads the manifest that a killed process would leave."""

    def save(self, path: Path) -> Saved:
        """Read the manifest."""
        (place,) = path.resolve().parent.parent.glob("rank_0.info.json")
        self.left = load_manifest(place)
        return super().save(path)


def test_a_process_killed_while_saving_leaves_a_manifest_that_says_so(
    export: Callable[[FakeRecording, float | None], Manifest],
) -> None:
    """The manifest exists before the trace, and says that saving has begun."""
    recording = WatchedRecording(FakeBackend())
    export(recording, None)
    assert not recording.left.complete
    assert "began and has not ended" in recording.left.reason


class InterruptedRecording(FakeRecording):
    """A recording whose save is interrupted by Ctrl-C."""

    def save(self, path: Path) -> Saved:
        """Write half of the file."""
        path.write_text("half")
        raise KeyboardInterrupt


def test_ctrl_c_while_saving_leaves_a_manifest_that_says_so(
    export: Callable[[FakeRecording, float | None], Manifest], tmp_path: Path
) -> None:
    """Ctrl-C on the saving thread propagates; no half file stays; the manifest has the reason."""
    with pytest.raises(KeyboardInterrupt):
        export(InterruptedRecording(FakeBackend()), None)
    (path,) = tmp_path.rglob("rank_0.info.json")
    assert load_manifest(path).reason == "saving was interrupted"
    names = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    assert names == ["profiler_metadata.json", "rank_0.info.json"]


class HangingRecording(FakeRecording):
    """A recording whose save hangs until the test releases it."""

    def __init__(self, backend: FakeBackend) -> None:
        super().__init__(backend)
        self.hangs, self.disk = threading.Event(), threading.Event()

    def save(self, path: Path) -> Saved:
        """Hang."""
        self.hangs.set()
        self.disk.wait()
        return super().save(path)


def test_a_capture_that_is_given_up_is_logged_once(tmp_path: Path) -> None:
    """A save that ends after it was given up changes nothing and logs nothing."""
    said, told = list[str](), list[object]()

    def attempt(doing: str, action: Callable[[], object]) -> Exception | None:
        try:
            action()
        except (DynprofError, OSError) as error:
            said.append(doing)
            return error
        return None

    exporter, layout = Exporter(attempt), Layout(tmp_path, 0, "host", 42)
    recordings = [HangingRecording(FakeBackend()) for _ in range(2)]
    for number, recording in enumerate(recordings):
        exporter.submit(
            Export(
                recording=recording,
                manifest=a_manifest(),
                folder=tmp_path / f"step_{number}",
                trace_name="t.json",
                layout=layout,
                least_free_mb=None,
                on_end=lambda *outcome: told.append(outcome),
            )
        )
    exporter.start()
    assert recordings[0].hangs.wait(patience_s())
    assert not exporter.wait(0)
    lost = exporter.abandon("on purpose")
    recordings[0].disk.set()
    exporter._thread.join(patience_s())
    assert not exporter._thread.is_alive()
    assert [export.folder.name for export in lost] == ["step_0", "step_1"]
    assert [load_manifest(export.manifest_path).reason for export in lost] == [
        "saving was given up: on purpose"
    ] * 2
    assert (said, told, exporter.busy) == ([], [], False)
    assert not recordings[1].hangs.is_set()
    assert not list(tmp_path.rglob("*t.json*"))


def test_the_manifest_of_a_whole_capture(
    export: Callable[[FakeRecording, float | None], Manifest], tmp_path: Path
) -> None:
    """The manifest has the sizes before and after compression; no other file is left."""
    manifest = export(FakeRecording(FakeBackend()), None)
    assert manifest.complete
    assert manifest.reason == ""
    trace = tmp_path / "step_1-2_x" / str(manifest.trace)
    assert manifest.trace_bytes == trace.stat().st_size
    assert json.loads(gzip.decompress(trace.read_bytes()))["metadata"] == {"run": 7}
    assert not list(tmp_path.rglob("*.saving"))
