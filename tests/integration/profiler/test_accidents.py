"""Accidents of scripts that use ``dynprof.profiler``: later profiles work, and nothing is lost."""

from __future__ import annotations

import errno
import gc
import json
import os
import stat
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.reading.trace import load_trace
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from dynprof.captures import exporter
from dynprof.captures.manifest import load_manifest
from dynprof.errors import CaptureError
from dynprof.profiler import (
    _ExperimentalConfig,
    analyse,
    closed_window,
    profile,
    schedule,
    tensorboard_trace_handler,
)
from dynprof.runtime.layout import host_name
from tests import processes, warm_interpreter
from tests.integration.running import operators, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.usefixtures("own_place")


def work(size: int = 4) -> None:
    """Run some operators."""
    torch.ones(size, size).mm(torch.ones(size, size))


def recorded(size: int = 4, **settings: Any) -> profile:
    """Return a profile that has recorded some operators."""
    with profile(**settings) as prof:
        work(size)
    return prof


def run(script: str, folder: Path, *, unloads: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a script in its own process; ``unloads`` is that of ``warm_interpreter.run``."""
    prelude = "import os, sys, threading, torch\nfrom pathlib import Path\n"
    prelude += "from dynprof.profiler import *\nfrom dynprof.profiler import _ExperimentalConfig\n"
    prelude += "def work(): torch.ones(4, 4).mm(torch.ones(4, 4))\n"
    text = prelude + textwrap.dedent(script)
    return warm_interpreter.run(text, folder, os.environ, unloads=unloads)


def read(path: Path) -> dict[str, Any]:
    """Return a trace."""
    trace: dict[str, Any] = json.loads(path.read_text())
    return trace


def test_a_failed_export_can_be_done_again(tmp_path: Path) -> None:
    """Another place works; folders, devices and pipes at the path are refused and stay."""
    prof = recorded(strict=True)
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("folder.json", "pipe.json"):
        with pytest.raises(CaptureError, match="not a regular file"):
            prof.export_chrome_trace(name)
    with pytest.raises(CaptureError, match="is not written: /proc/here: no such file"):
        prof.export_chrome_trace("/proc/here/trace.json")
    assert stat.S_ISFIFO((tmp_path / "pipe.json").stat().st_mode)
    prof.export_chrome_trace("fine.json")
    assert operators(read(tmp_path / "fine.json"), "aten::mm")


def test_one_profile_never_shows_anothers_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two profiles export to the same name, and the script changes its directory in between."""
    first, second = recorded(4, record_shapes=True), recorded(8, record_shapes=True)
    first.export_chrome_trace("same.json")
    second.export_chrome_trace("same.json")
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    first.export_chrome_trace("again.json")
    (operator,) = operators(read(tmp_path / "deeper" / "again.json"), "aten::mm")
    assert operator["args"]["Input Dims"][0] == [4, 4]


def test_a_discarded_profile_leaves_no_resources(tmp_path: Path) -> None:
    """A freed profile leaves no folder, descriptor or thread."""

    def once() -> None:
        settings = _ExperimentalConfig(record_op_args=True, host_sys=["cpu"], mstx=True)
        recorded(experimental_config=settings, on_trace_ready=lambda _: None)

    once()
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        once()
    gc.collect()
    more = len(list(Path("/proc/self/fd").iterdir())) - before
    assert more < 3  # a leak would be there three times; other threads have files too
    assert list(tmp_path.iterdir()) == []
    wait_for(
        "the samplers to end",
        lambda: None if any(t.name == "dynprof-host" for t in threading.enumerate()) else True,
    )


def test_arguments_of_operators_come_with_every_export(tmp_path: Path) -> None:
    """The arguments are there even if stacks are exported first."""
    settings = _ExperimentalConfig(record_op_args=True)
    prof = recorded(experimental_config=settings, with_stack=True)
    prof.export_stacks("stacks.txt")
    for name in ("one", "two"):
        prof.export_chrome_trace(f"{name}/t.pt.trace.json")
        assert read(tmp_path / name / "t.execution_trace.json")["nodes"]


def test_an_observer_that_fails_costs_its_own_profile_only() -> None:
    """An observer that fails to start costs its profile, with a warning; the next one starts."""

    class Failing:
        def start(self) -> None:
            raise ZeroDivisionError

        def stop(self) -> None:
            """Do nothing."""

    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        profile(execution_trace_observer=Failing()).start()
    assert recorded().events()


def test_a_thread_that_ends_in_its_profile(tmp_path: Path) -> None:
    """The next profile says so and starts, and the process ends successfully."""
    done = run(
        """
        thread = threading.Thread(target=lambda: profile().start())
        thread.start(); thread.join()
        with profile() as prof:
            work()
        print(len(prof.events()) > 0)
        """,
        tmp_path,
        unloads=True,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert "its thread has ended" in done.stderr


def test_a_profile_that_is_never_stopped_blocks_later_ones(tmp_path: Path) -> None:
    """No other profile can replace it, as a warning says; the process ends successfully."""
    done = run(
        """
        prof = profile(); prof.start(); del prof
        try:
            profile(strict=True).start()
        except Exception as error:
            print(error)
        """,
        tmp_path,
        unloads=True,
    )
    assert done.returncode == 0, done.stderr
    assert "another torch.profiler is active" in done.stdout
    assert "never stopped" in done.stderr


def test_a_session_that_is_never_stopped(tmp_path: Path) -> None:
    """The process ends successfully, and says that the recording is lost."""
    done = run(
        """
        import warnings; warnings.simplefilter("ignore")
        from dynprof import acl
        acl.init(); acl.prof.init("out"); acl.prof.start(acl.prof.Config())
        """,
        tmp_path,
        unloads=True,
    )
    assert done.returncode == 0, done.stderr
    assert "never stopped" in done.stderr


def test_an_exception_in_a_session_reaches_the_script(tmp_path: Path) -> None:
    """The session's recording is stopped and saved, and the exception propagates."""
    done = run(
        """
        import warnings; warnings.simplefilter("ignore")
        from dynprof import acl
        acl.init()
        try:
            with acl.prof.session("out"):
                acl.prof.start(acl.prof.Config())
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            print("passed")
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "passed\n"), done.stderr
    assert len(list((tmp_path / "out").glob("*.trace.json.gz"))) == 1


def test_a_process_that_is_killed_in_its_profile(tmp_path: Path) -> None:
    """Earlier cycles survive SIGKILL; the next run removes what the open one left."""
    script = """
    import signal
    from dynprof.runtime.safe_write import PrivateFolder
    with profile(
        experimental_config=_ExperimentalConfig(record_op_args=True),
        schedule=schedule(wait=0, warmup=0, active=1, repeat=2),
        on_trace_ready=tensorboard_trace_handler("log", analyse_flag=False),
    ) as prof:
        work()
        prof.step()
        work()
        if KILLED:
            PrivateFolder(Path("log/info/.HOST_1.rank0.x.saving"))
            os.kill(os.getpid(), signal.SIGKILL)
    """
    script = script.replace("HOST", host_name())
    run(script.replace("KILLED", "True"), tmp_path)
    (trace,) = (tmp_path / "log").glob("*.json")
    assert operators(read(trace), "aten::mm")
    (manifest,) = (tmp_path / "log" / "info").glob("*.info.json")
    assert load_manifest(manifest).complete
    (scratch,) = tmp_path.glob(".*.recording")
    done = run(script.replace("KILLED", "False"), tmp_path)
    assert f"removed {scratch}, which a killed process left unfinished" in done.stderr
    assert done.stderr.count("which a killed process left unfinished") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]
    assert not list((tmp_path / "log" / "info").glob(".*"))
    assert len(list((tmp_path / "log").glob("*.json"))) == 3


def test_a_profiler_begun_before_dynprof(tmp_path: Path) -> None:
    """A profiler that began before dynprof's import is recognised."""
    done = run(
        """
        caught = []
        def on_a_thread():
            try:
                profile(strict=True).start()
            except Exception as error:
                caught.append(str(error))
        with torch.profiler.profile():
            thread = threading.Thread(target=on_a_thread)
            thread.start(); thread.join()
            work()
        print(caught[0])
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "another torch.profiler is active" in done.stdout


def test_a_profiler_inside_a_profile_costs_the_outer_one(tmp_path: Path) -> None:
    """Where the script starts a torch.profiler inside a profile, a warning says what is lost."""
    done = run(
        """
        import warnings
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with profile(on_trace_ready=lambda _: None):
                with torch.profiler.profile() as inner:
                    work()
        assert any(event.name == "aten::mm" for event in inner.events())
        print(*(one.message for one in said))
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "what the window recorded is lost" in done.stdout


@pytest.mark.parametrize("threads", [False, True])
def test_a_child_forked_in_a_profile_has_profiles_of_its_own(tmp_path: Path, threads: bool) -> None:
    """A child that is forked inside a profile may open others: each has every operator once."""
    done = run(
        f"""
        config = torch.profiler._ExperimentalConfig(profile_all_threads={threads})
        def recorded():
            return profile(on_trace_ready=lambda _: None, experimental_config=config)
        with recorded() as prof:
            work()
            child = os.fork()
            if child == 0:
                for _ in range(2):
                    with recorded() as own:
                        work()
                    print([event.name for event in own.events()].count("aten::mm"), flush=True)
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        print([event.name for event in prof.events()].count("aten::mm"))
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1", "1"]


def test_a_child_can_profile_if_the_import_came_after_init(tmp_path: Path) -> None:
    """The order of imports does not matter to a child forked inside a profile."""
    script = """
        import os, sys
        import torch
        import dynprof as dp
        os.mkdir("config", 0o700)
        dp.init("config")
        from dynprof.profiler import profile
        with profile(on_trace_ready=lambda _: None):
            if (child := os.fork()) == 0:
                with profile(on_trace_ready=lambda _: None) as own:
                    torch.ones(2) + 1
                print([event.name for event in own.events()].count("aten::add"), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
        """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = processes.run(command, cwd=tmp_path)
    assert done.stdout.split() == ["1"], done.stderr


def test_a_child_leaves_a_profile_to_its_parent(tmp_path: Path) -> None:
    """The child ends as usual and saves nothing; the parent's profile is whole."""
    done = run(
        """
        prof = profile(on_trace_ready=tensorboard_trace_handler("log", analyse_flag=False))
        prof.start()
        child = os.fork()
        if child == 0:
            work()
            try:
                prof.stop()
            except RuntimeError:
                sys.exit(7)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        work()
        prof.stop()
        print(os.waitstatus_to_exitcode(status))
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout.split()[-1]) == (0, "0"), done.stderr
    assert "never stopped" not in done.stderr
    (path,) = (tmp_path / "log").glob("*.json")
    assert len(operators(read(path), "aten::mm")) == 1


def test_a_child_cannot_step_the_profile_of_its_parent(tmp_path: Path) -> None:
    """A step in a forked child warns, and the script continues."""
    done = run(
        """
        prof = profile(on_trace_ready=tensorboard_trace_handler("log", analyse_flag=False))
        prof.start()
        child = os.fork()
        if child == 0:
            prof.step()
            sys.exit(0)
        os.waitpid(child, 0)
        prof.stop()
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "only the parent process may step its profile" in done.stderr
    assert "another torch.profiler" not in done.stderr


def test_a_profile_of_a_worker_thread_that_fails_is_lost(tmp_path: Path) -> None:
    """A profile that a failed thread did not stop is lost, with a message."""
    done = run(
        """
        import threading
        def train():
            prof = profile(on_trace_ready=tensorboard_trace_handler("log"))
            prof.start()
            raise ValueError("NaN")
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "a profile was never stopped; it is lost" in done.stderr
    assert not list((tmp_path / "log").glob("*"))


def test_a_child_of_a_saving_process_ends_at_once(tmp_path: Path) -> None:
    """The save belongs to the parent: the child neither waits nor discards it."""
    SELF_TEST.begin()
    wait_for("the self-test", lambda: SELF_TEST.answer)
    done = run(
        """
        with profile(record_shapes=True, on_trace_ready=tensorboard_trace_handler(
                "log", async_mode=True, analyse_flag=False)):
            for _ in range(3_000):
                torch.ones(4).add(1)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout.split()[-1]) == (0, "0"), done.stderr
    (path,) = (tmp_path / "log" / "info").glob("*.info.json")
    assert load_manifest(path).complete


def test_an_exit_function_of_the_script_finds_the_traces_of_async_mode(tmp_path: Path) -> None:
    """What a script registered with ``atexit`` before runs once the traces are saved."""
    done = run(
        """
        import atexit, pathlib
        atexit.register(lambda: print([p.name for p in pathlib.Path("log").glob("*.trace.json")]))
        with profile(record_shapes=True, on_trace_ready=tensorboard_trace_handler(
                "log", async_mode=True, analyse_flag=False)):
            for _ in range(20_000):
                torch.ones(4).add(1)
        """,
        tmp_path,
    )
    (path,) = (tmp_path / "log").glob("*.trace.json")
    assert done.stdout.endswith(f"['{path.name}']\n")


def test_two_savers_in_one_folder(tmp_path: Path) -> None:
    """One saves on a thread, one in the script: both traces are saved."""
    with profile(
        record_shapes=True,
        on_trace_ready=tensorboard_trace_handler("log", async_mode=True, analyse_flag=False),
    ):
        for _ in range(3_000):
            torch.ones(4).add(1)
    recorded(on_trace_ready=tensorboard_trace_handler("log", analyse_flag=False))

    def both() -> bool | None:
        found = [load_manifest(p) for p in (tmp_path / "log" / "info").glob("*.info.json")]
        return True if [manifest.complete for manifest in found] == [True, True] else None

    wait_for("both", both)
    assert len(list((tmp_path / "log").glob("*.pt.trace.json"))) == 2


def test_stacks_cycle_after_cycle_while_another_thread_saves(tmp_path: Path) -> None:
    """The next window waits until torch has removed its profile function."""
    handler = tensorboard_trace_handler("log", async_mode=True, analyse_flag=False)
    with profile(
        with_stack=True, schedule=schedule(wait=0, warmup=0, active=1, repeat=3),
        on_trace_ready=handler,
    ) as prof:  # fmt: skip
        for _ in range(4):
            work()
            prof.step()
    folder = tmp_path / "log"
    wait_for("three", lambda: len(list(folder.glob("*.pt.trace.json"))) == 3 or None)


def test_a_step_on_another_thread_is_not_counted(tmp_path: Path) -> None:
    """A step of another thread warns and is not counted."""
    ready: list[int] = []
    with profile(
        schedule=schedule(wait=0, warmup=0, active=2, repeat=1),
        on_trace_ready=lambda prof: ready.append(prof.step_num),
    ) as prof:
        with pytest.warns(UserWarning, match="only the thread that started"):
            threaded(prof.step)
        assert prof.step_num == 0
        for _ in range(2):
            work()
            prof.step()
    assert ready == [2]


def threaded(action: Callable[[], None]) -> None:
    """Run some operators on another thread, and wait for it."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def test_a_callback_that_fails_leaves_a_profile_that_can_start() -> None:
    """With ``strict`` its exception reaches the script; the profile is stopped."""

    def fail(_: object) -> None:
        raise ZeroDivisionError

    prof = profile(on_trace_ready=fail, strict=True)
    prof.start()
    with pytest.raises(ZeroDivisionError):
        prof.stop()
    prof.on_trace_ready = None
    with prof:
        work()
    assert prof.events()


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        ("a", '{"x": NaN}', False),
        ("a", float("inf"), False),
        ("traceEvents", [{"x": 1}], True),
        ("distributedInfo", 3, True),
        ("a\udce9", "b", False),
    ],
)
def test_metadata_never_breaks_a_trace(tmp_path: Path, key: str, value: Any, kept: bool) -> None:
    """Values that are not JSON are left out; names that a trace uses itself are under metadata."""
    with profile() as prof:
        work()
        if kept:
            prof.add_metadata_json(key, value)
        else:
            with pytest.warns(UserWarning, match="left out"):
                prof.add_metadata_json(key, value)
    prof.export_chrome_trace("a.trace.json")
    trace = read(tmp_path / "a.trace.json")
    assert trace["metadata"] == ({key: value} if kept else {})
    assert len(load_trace(tmp_path / "a.trace.json").spans["start"]) > 0


def test_a_truncated_trace_is_named(tmp_path: Path) -> None:
    """The readable part is analysed."""
    recorded().export_chrome_trace("a.trace.json.gz")
    path = tmp_path / "a.trace.json.gz"
    path.write_bytes(path.read_bytes()[:-700])
    with pytest.warns(UserWarning, match="not complete"):
        analyse(tmp_path)
    (tmp_path / "b.trace.json").write_text("{}")
    with (
        pytest.warns(UserWarning, match="not complete"),
        pytest.raises(CaptureError, match=r"b\.trace"),
    ):
        analyse(tmp_path, strict=True)


def test_profiles_that_begin_and_end_while_another_begins(tmp_path: Path) -> None:
    """Other threads have their own profiles, which may end anywhere; no exception is raised."""
    script = """
    from dynprof.profiler.script_windows import ScriptWindows
    marks = _ExperimentalConfig(profiler_level=ProfilerLevel.Level_none, mstx=True)
    def one():
        return profile(experimental_config=marks, on_trace_ready=lambda _: None)
    kept, other, third = one(), one(), one()
    kept.start()
    other.start()
    whole = ScriptWindows.is_dead
    def meanwhile(windows):
        ScriptWindows.is_dead = whole
        other.stop()
        return windows.is_dead
    ScriptWindows.is_dead = property(meanwhile)
    third.start()
    third.stop()
    kept.stop()
    """
    done = run(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_export_keeps_the_file_of_another_process(tmp_path: Path) -> None:
    """The second process warns and writes another name; both exports are complete."""
    script = """
    with profile(with_stack=True) as prof:
        work()
    prof.export_chrome_trace("same.json")
    prof.export_chrome_trace("same.json")
    prof.export_stacks("same.log")
    Path("pid").write_text(str(os.getpid()))
    """
    first = run(script, tmp_path)
    names = ("same.json", "same.log")
    before = {name: (tmp_path / name).read_bytes() for name in names}
    second = run(script, tmp_path)
    own = f"same_{host_name()}_{(tmp_path / 'pid').read_text()}"
    assert "another process" not in first.stderr
    assert f"{own}.json, because another process wrote {tmp_path}/same.json" in second.stderr
    assert f"{own}.log, because another process wrote {tmp_path}/same.log" in second.stderr
    assert {path.stem for path in tmp_path.iterdir()} == {"same", own, "pid"}
    assert {name: (tmp_path / name).read_bytes() for name in names} == before
    assert read(tmp_path / f"{own}.json")["traceEvents"]
    assert (tmp_path / f"{own}.log").stat().st_size


def test_stderr_has_the_scripts_lines_and_none_of_kineto(tmp_path: Path) -> None:
    """The script's own stderr stays complete before, in and after profiles on the CPU."""
    script = """
    print("before", file=sys.stderr)
    for number in range(2):
        with profile(on_trace_ready=lambda prof: None):
            print("in", number, file=sys.stderr)
            os.write(2, b"by descriptor\\n")
            work()
    print("after", file=sys.stderr)
    """
    lines = ("before", "in 0", "by descriptor", "in 1", "by descriptor", "after")
    assert run(script, tmp_path).stderr.splitlines() == list(lines)


def test_ctrl_c_while_a_handler_saves_leaves_a_manifest_that_says_so(tmp_path: Path) -> None:
    """A script that catches it continues; no half file stays, and the next trace is saved."""
    done = run(
        """
        import signal, glob
        handler = tensorboard_trace_handler("result", analyse_flag=False)
        def interrupt():
            while not glob.glob("result/info/.*saving/*.json"):
                pass
            os.kill(os.getpid(), signal.SIGINT)
        def profiled(times):
            with profile(schedule=schedule(wait=0, warmup=0, active=1, repeat=1),
                         on_trace_ready=handler) as prof:
                for _ in range(times):
                    work()
                prof.step()
        threading.Thread(target=interrupt, daemon=True).start()
        try:
            profiled(3_000)
        except KeyboardInterrupt:
            print("interrupted")
        assert not glob.glob("result/info/.*saving")
        profiled(1)
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
    assert "is lost: saving was interrupted" in done.stderr
    reasons = {load_manifest(path).reason for path in tmp_path.glob("result/info/*.info.json")}
    assert reasons == {"saving was interrupted", ""}
    assert len(list(tmp_path.glob("result/*.trace.json"))) == 1


def test_temporary_files_of_a_killed_script_are_removed_by_the_next_one(
    tmp_path: Path,
) -> None:
    """A trace is written in the temporary folder first, which may be in memory."""
    (tmp_path / "temporary").mkdir()
    script = """
        import tempfile
        tempfile.tempdir = "temporary"
        with profile() as prof:
            work()
        prof.export_chrome_trace("trace.json")
        left = [name for name in os.listdir("temporary") if name.endswith(".recording")]
        assert len(left) == 1, left
        """
    killed = run(textwrap.dedent(script) + "os.kill(os.getpid(), 9)", tmp_path)
    assert killed.returncode == -9, killed.stderr
    assert len(list((tmp_path / "temporary").glob(".*.recording"))) == 1
    done = run(script, tmp_path)
    assert (done.returncode, "which a killed process left unfinished" in done.stderr) == (0, True)
    assert not list((tmp_path / "temporary").glob(".*.recording"))


def test_a_full_temporary_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names that folder, and the variable for another one."""
    prof = recorded(strict=True)
    monkeypatch.setattr(closed_window, "free_disk_mb", lambda _: 0.0)
    monkeypatch.setattr(exporter, "pack", fail_for_want_of_space)
    with pytest.raises(CaptureError, match=f"{tempfile.gettempdir()} is full.*; set TMPDIR"):
        prof.export_chrome_trace("trace.json")


def fail_for_want_of_space(*_: object, **__: object) -> None:
    """Raise the error of a write to a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
