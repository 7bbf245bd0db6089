"""Profiles that no script requested are saved where the vendor's raw data would be."""

from __future__ import annotations

import json
import os
import re
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.runs.one_trace import traces_in
from dynprof.captures.manifest import load_manifest
from tests import warm_interpreter
from tests.integration.running import operators

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytest.importorskip("torch", reason="torch is not installed")

PRELUDE = """
import gc, os, sys, threading, time, torch
from pathlib import Path
from dynprof.profiler import _KinetoProfile, profile, schedule, tensorboard_trace_handler

def work(size=4):
    torch.ones(size, size).mm(torch.ones(size, size))

def until(found):
    limit = time.monotonic() + 60
    while not found():
        assert time.monotonic() < limit
        time.sleep(0.01)

def traces():
    return sorted(Path().glob("*.pt.trace.json"))
"""
SAID = "the trace of a profile was not requested; it was saved as"


def run(folder: Path, script: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script that ends with a code."""
    place = folder / "place"
    place.mkdir()
    clean = {k: v for k, v in os.environ.items() if k != "ASCEND_WORK_PATH"}
    done = warm_interpreter.run(
        PRELUDE + textwrap.dedent(script), place, {**clean, **env}, unloads=False
    )
    assert done.returncode == code, done.stderr
    return done


def saved(folder: Path) -> list[dict[str, Any]]:
    """Return the traces in a folder, with names for TensorBoard."""
    paths = sorted(folder.glob("*.pt.trace.json"))
    return [json.loads(path.read_text()) for path in paths]


def test_at_the_end_of_the_process(tmp_path: Path) -> None:
    """A stopped profile leaves trace and manifest, and a message names the place."""
    done = run(tmp_path, "with profile(record_shapes=True): work(5)")
    (path,) = traces_in(tmp_path / "place")
    assert f"{SAID} {path} (" in done.stderr
    (operator,) = operators(json.loads(path.read_text()), "aten::mm")
    assert operator["args"]["Input Dims"][0] == [5, 5]
    (manifest,) = (tmp_path / "place" / "info").glob("*.info.json")
    assert load_manifest(manifest).trace == path.name


def test_ascend_work_path_is_the_folder_of_saved_profiles(tmp_path: Path) -> None:
    """``ASCEND_WORK_PATH`` works as for a handler without a folder; it may be a link."""
    (tmp_path / "work").mkdir()
    (tmp_path / "link").symlink_to("work")
    run(tmp_path, "with profile(): work()", ASCEND_WORK_PATH=str(tmp_path / "link"))
    assert len(saved(tmp_path / "work" / "profiling_data")) == 1
    assert not list((tmp_path / "place").iterdir())


@pytest.mark.parametrize(
    "asked",
    [
        "prof.key_averages()",
        "prof.events()",
        "prof.profiler",
        "prof.export_chrome_trace('mine.json')",
        "prof.export_stacks('mine.json')",
    ],
)
def test_requested_results_are_not_saved_again(tmp_path: Path, asked: str) -> None:
    """A script that requests results or a file gets them, and no other file."""
    done = run(tmp_path, f"with profile(with_stack=True) as prof: work()\n{asked}")
    assert SAID not in done.stderr
    assert not list((tmp_path / "place").glob("*.pt.trace.json"))
    assert not (tmp_path / "place" / "info").exists()


@pytest.mark.parametrize(
    ("export", "handler"),
    [
        ("export_chrome_trace('file/a.json')", "None"),
        ("export_stacks('file/a.log')", "lambda prof: prof.{}"),
        ("export_stacks('a.log')", "None"),
        ("export_memory_timeline('a.json')", "lambda prof: prof.{}"),
    ],
)
def test_a_trace_whose_export_failed_is_saved(tmp_path: Path, export: str, handler: str) -> None:
    """After a failed export the trace is in the usual folder, unless another export has it."""
    script = f"""
    Path("file").touch()
    with profile(with_stack={"file" in export}, on_trace_ready={handler.format(export)}) as prof:
        work(5)
    if {handler == "None"}:
        prof.{export}
    """
    done = run(tmp_path, script)
    (path,) = (tmp_path / "place").glob("*.pt.trace.json")
    call = export.partition("(")[0]
    assert f"{call}() failed with the trace of a profile; it was saved as {path} (" in done.stderr


def test_a_trace_that_was_exported_is_not_saved_when_another_export_fails(tmp_path: Path) -> None:
    """If an export of stacks fails, an exported trace is not saved again."""
    run(
        tmp_path,
        """
        with profile() as prof: work()
        prof.export_chrome_trace("mine.json")
        prof.export_stacks("mine.log")
        """,
    )
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["mine.json"]


@pytest.mark.parametrize(
    "given",
    [
        "on_trace_ready=lambda _: None",
        "execution_trace_observer=torch.profiler.ExecutionTraceObserver()",
    ],
)
def test_a_profile_with_a_handler_or_observer_is_not_saved(tmp_path: Path, given: str) -> None:
    """A handler that does nothing means that no result is wanted. So does an observer."""
    done = run(tmp_path, f"with profile({given}): work()")
    assert SAID not in done.stderr
    assert not list((tmp_path / "place").iterdir())


@pytest.mark.parametrize(("link", "async_mode"), [("linked", False), ("linked/info", True)])
def test_a_trace_that_a_handler_refused_to_write_through_a_link_is_saved(
    tmp_path: Path, link: str, async_mode: bool
) -> None:
    """tensorboard_trace_handler does not follow a link; the trace is in the usual folder."""
    script = f"""
    Path("elsewhere").mkdir()
    Path("{link}").parent.mkdir(exist_ok=True)
    Path("{link}").symlink_to(Path("elsewhere").absolute())
    with profile(on_trace_ready=tensorboard_trace_handler("linked", async_mode={async_mode})):
        work(5)
    """
    done = run(tmp_path, script)
    place = tmp_path / "place"
    assert f"{place}/{link} is a symbolic link, which is not followed" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((place / "elsewhere").iterdir()) == []
    assert len(saved(place)) == 1


@pytest.mark.parametrize(
    ("handler", "strict"),
    [
        ("lambda prof: 1 / 0", False),
        ("lambda prof: prof.export_chrome_trace('file/mine.json')", True),
        ("lambda prof: (prof.export_chrome_trace('mine.json'), 1 / 0)", False),
        ("tensorboard_trace_handler('file')", True),
        ("tensorboard_trace_handler('file', async_mode=True)", False),
        ("tensorboard_trace_handler('log')", False),
    ],
)
def test_a_trace_that_a_handler_did_not_save_is_saved(
    tmp_path: Path, handler: str, strict: bool
) -> None:
    """The trace of a failed handler is in the folder used without a handler."""
    script = f"""
    Path("file").touch()
    Path("log").mkdir()
    Path("log/info").touch()
    with profile(on_trace_ready={handler}, strict={strict}):
        work(5)
    """
    done = run(tmp_path, script, code=int(strict))
    said = "failed with the trace of a profile; it was saved as"
    (path,) = (tmp_path / "place").glob("*.pt.trace.json")
    assert f"{said} {path} (" in done.stderr
    (operator,) = operators(json.loads(path.read_text()), "aten::mm")
    assert operator["dur"] > 0


def test_each_cycle_that_a_handler_did_not_save_is_saved(tmp_path: Path) -> None:
    """Cycles for which the handler succeeded are not saved again."""
    script = """
    def ready(prof):
        if prof.step_num % 2:
            raise KeyError(prof.step_num)
    steps = schedule(wait=0, warmup=0, active=1, repeat=4)
    with profile(schedule=steps, on_trace_ready=ready) as prof:
        for size in range(1, 5):
            for _ in range(size):
                work()
            prof.step()
    """
    run(tmp_path, script)
    found = [operators(trace, "aten::mm") for trace in saved(tmp_path / "place")]
    assert [len(mm) for mm in found] == [1, 3]


@pytest.mark.parametrize("async_mode", [False, True])
def test_a_message_says_that_a_trace_is_lost(tmp_path: Path, async_mode: bool) -> None:
    """If the profiler cannot write a trace, a message says that it is lost."""
    script = f"""
    from dynprof.backends.torch.torch_recording import TorchRecording
    from dynprof.errors import BackendError

    def save(recording, path):
        raise BackendError("on purpose")

    TorchRecording.save = save
    with profile(on_trace_ready=tensorboard_trace_handler("log", async_mode={async_mode})):
        work()
    """
    done = run(tmp_path, script)
    assert re.search("the trace .*is lost: saving failed: on purpose", done.stderr)
    assert not list((tmp_path / "place").rglob("*.pt.trace.json"))


@pytest.mark.parametrize(
    "handler", ["lambda prof: 1 / 0", "lambda prof: prof.export_chrome_trace('file/mine.json')"]
)
def test_a_trace_that_a_handler_did_not_save_can_be_exported(tmp_path: Path, handler: str) -> None:
    """A script that exports the trace itself gets no other file."""
    script = f"""
    Path("file").touch()
    with profile(on_trace_ready={handler}) as prof:
        work()
    prof.export_chrome_trace("mine.json")
    """
    run(tmp_path, script)
    assert operators(json.loads((tmp_path / "place" / "mine.json").read_text()), "aten::mm")
    assert not list((tmp_path / "place").glob("*.pt.trace.json"))


def test_a_freed_profile_is_saved(tmp_path: Path) -> None:
    """The trace is saved when no object holds the profile any more."""
    script = """
    def train():
        with profile() as prof:
            work()
        assert not traces()
    train()
    until(traces)
    os._exit(3)
    """
    run(tmp_path, script, code=3)
    (trace,) = saved(tmp_path / "place")
    assert operators(trace, "aten::mm")


def test_an_exception_that_ends_the_training(tmp_path: Path) -> None:
    """The recording is saved, and the script's exception propagates."""
    done = run(tmp_path, "with profile() as prof:\n    work()\n    1 / 0", code=1)
    assert "ZeroDivisionError" in done.stderr
    assert len(saved(tmp_path / "place")) == 1


def test_cycles_of_a_schedule(tmp_path: Path) -> None:
    """Overwritten cycles are saved, up to ten; then a message says so."""
    script = """
    with profile(schedule=schedule(wait=0, warmup=0, active=1, repeat=0)) as prof:
        for size in range(1, 14):
            work(size)
            prof.step()
        """
    done = run(tmp_path, script)
    found = [operators(trace, "aten::mm") for trace in saved(tmp_path / "place")]
    assert [len(mm) for mm in found] == [1] * 10
    assert (
        done.stderr.count("of the traces that were not requested, only the first 10 are saved") == 1
    )


def test_no_cycle_is_saved_after_results_were_requested(tmp_path: Path) -> None:
    """A script that reads one cycle's results can request the others as well."""
    script = """
    with profile(schedule=schedule(wait=1, warmup=0, active=1, repeat=0)) as prof:
        for step in range(6):
            work()
            prof.step()
            if step == 1:
                prof.key_averages()
    """
    run(tmp_path, script)
    assert not list((tmp_path / "place").iterdir())


def test_several_profiles_on_several_threads(tmp_path: Path) -> None:
    """Each has its own trace, wherever it is freed, also in a garbage collection."""
    script = """
    def train(size):
        prof = profile()
        prof.itself = prof  # a circle, which a collection alone ends
        with prof:
            work(size)
    for size in (2, 3, 4):
        thread = threading.Thread(target=train, args=[size])
        thread.start()
        thread.join()
    gc.collect()
    until(lambda: len(traces()) == 3)
    """
    run(tmp_path, script)
    assert len(saved(tmp_path / "place")) == 3


def test_a_forked_child_leaves_saving_to_its_parent(tmp_path: Path) -> None:
    """There is one trace, the parent's, although the child frees its copy first."""
    script = """
    with profile() as prof:
        work()
    child = os.fork()
    if child == 0:
        del prof
        gc.collect()
        sys.exit(0)
    os.waitpid(child, 0)
    print(traces(), os.getpid())
    """
    done = run(tmp_path, script)
    before, pid = done.stdout.rsplit(maxsplit=1)
    assert before == "[]"
    (path,) = (tmp_path / "place").glob("*.pt.trace.json")
    assert f"_{pid}." in path.name


def test_a_kineto_profile_that_is_never_stopped(tmp_path: Path) -> None:
    """The end of the process stops and saves the profile, with a message."""
    done = run(tmp_path, "prof = _KinetoProfile(); prof.start(); work()")
    assert "a profile was never stopped" in done.stderr
    assert len(saved(tmp_path / "place")) == 1


@pytest.mark.parametrize(
    "how", ["", "on_trace_ready=tensorboard_trace_handler(analyse_flag=False)"]
)
def test_a_work_path_that_cannot_be_written_is_named(tmp_path: Path, how: str) -> None:
    """With an unusable ``ASCEND_WORK_PATH`` the trace is in the working directory."""
    (tmp_path / "file").write_text("")
    script = f"with profile({how}): work()"
    done = run(tmp_path, script, ASCEND_WORK_PATH=str(tmp_path / "file"))
    assert len(saved(tmp_path / "place")) == 1
    assert f"ASCEND_WORK_PATH cannot be used ({tmp_path}/file" in done.stderr
    assert f"the trace goes to the working directory, {tmp_path / 'place'}" in done.stderr


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A message says that the trace is lost, and the script ends as usual."""
    script = """
    os.mkdir("gone")
    os.chdir("gone")
    with profile():
        work()
        os.rmdir(os.getcwd())
    """
    done = run(tmp_path, script)
    assert "it is lost, because saving it in" in done.stderr


def test_a_childs_end_takes_no_files_of_its_parent(tmp_path: Path) -> None:
    """A profile may be exported again after a child that had a copy of it has ended."""
    script = """
    with profile() as prof:
        work()
    prof.export_chrome_trace("first.json")
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
    prof.export_chrome_trace("second.json")
    """
    run(tmp_path, script)
    place = tmp_path / "place"
    assert (place / "first.json").read_text() == (place / "second.json").read_text()


@pytest.mark.parametrize("kind", ["profile", "_KinetoProfile"])
def test_a_working_directory_that_is_gone(tmp_path: Path, kind: str) -> None:
    """Stopping gives neither an exception nor a warning, and exports work."""
    script = f"""
    import warnings
    warnings.simplefilter("error")
    prof = {kind}()
    prof.start()
    work()
    Path.cwd().rmdir()
    prof.stop()
    assert prof.key_averages()
    """
    run(tmp_path, script)


def test_ctrl_c_while_it_is_being_saved(tmp_path: Path) -> None:
    """The trace is lost with a message; no unfinished file stays; the process ends as usual."""
    script = """
    import signal
    from dynprof.backends.torch.torch_recording import TorchRecording

    def save(recording, path):
        path.write_text("half of it")
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait()

    TorchRecording.save = save
    with profile():
        work()
    """
    done = run(tmp_path, script)
    said = "is lost: saving was given up: the process was interrupted"
    assert (done.stderr.count(said), done.stderr.count("lost")) == (1, 1)
    assert "Traceback" not in done.stderr
    (manifest,) = (tmp_path / "place" / "info").glob("*.info.json")
    assert "interrupted" in load_manifest(manifest).reason
    assert not list((tmp_path / "place" / "info").glob(".*"))


@pytest.mark.parametrize("closing", ["detached", "inline"])
def test_saving_lets_the_training_continue(tmp_path: Path, closing: str) -> None:
    """Python runs while a trace is written; otherwise the trace is written at the end."""
    script = """
    def train(size):
        with profile():
            work(size)
    from dynprof.profiler.autosave import _autosaves
    train(2)
    until(lambda: _autosaves._deferred or len(traces()) == 1)
    first = _autosaves._deferred
    train(3)
    until(lambda: _autosaves._deferred is not first or len(traces()) == 2)
    print(len(traces()))
    """
    done = run(tmp_path, script, DYNPROF_CLOSE=closing)
    at_once = {"detached": 2, "inline": 0}[closing]
    assert done.stdout == f"{at_once}\n"
    assert len(saved(tmp_path / "place")) == {"detached": 2, "inline": 1}[closing]
    assert ("only the last is saved" in done.stderr) == (closing == "inline")
