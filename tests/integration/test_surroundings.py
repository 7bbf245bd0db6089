"""Jobs with habits of their own: signals, streams, observers, modes; none may notice dynprof."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests import processes
from tests.integration.backends.test_nothing_hurts import events, manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

PYTHON_JOB = """
import json, os, signal, sys, threading, time
from pathlib import Path
import dynprof as dp
dp.init("prof_config")
def window(**settings):
    Path("asked.json").write_text(json.dumps({"activities": ["CPU"], **settings}))
    dp.start("asked.json")
def idle():
    while dp.status().state != "idle":
        time.sleep(0.001)
"""


def run_without_torch(folder: Path, script: str) -> str:
    """Run a script that loads no torch and must end well; return what it printed."""
    text = PYTHON_JOB + textwrap.dedent(script)
    done = processes.run([sys.executable, "-c", text], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_signal_that_is_waited_for_on_a_thread(tmp_path: Path) -> None:
    """A job that blocks SIGTERM after init(), to wait for it, is not ended by it."""
    run_without_torch(
        tmp_path,
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        got = []
        waiting = threading.Thread(target=lambda: got.append(signal.sigwait({signal.SIGTERM})))
        waiting.start()
        window(active=2, experimental_config={"host_sys": ["CPU"]})
        dp.step()
        os.kill(os.getpid(), signal.SIGTERM)
        waiting.join()
        assert got == [signal.SIGTERM]
        """,
    )


def test_more_windows_than_keys_of_thread_local_storage(tmp_path: Path) -> None:
    """VizTracer takes one of 1,024 for each tracer, and ends the process that has no more."""
    run_without_torch(
        tmp_path,
        """
        import resource
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for _ in range(1100):
            window(active=1)
            dp.step()
            idle()
        assert threading.active_count() <= threads
        assert len(os.listdir("/proc/self/fd")) <= files + 2
        """,
    )


def test_a_profile_function_for_new_threads(tmp_path: Path) -> None:
    """Where the script has one it stays, and the window is refused; else none is left behind."""
    run_without_torch(
        tmp_path,
        """
        window(active=1)
        dp.step()
        idle()
        assert threading.getprofile() is None
        hook = lambda frame, event, argument: None
        threading.setprofile(hook)
        window(active=1)
        assert "threading.setprofile" in dp.status().edits[-1].text, dp.status()
        assert threading.getprofile() is hook
        """,
    )


def test_with_stack_leaves_new_threads_their_profile_function(tmp_path: Path) -> None:
    """Torch would take the place of the script's own on every thread, for good."""
    log = run(
        tmp_path,
        """
        threading.setprofile(lambda frame, event, argument: None)
        window(active=1, with_stack=True)
        steps(2)
        """,
    )
    assert "with_stack would take the place of the job's own sys.setprofile()" in log


def test_what_a_signal_handler_raises_reaches_the_script(tmp_path: Path) -> None:
    """Also while a window opens or closes; the script may go on, and the next window is whole."""
    run(
        tmp_path,
        """
        import signal
        from dynprof.windows.window import Window
        class Preempted(Exception):
            pass
        def handler(number, frame):
            signal.signal(number, signal.SIG_DFL)
            raise Preempted
        for name in ("open", "begin_step", "close"):
            whole = getattr(Window, name)
            def interrupted(self, *args, whole=whole, **settings):
                result = whole(self, *args, **settings)
                signal.raise_signal(signal.SIGUSR1)
                return result
            signal.signal(signal.SIGUSR1, handler)
            setattr(Window, name, interrupted)
            try:
                window(active=1)
                steps(3)
            except Preempted:
                pass
            else:
                raise AssertionError(name)
            setattr(Window, name, whole)
            steps(3)
            idle()
            window(active=2)
            steps(3)
            idle()
            profile()
        """,
    )
    found = [manifest.complete for manifest in manifests(tmp_path) if manifest.trace]
    assert found == [True] * 3


def test_a_signal_handler_that_asks_for_the_status(tmp_path: Path) -> None:
    """Also where the thread that it interrupts is just noting something there."""
    run(
        tmp_path,
        """
        import dataclasses, signal
        real = dataclasses.replace
        def replace(*args, **settings):
            if threading.current_thread() is not threading.main_thread():
                return real(*args, **settings)
            dataclasses.replace = real
            signal.raise_signal(signal.SIGUSR1)
            return real(*args, **settings)
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(dp.status()))
        window(active=1)
        dataclasses.replace = replace
        steps(2)
        assert seen
        """,
    )


@pytest.mark.parametrize("stderr", ["a pipe nobody reads", "closed", "full"])
def test_a_standard_error_that_is_gone(tmp_path: Path, stderr: str) -> None:
    """The end of the process, which would say that it waits, saves its capture all the same."""
    run(
        tmp_path,
        f"""
        import os, sys
        from dynprof.session import shutdown as ending
        from dynprof.backends.torch_recording import TorchRecording
        ending.QUIET_S = 0.0
        saved, go, real = ending.say, threading.Event(), TorchRecording.save
        def say(text):
            go.set()
            saved(text)
        def save(self, path):
            go.wait()
            return real(self, path)
        ending.say, TorchRecording.save = say, save
        window(active=2)
        steps(3)
        stderr = {stderr!r}
        reader, writer = os.pipe()
        os.close(reader)
        if stderr == "closed":
            sys.stderr.close()
        else:
            os.dup2(writer if "pipe" in stderr else os.open("/dev/full", os.O_WRONLY), 2)
        dp.shutdown()
        os._exit(0)  # Python itself tells by its exit code that it could not write
        """,
    )
    assert manifests(tmp_path)[0].complete


@pytest.mark.parametrize("first", ["the script", "dynprof"])
def test_the_scripts_execution_trace_observer(tmp_path: Path, first: str) -> None:
    """A process has one, and torch crashes over a second: it is the script's, and whole."""
    run(
        tmp_path,
        f"""
        import json
        from torch.profiler import ExecutionTraceObserver
        def register():
            mine = ExecutionTraceObserver().register_callback("mine.json")
            mine.start()
            return mine
        asked = {{"active": 4, "experimental_config": {{"record_op_args": True}}}}
        if {first!r} == "the script":
            mine = register()
            window(**asked)
        else:
            window(**asked)
            steps(1)
            mine = register()
        torch.ones(2).sub(1)
        steps(5)
        idle()
        torch.ones(2).mul(2)
        mine.stop()
        mine.unregister_callback()
        names = [node["name"] for node in json.load(open("mine.json"))["nodes"]]
        assert {{"aten::sub", "aten::mul"}} <= set(names), names
        window(active=1, experimental_config={{"record_op_args": True}})
        steps(2)
        idle()
        """,
    )
    disturbed, after = manifests(tmp_path)
    assert "the script has an ExecutionTraceObserver of its own" in str(disturbed.lost)
    assert (disturbed.complete, after.complete, after.lost) == (True, True, ())


def test_a_profiler_that_another_thread_cannot_stop(tmp_path: Path) -> None:
    """Torch only warns of it, and goes on; so does dynprof, and takes no session from it."""
    log = run(
        tmp_path,
        """
        mine = torch.profiler.profile()
        began, end = threading.Event(), threading.Event()
        found = []
        def record():
            mine.start()
            work()
            began.set()
            end.wait()
            mine.stop()
            found.extend(event.name for event in mine.events())
        recording = threading.Thread(target=record)
        recording.start()
        began.wait()
        stopping = threading.Thread(target=lambda: mine.profiler.__exit__(None, None, None))
        stopping.start()
        stopping.join()
        window(active=1)
        steps(3)
        end.set()
        recording.join()
        assert "aten::add" in found, found
        """,
    )
    assert "another torch.profiler is active in this process" in log


def test_a_profiler_of_all_threads_whose_own_has_ended(tmp_path: Path) -> None:
    """It is still on, and the script's."""
    log = run(
        tmp_path,
        """
        from torch._C._profiler import _ExperimentalConfig
        everywhere = _ExperimentalConfig(profile_all_threads=True)
        mine = torch.profiler.profile(experimental_config=everywhere)
        at_once(1, mine.start)
        work()
        window(active=1)
        steps(3)
        mine.stop()
        assert any(event.name == "aten::add" for event in mine.events())
        window(active=1)
        steps(3)
        idle()
        """,
    )
    assert "another torch.profiler is active in this process" in log
    assert [manifest.complete for manifest in manifests(tmp_path)] == [True]


@pytest.mark.parametrize("closing", ["detached", "inline"])
def test_a_trace_whose_end_cannot_be_written(tmp_path: Path, closing: str) -> None:
    """Libkineto does not notice; no torn trace is taken for a whole one."""
    log = run(
        tmp_path,
        """
        import resource
        steps(3)
        window(active=3)
        steps(4)
        idle()
        dp.shutdown()
        from tests.integration.backends.test_nothing_hurts import manifests
        size = manifests(Path.cwd())[0].trace_bytes_raw
        dp.init("prof_config")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 20, resource.RLIM_INFINITY))
        window(active=3)
        steps(4)
        idle()
        """,
        closing,
        PYTHONPATH=str(processes.ROOT),
    )
    assert "libkineto could not write the whole trace" in log
    assert len(list(tmp_path.rglob("*.gz"))) == 1


def test_modes_of_the_script_do_not_see_the_marks_of_steps(tmp_path: Path) -> None:
    """A mode that counts operators, or forbids what it does not know, sees the script's alone."""
    run(
        tmp_path,
        """
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode
        seen = []
        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                seen.append(str(function))
                return function(*args, **(kwargs or {}))
        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.append(str(function))
                return function(*args, **(kwargs or {}))
        with Functions(), Operators():
            window(active=3)
            steps(5)
        idle()
        assert seen and not [name for name in seen if "record_function" in name], seen
        """,
    )
    (manifest,) = manifests(tmp_path)
    marks = [e for e in events(tmp_path, manifest) if e["name"].startswith("ProfilerStep#")]
    assert len({mark["name"] for mark in marks}) == 3


def test_a_step_inside_compiled_code(tmp_path: Path) -> None:
    """It breaks the graph there, once; it is not compiled anew for each number of a step."""
    run(
        tmp_path,
        """
        from torch._dynamo.utils import counters
        @torch.compile(backend="eager")
        def train(x):
            y = x + 1
            dp.step()
            return y * 2
        for _ in range(12):
            train(torch.ones(3))
        assert counters["frames"]["total"] < 6, counters
        assert dp.status().step == 12
        window(active=3)
        for _ in range(4):
            train(torch.ones(3))
        idle()
        """,
    )
    assert manifests(tmp_path)[0].complete


def test_a_job_that_ignores_the_ends_of_its_children(tmp_path: Path) -> None:
    """It leaves self-test and analysis no exit code, which is then 0 whatever became of them."""
    run(
        tmp_path,
        """
        import signal
        dp.shutdown()
        from dynprof.backends import selftest
        selftest.command = lambda *_, **__: ["/bin/false"]
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        assert selftest.ask_fresh_interpreter().answer == (
            "its self-test ended with code 0: no words"
        )
        from dynprof.captures.analysis_start import StartedAnalysis
        Path("a.trace.json").write_text("{}")
        assert "is no trace" in StartedAnalysis.begin(Path("a.trace.json")).outcome(wait=True)
        """,
    )
