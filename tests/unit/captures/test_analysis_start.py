"""Analyses during the training: one at a time, each result written down."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from dynprof.captures import analysis_start
from dynprof.captures.analysis_start import SUCCEEDED, Analyses, analyse_now, begin_analysis
from dynprof.captures.manifest import SILENT, load_manifest
from dynprof.errors import CaptureError
from tests import processes
from tests.unit.analysis.vendor_files.captured import captured

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Notes:
    """A journal for tests to read."""

    lines: list[str] = field(default_factory=list)

    def info(self, text: str) -> None:
        """Keep the line."""
        self.lines.append(text)

    warning = info


@dataclass
class Fake:
    """An analysis whose end the test decides."""

    trace: str
    more: tuple[str, ...] = ()
    ended: str | None = None

    def output(self) -> str | None:
        """Return the output that the test has set."""
        return self.ended


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    """Start nothing; return the analyses that would have started."""
    found: list[Fake] = []

    def begin(trace: str, *more: str) -> Fake:
        found.append(Fake(trace, more))
        return found[-1]

    monkeypatch.setattr(analysis_start, "begin_analysis", begin)
    return found


def test_analyses_run_one_at_a_time(begun: list[Fake]) -> None:
    """The next starts when the previous one has ended. The log has the results and the reasons."""
    notes = Notes()
    analyses = Analyses(notes)  # type: ignore[arg-type]
    for name in ("a", "b", "c"):
        analyses.begin(f"there/window/{name}", (), 7, "window/info/rank_0.info.json")
    analyses.update()
    assert [one.trace for one in begun] == ["there/window/a"]
    begun[0].ended = "analysed"
    analyses.update()
    begun[1].ended = "no room"
    analyses.update()
    assert [one.trace[-1] for one in begun] == ["a", "b", "c"]
    assert notes.lines == [
        "request 7: analysed window/a", "request 7: window/b could not be analysed: no room",
    ]  # fmt: skip


def test_the_log_names_files_that_an_analysis_left_out(begun: list[Fake]) -> None:
    """Requested files follow the line on the analysis with a reason, then a count.

    The manifest names those. No other output of the process follows.
    """
    notes = Notes()
    analyses = Analyses(notes)  # type: ignore[arg-type]
    analyses.begin("there/window/a", (), 7, "window/info/rank_0.info.json")
    begun[
        0
    ].ended = (
        f"a warning\nnot written: l2_cache.csv, no device worked\n11 files have {SILENT}\nanalysed"
    )
    analyses.update()
    assert notes.lines == [
        "request 7: analysed window/a\nnot written: l2_cache.csv, no device worked\n"
        "11 files have nothing to say here; window/info/rank_0.info.json names them"
    ]


def test_the_manifest_names_files_that_an_analysis_left_out(tmp_path: Path) -> None:
    """A real analysis adds each missing file and the reason to the manifest.

    The job's later measurements are added as well.
    """
    before = captured(tmp_path, [{"ph": "X", "name": "a", "ts": 0, "dur": 1, "pid": 1, "tid": 1}])
    assert before.manifest is not None
    analyse_now(before.path, ())
    path = tmp_path / "info" / "rank_0.info.json"
    assert load_manifest(path).left_out["kernel_details.csv"] == "no device worked"
    found = before.manifest.read_back(path)
    assert found is not None
    assert found.with_costs(step_after_ms=3.0).left_out == load_manifest(path).left_out


def test_the_end_of_the_job_begins_the_rest(begun: list[Fake]) -> None:
    """Analyses continue after the job one by one: a hundred at once would use all memory."""
    analyses = Analyses(Notes())  # type: ignore[arg-type]
    for name in ("a", "b", "c"):
        analyses.begin(name, (), 7, "info/rank_0.info.json")
    analyses.end()
    assert [(one.trace, one.more) for one in begun] == [("a", ()), ("b", ("c",))]


def test_analyses_continue_after_one_fails(tmp_path: Path) -> None:
    """Each failed one is named."""
    paths = [tmp_path / "a.trace.json", tmp_path / "b.trace.json"]
    for path in paths:
        path.write_text("{}")
    began = begin_analysis(paths[0], str(paths[1]))
    began.why_failed(SUCCEEDED, wait=True)
    with pytest.raises(CaptureError, match=r"b\.trace\.json is not a trace"):
        analyse_now(paths[0], (str(paths[1]),))


def test_a_failed_analysis_has_a_reason(tmp_path: Path) -> None:
    """The reason is the unreadable file's; a waiting caller gets it as well."""
    path = tmp_path / "a.trace.json"
    path.write_text("{}")
    reason = begin_analysis(path).why_failed(SUCCEEDED, wait=True)
    assert reason is not None
    assert "is not a trace: it has no traceEvents" in reason
    with pytest.raises(CaptureError, match="no traceEvents"):
        analyse_now(path, ())


def test_a_running_analysis_is_kept_without_references(tmp_path: Path) -> None:
    """A session or script may drop it; it stays until it has ended, without a warning."""
    path = tmp_path / "a.trace.json"
    path.write_text("{}")
    kept = weakref.ref(begin_analysis(path))
    gc.collect()
    still = kept()
    assert still is not None
    still.why_failed(SUCCEEDED, wait=True)
    del still
    gc.collect()
    assert kept() is None


def test_an_analysis_that_outlives_the_process_gives_no_warning(tmp_path: Path) -> None:
    """This also holds if Python reports unclosed files at the end."""
    script = """
from pathlib import Path
from dynprof.captures.analysis_start import begin_analysis
begin_analysis(Path("a.trace.json"))
"""
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", script]
    done = processes.run(command, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_analysis_that_cannot_start_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The analysis' output file is closed, and the caller gets the reason."""

    def fails(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fails)
    with pytest.raises(BlockingIOError) as caught:
        begin_analysis(tmp_path / "a.trace.json")
    words = caught.traceback[2].frame.f_locals["words"]
    assert words.closed
