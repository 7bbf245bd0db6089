"""What once crashed, hung or leaked in a job: each in a process of its own, which must end well.

``TUNABLES`` makes glibc give every freed block of some size back to the system at once, so that
whoever still writes there is killed instead of writing into somebody else's memory.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.captures.manifest import load_manifest
from tests import processes
from tests.integration.backends.test_two_profilers import JOB

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

TUNABLES = "glibc.malloc.mmap_threshold=2000:glibc.malloc.mmap_max=200000"
HELPERS = """
def idle():
    from dynprof.backends.kineto import KINETO  # which may be letting go of a window that was lost
    while dp.status().state != "idle" or KINETO.collecting:
        time.sleep(0.01)

def at_once(count, action):
    threads = [threading.Thread(target=action) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def run(folder: Path, script: str, closing: str = "detached", **env: str) -> str:
    """Run a script that must end well; return the log of dynprof."""
    text = JOB + HELPERS + textwrap.dedent(script)
    env = {**os.environ, "DYNPROF_CLOSE": closing, **env}
    done = processes.run([sys.executable, "-c", text], cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return "".join(path.read_text() for path in (folder / "prof_config" / "log").iterdir())


def manifests(folder: Path) -> list[Any]:
    """Return the manifests of a script's captures, in order of their requests."""
    found = (folder / "prof_config").rglob("*.info.json")
    return sorted(map(load_manifest, found), key=lambda manifest: manifest.request.number)


def events(folder: Path, manifest: Any) -> list[dict[str, Any]]:
    """Return the events of a capture's trace."""
    (path,) = (folder / "prof_config").rglob(manifest.trace)
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


@pytest.mark.parametrize("closing", ["detached", "inline"])
def test_threads_that_fork_at_once(tmp_path: Path, closing: str) -> None:
    """Before, in, and after windows, while events are collected too: every child ends well."""
    run(
        tmp_path,
        """
        import os, sys
        bad = []
        def fork(end=os._exit):
            for _ in range(10):
                if not (child := os.fork()):
                    work()
                    end(0)
                if code := os.waitpid(child, 0)[1]:
                    bad.append(code)
        forking = threading.Thread(target=at_once, args=(6, fork))
        forking.start()
        while forking.is_alive():
            window(active=3, with_stack=True)
            steps(5)
            fork(sys.exit)  # through exit(), which waits for libkineto's thread if it was there
        forking.join()
        idle()
        window(active=2)
        steps(3)
        idle()
        at_once(6, fork)
        assert not bad, bad
        """,
        closing,
    )
    assert manifests(tmp_path)[-1].complete


@pytest.mark.parametrize("closing", ["detached", "inline"])
@pytest.mark.parametrize("with_stack", [False, True])
def test_windows_beside_busy_threads(tmp_path: Path, closing: str, with_stack: bool) -> None:
    """Threads amid their operators, and their Python calls, when windows end write nowhere."""
    run(
        tmp_path,
        f"""
        stop = threading.Event()
        def deeper(depth):
            return deeper(depth - 1) if depth else work()
        def busy():
            while not stop.is_set():
                for _ in range(100):
                    deeper(5)
        threads = [threading.Thread(target=busy) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(25):
            window(active=1, with_stack={with_stack})
            time.sleep(0.002)
            while dp.status().state != "idle":
                dp.step()
                time.sleep(0.001)
        stop.set()
        for thread in threads:
            thread.join()
        """,
        closing,
        GLIBC_TUNABLES=TUNABLES,
    )
    assert sum(manifest.complete for manifest in manifests(tmp_path)) > 20


def test_an_operator_that_outlives_its_window(tmp_path: Path) -> None:
    """Until its thread has ended, no window records its thread: it would write into a past one."""
    run(
        tmp_path,
        """
        inside, leave = threading.Event(), threading.Event()
        def long_operator():
            with torch._C._profiler._RecordFunctionFast("long"):
                inside.set()
                leave.wait()
        def windows():
            window(active=3)
            steps(4)
            idle()
        thread = threading.Thread(target=long_operator)
        window(active=3)
        steps(1)
        thread.start()
        inside.wait()
        steps(3)
        idle()
        windows()
        leave.set()
        thread.join()
        windows()
        """,
        GLIBC_TUNABLES=TUNABLES,
    )
    first, second, third = manifests(tmp_path)
    assert [first.closing, third.closing] == ["detached", "detached"]
    assert "only the thread that opened the window is recorded: on thread " in second.closing
    assert all(manifest.complete for manifest in (first, second, third))
    unfinished = [e["name"] for e in events(tmp_path, first) if "finished" in e.get("args", {})]
    assert unfinished == ["long"]


def test_two_loaders_with_workers_begin_on_two_threads(tmp_path: Path) -> None:
    """After a window, two DataLoaders whose workers are forked at the same time do their work."""
    run(
        tmp_path,
        """
        from torch.utils.data import DataLoader
        window(active=2)
        steps(3)
        idle()
        def load():
            assert len(list(DataLoader(range(8), num_workers=2))) == 8
        for _ in range(3):
            at_once(2, load)
        """,
    )


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("stacks", [False, True])
def test_a_profiler_on_another_thread_in_a_window(
    tmp_path: Path, memory: bool, stacks: bool
) -> None:
    """It is whole, the window gives way before it begins, and nothing stays on any thread."""
    log = run(
        tmp_path,
        f"""
        import psutil
        window(active=10**7, profile_memory={memory}, with_stack={stacks})
        steps(3)
        running, done = threading.Event(), threading.Event()
        def elsewhere():
            with torch.profiler.profile() as mine:
                running.set()
                work()
                done.wait()
            assert any(event.name == "aten::add" for event in mine.events())
        thread = threading.Thread(target=elsewhere)
        thread.start()
        while not running.is_set():
            steps(1)
        steps(100)
        assert not torch.autograd._profiler_enabled()
        done.set()
        thread.join()
        steps(1)
        before = psutil.Process().memory_info().rss
        steps(5000)
        assert psutil.Process().memory_info().rss - before < 5_000_000
        idle()
        window(active=2)
        steps(3)
        """,
    )
    assert "early: the script started a profiler of its own" in log
    assert "refused" not in log
    assert manifests(tmp_path)[-1].complete


def test_a_thread_that_waits_for_the_profiling_one(tmp_path: Path) -> None:
    """A window bound to a thread that takes no step meanwhile is lost, and that does no harm."""
    log = run(
        tmp_path,
        """
        from dynprof.backends import kineto
        kineto.GIVE_WAY_S = 0.1
        window(active=1000, profile_memory=True)
        steps(3)
        elsewhere()
        steps(3)
        assert not torch.autograd._profiler_enabled()
        idle()
        window(active=2, profile_memory=True)
        while dp.status().state != "recording":
            steps(1)
        steps(3)
        """,
    )
    assert "the script started a torch.profiler of its own in the window" in log
    assert manifests(tmp_path)[-1].complete


@pytest.mark.parametrize("memory", [False, True])
def test_annotations_across_windows(tmp_path: Path, memory: bool) -> None:
    """Ranges entered in one window and left in a later one are cut off with the first."""
    run(
        tmp_path,
        f"""
        def annotated(label):
            annotation = torch.profiler.record_function(label)
            annotation.__enter__()
            return annotation
        original = torch.profiler.record_function.__enter__
        open_ones = []
        for number in range(6):
            window(active=30, profile_memory={memory})
            while dp.status().state != "recording":
                steps(1)
            for old in open_ones[:-1]:
                old.__exit__(None, None, None)
            open_ones = open_ones[-1:] + [annotated(f"epoch {{number}} {{n}}") for n in range(50)]
            at_once(2, lambda: open_ones.append(annotated("of another thread")))
            steps(40)
            idle()
        assert torch.profiler.record_function.__enter__ is original
        """,
        GLIBC_TUNABLES=TUNABLES,
    )
    found = manifests(tmp_path)
    assert [manifest.complete for manifest in found] == [True] * 6
    names = [event["name"] for event in events(tmp_path, found[2])]
    assert names.count("epoch 2 7") == 1
    assert not any(name.startswith("epoch 1") for name in names)


@pytest.mark.parametrize("memory", [False, True])
def test_the_legacy_profiler_in_a_window(tmp_path: Path, memory: bool) -> None:
    """Whatever profiler the script asks for, it gets."""
    log = run(
        tmp_path,
        f"""
        from torch.autograd import profiler_legacy
        window(active=1000, profile_memory={memory})
        steps(2)
        with profiler_legacy.profile() as mine:
            work()
        assert any(event.name == "aten::add" for event in mine.function_events)
        with torch.autograd.profiler.profile(use_cpu=True) as newer:
            work()
        steps(2)
        idle()
        window(active=2)
        steps(3)
        """,
    )
    assert "early: the script started a profiler of its own" in log
    assert manifests(tmp_path)[-1].complete


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("closing", ["detached", "inline"])
def test_steps_inside_a_backward_pass(tmp_path: Path, memory: bool, closing: str) -> None:
    """Windows of all threads move there; one of a thread waits for a step outside.

    So does one that torch collects in place: the operators around the step have not ended.
    """
    waits = memory or closing == "inline"
    log = run(
        tmp_path,
        f"""
        weight = torch.ones(4, 4, requires_grad=True)
        def in_backward(*before):
            loss = (weight @ weight).sum()
            loss.register_hook(lambda grad: any(action() for action in (*before, dp.step)) or None)
            loss.backward()
        for _ in range(3):
            in_backward(lambda: window(active=3, profile_memory={memory}))
            for _ in range(6):
                in_backward()
            assert (dp.status().state in ("waiting", "recording")) == {waits}, dp.status()
            if {waits}:
                steps(2)
                in_backward()
                steps(4)
            idle()
        """,
        closing,
    )
    assert [manifest.complete for manifest in manifests(tmp_path)] == [True] * 3
    assert "Traceback" not in log
    assert ("inside a backward pass" in log) == waits


def test_steps_of_several_threads(tmp_path: Path) -> None:
    """The steps that the manifest names are those in the trace, with all threads' operators."""
    run(
        tmp_path,
        """
        stop = threading.Event()
        def serve():
            while not stop.is_set():
                work()
                time.sleep(0.001)
                dp.step()
        threads = [threading.Thread(target=serve) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            window(active=12)
            time.sleep(0.2)
            idle()
        stop.set()
        for thread in threads:
            thread.join()
        """,
    )
    found = manifests(tmp_path)
    assert len(found) == 4
    for manifest in found:
        seen = events(tmp_path, manifest)
        steps = [int(e["name"][13:]) for e in seen if e["name"].startswith("ProfilerStep#")]
        assert sorted(steps) == list(range(manifest.steps.first, manifest.steps.last + 1))
        assert len(steps) == manifest.steps.recorded == 12
        assert any("several threads" in remark for remark in manifest.remarks)
        assert len({e["tid"] for e in seen if e.get("cat") == "cpu_op"}) > 1


def test_a_thread_for_each_request(tmp_path: Path) -> None:
    """A window outlives the thread that opened it, and counts each thread's one step."""
    run(
        tmp_path,
        """
        def request():
            work()
            dp.step()
        window_of = threading.Thread(target=lambda: window(active=5))
        window_of.start()
        window_of.join()
        for _ in range(9):
            at_once(1, request)
        """,
    )
    (manifest,) = manifests(tmp_path)
    assert manifest.complete
    seen = events(tmp_path, manifest)
    assert sum(event["name"].startswith("ProfilerStep#") for event in seen) == 5
    assert len({event["tid"] for event in seen if event["name"] == "aten::add"}) == 5


@pytest.mark.parametrize("stacks", [False, True])
def test_threads_that_end_with_a_window_of_their_own(tmp_path: Path, stacks: bool) -> None:
    """A window bound to a thread outlives it without harm, and is let go; the next one is whole."""
    log = run(
        tmp_path,
        f"""
        def short():
            window(active=10**6, profile_memory=True, with_stack={stacks})
            while dp.status().state != "recording":
                steps(1)
        for _ in range(2):
            at_once(1, short)
            work()
            steps(1)
            idle()
        at_once(1, short)
        """,
    )
    assert "the thread that it was opened on has ended" in log
    assert len(manifests(tmp_path)) == 3


def test_a_window_whose_thread_stays_away(tmp_path: Path) -> None:
    """Given up elsewhere, it keeps the next one waiting for a while only, and harms neither."""
    run(
        tmp_path,
        """
        from dynprof.windows import given_up
        given_up.WAIT_S = 0.2
        opened, again, over = threading.Event(), threading.Event(), threading.Event()
        def away():
            window(active=1000, profile_memory=True)
            steps(2)
            opened.set()
            again.wait()
            steps(2)
            assert not torch.autograd._profiler_enabled()
        thread = threading.Thread(target=away)
        thread.start()
        opened.wait()
        dp.stop()
        steps(1)
        window(active=2)
        while dp.status().state != "recording":
            steps(1)
        steps(1)
        again.set()
        thread.join()
        steps(3)
        idle()
        window(active=2)
        steps(3)
        """,
    )
    assert [manifest.complete for manifest in manifests(tmp_path)] == [False, True, True]


def test_memory_of_one_thread_among_several(tmp_path: Path) -> None:
    """Where only one thread can be recorded, the manifest names the steps that are there."""
    run(
        tmp_path,
        """
        turn = threading.Barrier(2)
        def others():
            for _ in range(12):
                turn.wait()
                dp.step()
                turn.wait()
        thread = threading.Thread(target=others)
        thread.start()
        window(active=4, profile_memory=True)
        for _ in range(12):
            turn.wait()
            turn.wait()
            steps(1)
        thread.join()
        """,
    )
    (manifest,) = manifests(tmp_path)
    seen = events(tmp_path, manifest)
    steps = sorted(int(e["name"][13:]) for e in seen if e["name"].startswith("ProfilerStep#"))
    assert len(steps) == manifest.steps.recorded == 4
    assert (manifest.steps.first, manifest.steps.last) == (steps[0], steps[-1])
    assert steps == [0, 2, 4, 6]
    assert f"the recorded steps are {', '.join(map(str, steps))}" in manifest.remarks


def test_little_address_space_closes_in_place(tmp_path: Path) -> None:
    """A thread that cannot get its memory would abort the process, so none is asked."""
    run(
        tmp_path,
        """
        import resource
        limit = 64 << 30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        window(active=2)
        steps(3)
        idle()
        """,
        closing="",
    )
    (manifest,) = manifests(tmp_path)
    assert "address space" in manifest.closing


CALLS = """
dynprof.files.layout.Layout.make_dir
dynprof.captures.exporter._claim
dynprof.captures.exporter.write_atomic
dynprof.captures.exporter.occupied
dynprof.captures.exporter.DiskGuard
dynprof.captures.exporter.pack
dynprof.captures.exporter.open_private
dynprof.captures.exporter._save_manifest
dynprof.captures.exporter.Exporter.submit
dynprof.captures.manifest.Manifest.save
dynprof.journal.journal.Journal.tell
dynprof.windows.loop.window_manifest
dynprof.windows.loop.Export
dynprof.windows.loop.window_dir_name
dynprof.windows.window.Window.end_step
dynprof.windows.window.Window.begin_step
dynprof.windows.window.Window.close
dynprof.windows.window.Window.release
dynprof.companions.base.Companions.start
dynprof.companions.base.Companions.stop
dynprof.companions.base.Companions.save
dynprof.companions.base.Companions.events
dynprof.companions.base.Companions.discard+dynprof.windows.window.Window.end_step
dynprof.backends.torch_recording.TorchRecording._drop+dynprof.captures.exporter._claim
dynprof.windows.loop.Loop._submit+dynprof.windows.window.Window.close
dynprof.backends.torch.TorchBackend.versions
dynprof.backends.torch.choose_close
dynprof.backends.torch.end_settings_thread
dynprof.backends.torch_recording.ANNOTATIONS.follow
dynprof.backends.torch_recording.ANNOTATIONS.end
dynprof.backends.torch_recording.COLLECTOR.begin
dynprof.backends.torch_recording.TorchRecording.when_rivalled
dynprof.backends.torch_recording.TorchRecording.begin_step
dynprof.backends.torch_recording.TorchRecording._gather
dynprof.backends.torch_recording.TorchRecording._take_off
dynprof.backends.torch_recording.TorchRecording.save
dynprof.backends.libtorch.DetachedClose.take_off
dynprof.backends.libtorch.Taken.write
dynprof.backends.kineto.KINETO.prepare
dynprof.backends.kineto.KINETO.start
dynprof.backends.kineto.KINETO.hand_over
torch.autograd.profiler.record_function.__enter__
torch.autograd.profiler.record_function.__exit__
torch.autograd.profiler._run_on_profiler_start
torch.autograd.profiler.profile._prepare_trace
torch.autograd.profiler.profile._start_trace
torch.profiler._KinetoProfile.add_metadata_json
"""
"""What is called between request and trace; each line is made to fail once, two of one together."""


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("closing", ["detached", "inline"])
def test_whatever_fails_gives_back_what_it_took(tmp_path: Path, closing: str, memory: bool) -> None:
    """After it the script's profiler has its turn at once, and the next window is whole."""
    log = run(
        tmp_path,
        f"""
        import pkgutil
        from dynprof.backends.kineto import KINETO
        from dynprof.backends.annotations import ANNOTATIONS
        def failing(name, failed):
            place, _, attribute = name.rpartition(".")
            owner = pkgutil.resolve_name(place)
            original = getattr(owner, attribute)
            def fail(*args, **kwargs):
                if name in failed:
                    return original(*args, **kwargs)
                failed.add(name)
                raise OSError(28, "No space left on device: " + name)
            setattr(owner, attribute, fail)
            return lambda: setattr(owner, attribute, original)
        for name in {CALLS.split()!r}:
            failed = set()
            undo = [failing(one, failed) for one in name.split("+")]
            for restore in (lambda: [one() for one in undo], lambda: None):
                window(active=2, warmup=1, profile_memory={memory}, with_stack=True)
                steps(5)
                idle()
                restore()
                assert failed.issuperset(name.split("+")) or {closing!r} == "inline", name
                KINETO.wait(30)
                assert not KINETO.collecting and not KINETO.has_window, name
                assert not torch.autograd._profiler_enabled(), name
                assert not torch.autograd.profiler._is_profiler_enabled, name
                assert not ANNOTATIONS._open, name
                profile()
        """,
        closing,
    )
    assert "another torch.profiler is active" not in log
    whole = [manifest.complete for manifest in manifests(tmp_path)]
    assert whole.count(True) >= len(CALLS.split())
