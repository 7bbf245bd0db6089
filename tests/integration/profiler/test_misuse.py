"""Every misuse of ``dynprof.profiler`` raises or warns, in words; never both, never neither."""

from __future__ import annotations

import json
import re
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.errors import BackendError, CaptureError
from dynprof.profiler import (
    ProfilerAction,
    ProfilerActivity,
    _ExperimentalConfig,
    _KinetoProfile,
    analyse,
    handlers,
    profile,
    schedule,
    tensorboard_trace_handler,
)
from dynprof.profiler.script_windows import ScriptWindows
from tests.integration.running import PYTHON, RunningJob

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.usefixtures("own_place")

if TYPE_CHECKING:
    from collections.abc import Callable


def some(value: Any) -> Any:
    """Return a value of a type that checkers would refuse."""
    return value


def work() -> None:
    """Do something that is recorded."""
    torch.ones(4, 4).mm(torch.ones(4, 4))


def recorded(**settings: Any) -> profile:
    """Return a profile that has recorded something."""
    with profile(**settings) as prof:
        work()
    return prof


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: profile(activities=[]), ValueError, "=\\[\\] is not allowed; write a list"),
        (lambda: profile(activities=["TPU"]), ValueError, "'TPU' is not allowed; write a list"),
        (lambda: profile(activities=some(3)), ValueError, "activities=3 is not allowed"),
        (lambda: profile(activities=some("CPU")), ValueError, "='CPU' is not allowed; write a l"),
        (lambda: profile(experimental_config=5), ValueError, "=5 is not allowed; write an _Exp"),
        (lambda: profile(record_shapes=some("yes")), ValueError, "='yes' .*; write True or False"),
        (lambda: profile(backend="vtune"), ValueError, "backend='vtune' .*; write 'auto', 'torch'"),
        (lambda: profile(schedule=lambda _: None), ValueError, "schedule returned None"),
        (lambda: some(_KinetoProfile)(schedule=schedule(wait=0, active=1)), TypeError, "schedule"),
        (lambda: profile().stop(), RuntimeError, "not running"),
        (lambda: profile().export_chrome_trace("a.json"), RuntimeError, "nothing was recorded"),
        (lambda: profile().key_averages(), RuntimeError, "nothing was recorded"),
        (lambda: recorded().export_stacks("a"), RuntimeError, "with_stack=True"),
        (lambda: recorded().export_stacks("a", "self_time"), ValueError, "self_time"),
        (lambda: tensorboard_trace_handler(worker_name="a/b"), ValueError, "worker_name"),
        (lambda: analyse("."), CaptureError, "holds no trace"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    wrong: Callable[[], object], error: type[Exception], words: str
) -> None:
    """It raises, saying what was wrong, and warns of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error, match=words):
            wrong()


@pytest.mark.parametrize(
    ("questionable", "words"),
    [
        (lambda: profile(schedule=some(3)), "schedule=3 cannot be called"),
        (lambda: profile(on_trace_ready=some("log")), "on_trace_ready='log' cannot be called"),
        (lambda: profile(use_cuda=False), "use_cuda is deprecated"),
        (lambda: profile(acc_events=True), "acc_events=True has no effect"),
        (lambda: profile().step(), "step\\(\\) has no effect"),
        (lambda: recorded().step(), "step\\(\\) has no effect"),
        (lambda: recorded().add_metadata("late", "x"), "after the end"),
        (lambda: tensorboard_trace_handler(analyse_flag=some(1)), "analyse_flag=1 is no bool"),
        (lambda: tensorboard_trace_handler(async_mode=some(None)), "async_mode=None is no bool"),
        (lambda: profile().add_metadata("key", some(3)), "no string"),
        (lambda: profile().add_metadata("key", "x" * 4097), "more than 4096"),
        (lambda: profile().add_metadata_json("key", "{torn"), "no JSON"),
        (lambda: profile().add_metadata_json("key", {1, 2}), "no JSON"),
        (lambda: _ExperimentalConfig(profiler_level="Level9"), "profiler_level='Level9'"),
        (lambda: _ExperimentalConfig(l2_cache=some("yes")), "l2_cache='yes'"),
        (lambda: _ExperimentalConfig(aic_metrics="L2Cache"), "needs Level1"),
        (lambda: _ExperimentalConfig(op_attr=True), "needs ExportType.Db"),
        (lambda: _ExperimentalConfig(gc_detect_threshold=-1), "gc_detect_threshold=-1"),
        (lambda: _ExperimentalConfig(export_type="xml"), "'text' is taken"),
        (lambda: _ExperimentalConfig(export_type=[]), "'text' is taken"),
        (lambda: _ExperimentalConfig(host_sys=["GPU"]), "host_sys"),
        (lambda: profile(activities=[ProfilerActivity.CUDA]), "CUDA is left out"),
        (lambda: _ExperimentalConfig(profiler_level="Level_none"), "mstx is switched on"),
        (lambda: profile(with_modules=True), "with_modules: this sees TorchScript models only"),
        (lambda: _ExperimentalConfig(mstx_domain_include=["a"]), "needs mstx=True"),
        (
            lambda: _ExperimentalConfig(
                mstx=True, mstx_domain_include=["a"], mstx_domain_exclude=["b"]
            ),
            "mstx_domain_exclude has no effect",
        ),
        (
            lambda: _ExperimentalConfig(
                profiler_level="Level_none", msprof_tx=True, export_type="db"
            ),
            "Text is taken",
        ),
        (
            lambda: profile(experimental_config=_ExperimentalConfig(l2_cache=True)),
            "l2_cache: has no effect",
        ),
    ],
)
def test_what_may_be_meant_goes_on_with_one_warning(
    questionable: Callable[[], object], words: str
) -> None:
    """A doubtful argument or call gives one warning at the script's line, and no exception."""
    with pytest.warns(UserWarning, match=words) as caught:
        questionable()
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_the_document_allows_no_symlink(tmp_path: Path) -> None:
    """``export_chrome_trace`` refuses a symbolic link in the place of its file."""
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(BackendError, match="symbolic link"):
        recorded().export_chrome_trace("link.json")


def test_with_a_handler_export_has_no_effect(tmp_path: Path) -> None:
    """With a handler set, ``export_chrome_trace`` warns and writes no file."""
    prof = recorded(on_trace_ready=tensorboard_trace_handler("log"))
    with pytest.warns(UserWarning, match="tensorboard_trace_handler writes it"):
        prof.export_chrome_trace("trace.json")
    assert not (tmp_path / "trace.json").exists()


def test_two_at_once_are_refused() -> None:
    """A second profile, ours or torch's, cannot start in the first, and the first goes on."""
    active = re.escape("another torch.profiler is active")
    with profile() as first:
        with pytest.raises(BackendError, match=active):
            profile().start()
        with pytest.raises(RuntimeError, match="running already"):
            first.start()
        work()
    assert any(event.name == "aten::mm" for event in first.events())
    with torch.profiler.profile(), pytest.raises(BackendError, match=active):
        profile().start()


def test_only_its_thread_may_stop_it() -> None:
    """Torch cannot be stopped elsewhere; the other thread is told, and nothing breaks."""
    caught: list[str] = []
    prof = profile()
    prof.start()

    def stop() -> None:
        try:
            prof.stop()
        except RuntimeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()
    assert "only the thread that started the profiler may: MainThread" in caught[0]
    work()
    prof.stop()
    assert prof.events()


@pytest.mark.parametrize(
    "actions",
    [
        [ProfilerAction.RECORD, ProfilerAction.NONE],
        [ProfilerAction.WARMUP, ProfilerAction.NONE],
        [ProfilerAction.RECORD, ProfilerAction.WARMUP, ProfilerAction.NONE],
    ],
)
def test_a_schedule_that_does_not_save(actions: list[ProfilerAction]) -> None:
    """A schedule that ends a recording without saving warns, and calls no handler."""
    ready: list[object] = []
    with profile(schedule=lambda step: actions[min(step, len(actions) - 1)],
                 on_trace_ready=ready.append) as prof:  # fmt: skip
        for step, action in enumerate(actions[1:]):
            with pytest.warns(UserWarning, match=f"{actions[step].name} is followed by"):
                prof.step()
            assert prof.current_action is action
    assert ready == []
    assert recorded().events()


@pytest.mark.parametrize("call", ["step", "stop"])
def test_a_callback_that_ends_a_step_or_all_of_its_profile(call: str) -> None:
    """Once the profile has stopped, nothing is recorded any more, and another one may begin."""
    with profile(schedule=schedule(wait=0, active=2, repeat=0),
                 on_trace_ready=lambda prof: getattr(prof, call)()) as prof:  # fmt: skip
        for _ in range(2 if call == "stop" else 3):
            work()
            prof.step()
    assert prof._windows.window is None
    assert recorded().events()


@pytest.mark.parametrize("wrong", [None, ZeroDivisionError])
def test_a_schedule_that_fails_does_not_stop_the_loop(
    tmp_path: Path, wrong: type[Exception] | None
) -> None:
    """Its step is not recorded, those before and after are; where it is strict, it raises."""
    right = schedule(wait=0, active=1, repeat=0)

    def failing(step: int) -> Any:
        if step != 2:
            return right(step)
        if wrong:
            raise wrong
        return None

    def train(*, strict: bool) -> None:
        save = tensorboard_trace_handler("log", analyse_flag=False)
        with profile(schedule=failing, on_trace_ready=save, strict=strict) as prof:
            for _ in range(4):
                work()
                prof.step()

    with pytest.warns(UserWarning, match="training goes on"):
        train(strict=False)
    assert len(list((tmp_path / "log").glob("*.trace.json"))) == 4
    with pytest.raises(wrong or ValueError):
        train(strict=True)


def test_the_total_of_metadata_is_limited() -> None:
    """What goes beyond 50 KiB in all is left out, and what came before is kept."""
    with profile() as prof:
        for number in range(13):
            if number < 12:
                prof.add_metadata(str(number), "x" * 4096)
            else:
                with pytest.warns(UserWarning, match="all together"):
                    prof.add_metadata(str(number), "x" * 4096)
        with pytest.warns(UserWarning, match="given before"):
            prof.add_metadata("0", "newer")
    prof.export_chrome_trace("trace.json")
    metadata = json.loads(Path("trace.json").read_text())["metadata"]
    assert len(metadata) == 12
    assert metadata["0"] == "newer"


FORGOTTEN = """
import os, torch
from dynprof.profiler import profile, tensorboard_trace_handler
prof = profile(on_trace_ready=HANDLER)
prof.start()
torch.ones(4, 4).mm(torch.ones(4, 4))
"""


@pytest.mark.parametrize(
    ("handler", "folder"),
    [
        ("None", "work/profiling_data"),
        ("tensorboard_trace_handler('log', analyse_flag=False)", "log"),
        ("tensorboard_trace_handler('log', analyse_flag=False, async_mode=True)", "log"),
    ],
)
def test_a_profile_that_is_never_stopped(tmp_path: Path, handler: str, folder: str) -> None:
    """A profile that is never stopped is saved as the process ends, which says so."""
    env = {"ASCEND_WORK_PATH": str(tmp_path / "work")}
    with RunningJob(tmp_path, FORGOTTEN.replace("HANDLER", handler), PYTHON, **env) as job:
        _, errors = job.process.communicate()
    assert job.process.returncode == 0
    assert "a profile was never stopped; it ends with the process, and is saved" in errors
    (path,) = (tmp_path / folder).glob("*.pt.trace.json")
    assert any(e["name"] == "aten::mm" for e in json.loads(path.read_text())["traceEvents"])


def test_a_profile_that_cannot_be_saved_at_the_end(tmp_path: Path) -> None:
    """The process ends as it would have, and says that the profile is lost."""
    (tmp_path / "log").write_text("a file")
    script = FORGOTTEN.replace("HANDLER", "tensorboard_trace_handler('log')")
    with RunningJob(tmp_path, script, PYTHON) as job:
        _, errors = job.process.communicate()
    assert job.process.returncode == 0
    assert "the trace could not be saved" in errors


def test_an_exception_in_the_body_passes(tmp_path: Path) -> None:
    """A handler gets what was recorded before an exception, and the script the exception."""

    def fail() -> None:
        with profile(on_trace_ready=tensorboard_trace_handler("log")):
            work()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list((tmp_path / "log").glob("*.json"))


def test_a_handler_that_cannot_write_costs_the_trace(tmp_path: Path) -> None:
    """The script is told in a warning; where it is strict, in an exception."""
    (tmp_path / "log").write_text("a file")
    handler = tensorboard_trace_handler("log")
    with pytest.warns(UserWarning, match="training goes on, but .*could not be saved"):
        recorded(on_trace_ready=handler)
    with pytest.raises(CaptureError, match="could not be saved"):
        recorded(on_trace_ready=handler, strict=True)
    assert recorded().events()


def failing_once(action: Callable[..., object]) -> Callable[..., object]:
    """Return what raises the first time, and then does it."""
    failed: list[object] = []

    def act(*args: Any, **kwargs: Any) -> object:
        if not failed:
            failed.append(args)
            raise BackendError("on purpose")
        return action(*args, **kwargs)

    return act


@pytest.mark.parametrize("fails", ["saving", "analysis", "callback", "opening"])
def test_what_fails_in_a_loop_does_not_stop_it(tmp_path: Path, fails: str) -> None:
    """A cycle that fails costs one warning; the loop continues, and other cycles are whole."""
    ready: list[int] = []
    save = tensorboard_trace_handler("log", analyse_flag=fails == "analysis")

    def on_ready(prof: profile) -> None:
        ready.append(prof.step_num)
        if len(ready) == 1 and fails == "callback":
            raise KeyError("the script's own mistake")
        save(prof)

    def train() -> None:
        with profile(schedule=steps, on_trace_ready=on_ready) as prof:
            for _ in range(8):
                work()
                prof.step()

    steps = schedule(wait=1, warmup=1, active=2, repeat=2)
    places = {
        "saving": (handlers, "save_now"),
        "analysis": (handlers, "analyse_now"),
        "opening": (ScriptWindows, "open"),
    }
    with pytest.MonkeyPatch.context() as patch:
        if fails in places:
            owner, name = places[fails]
            patch.setattr(owner, name, failing_once(getattr(owner, name)))
        with pytest.warns(UserWarning, match="training goes on") as said:
            train()
    assert [warning.filename for warning in said] == [__file__]
    assert ready == ([8] if fails == "opening" else [4, 8])
    assert len(list((tmp_path / "log").glob("*.trace.json"))) == 1 + (fails == "analysis")
