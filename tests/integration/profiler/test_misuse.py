"""Every misuse of ``dynprof.profiler`` warns, or raises with ``strict``."""

from __future__ import annotations

import json
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.errors import BackendError, CaptureError, ProfileError
from dynprof.profiler import (
    ProfilerAction,
    ProfilerActivity,
    _ExperimentalConfig,
    _KinetoProfile,
    analyse,
    handlers,
    profile,
    saving,
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
    """Return a value of a type that type checkers would refuse."""
    return value


def work() -> None:
    """Run some operators."""
    torch.ones(4, 4).mm(torch.ones(4, 4))


def recorded(**settings: Any) -> profile:
    """Return a profile that has recorded some operators."""
    with profile(**settings) as prof:
        work()
    return prof


ACTIVITIES = "is not a list of members of ProfilerActivity; all that the machine has is used"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda **how: profile(activities=[], **how), f"activities=\\[\\] {ACTIVITIES}"),
        (lambda **how: profile(activities=["TPU"], **how), f"=\\['TPU'\\] {ACTIVITIES}"),
        (lambda **how: profile(activities=some(3), **how), f"activities=3 {ACTIVITIES}"),
        (lambda **how: profile(activities=some("CPU"), **how), f"activities='CPU' {ACTIVITIES}"),
        (lambda **how: profile(activities=some({}), **how), f"activities={{}} {ACTIVITIES}"),
        (
            lambda **how: profile(use_cuda=some("x"), **how),
            "use_cuda='x' is not True or False; it is left out",
        ),
        (
            lambda **how: profile(experimental_config=5, **how),
            "=5 is not an _Exp.*; the default is",
        ),
        (lambda **how: profile(record_shapes=some("x"), **how), "='x' is not .*; False is used"),
        (lambda **how: profile(with_stack=some(None), **how), "=None is not True or False; False"),
        (
            lambda **how: profile(backend="vtune", **how),
            "='vtune' is not 'auto'.*; 'auto' is used",
        ),
        (lambda **how: profile(schedule=some(3), **how), "=3 cannot be called; everything is rec"),
        (lambda **how: profile(on_trace_ready=some("log"), **how), "='log' cannot be called; noth"),
        (
            lambda **how: profile(execution_trace_observer=5, **how),
            "=5 has no start\\(\\) and stop\\(\\); it is left out",
        ),
        (
            lambda **how: profile(custom_trace_id_callback=some(5), **how),
            "=5 cannot be called; random ids are used",
        ),
        (
            lambda **how: recorded(custom_trace_id_callback=lambda: some(5), **how),
            "returned 5, not a string of .*; the random id \\w{32} is used",
        ),
        (
            lambda **how: recorded(with_stack=True, **how).export_stacks("a", "self_time"),
            "metric='self_time' is none of self_cpu.*; self_cpu_time_total is used",
        ),
        (
            lambda **how: profile(**how).add_metadata("key", some(3)),
            "is 3, not a string; it is left o",
        ),
        (
            lambda **how: profile(**how).add_metadata("key", "x" * 4097),
            "than 4096 characters; it is left",
        ),
        (lambda **how: profile(**how).add_metadata_json("key", "{torn"), "'{torn', not JSON"),
        (lambda **how: profile(**how).add_metadata_json("key", {1, 2}), "not JSON"),
        (lambda **how: _KinetoProfile(record_shapes=some("x"), **how), "='x' is not True or Fals"),
        (
            lambda **how: analyse(some_trace(), 0, **how),
            "max_process_number=0 is not a .*; \\d+ is use",
        ),
        (
            lambda **how: analyse(some_trace(), export_type=some([["db"]]), **how),
            "export_type=\\[\\['db'\\]\\] is none of text, db; the one in the config .* is used",
        ),
    ],
)
def test_a_wrong_argument_is_named_with_the_value_used(
    wrong: Callable[..., object], words: str
) -> None:
    """One warning has the wrong value and the one used; ``strict`` raises."""
    with pytest.warns(UserWarning, match=words) as caught:
        wrong()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match=words.partition(";")[0]):
        wrong(strict=True)


def some_trace() -> str:
    """Return the path of a small trace."""
    Path("a.trace.json").write_text(
        '{"traceEvents": [{"ph": "X", "name": "a", "cat": "cpu_op", "ts": 1, "dur": 1}]}'
    )
    return "a.trace.json"


def start_twice(**how: Any) -> None:
    """Start a running profile again."""
    with profile(on_trace_ready=lambda _: None, **how) as prof:
        prof.start()


def start_beside(**how: Any) -> None:
    """Start a profile while torch's own is active."""
    with torch.profiler.profile():
        profile(**how).start()


def elsewhere(call: str, **how: Any) -> None:
    """Call a method of a running profile from another thread."""
    caught: list[Exception] = []

    def act() -> None:
        try:
            getattr(prof, call)()
        except Exception as error:
            caught.append(error)

    with profile(on_trace_ready=lambda _: None, **how) as prof:
        run(threading.Thread(target=act))
        work()
    if caught:
        raise caught[0]


class FailingObserver:
    """An observer that cannot be started."""

    def start(self) -> None:
        """Fail."""
        raise ZeroDivisionError

    def stop(self) -> None:
        """Do nothing."""


def no_id() -> str:
    """Fail to make a trace id."""
    raise ZeroDivisionError


def quiet(**how: Any) -> profile:
    """Return a stopped profile whose trace is not saved."""
    return recorded(on_trace_ready=lambda _: None, **how)


def exported_first(**how: Any) -> None:
    """Let a handler save an exported trace."""
    prof = recorded(**how)
    prof.export_chrome_trace("a.json")
    tensorboard_trace_handler("log")(prof)


def handled_twice(**how: Any) -> None:
    """Let two handlers save one trace."""
    prof = quiet(**how)
    for _ in range(2):
        tensorboard_trace_handler("log", analyse_flag=False)(prof)


@pytest.mark.parametrize(
    ("failing", "error", "words"),
    [
        (start_twice, ProfileError, r"profile.start\(\) failed: .*running already"),
        (start_beside, BackendError, "another torch.profiler is active"),
        (
            lambda **how: elsewhere("step", **how),
            ProfileError,
            "step.*only the thread .*MainThread",
        ),
        (
            lambda **how: elsewhere("stop", **how),
            ProfileError,
            "stop.*only the thread .*MainThread",
        ),
        (lambda **how: profile(**how).stop(), ProfileError, "not running"),
        (lambda **how: quiet(**how).stop(), ProfileError, "not running"),
        (
            lambda **how: _KinetoProfile(**how).stop(),
            ProfileError,
            r"_KinetoProfile.stop\(\) failed",
        ),
        (lambda **how: profile(backend="npu", **how), BackendError, "cannot serve here"),
        (lambda **how: profile(schedule=lambda _: None, **how), ValueError, "returned None"),
        (lambda **how: profile(**how).export_chrome_trace("a"), ProfileError, "nothing was record"),
        (lambda **how: quiet(**how).export_chrome_trace("link"), CaptureError, "symbolic link"),
        (
            lambda **how: quiet(**how).export_chrome_trace("file/a"),
            CaptureError,
            r"file/a is not written: /\S+/file: not a directory\n\(profile",
        ),
        (lambda **how: quiet(**how).export_chrome_trace(some(5)), TypeError, "PathLike"),
        (lambda **how: quiet(**how).export_stacks("a"), ProfileError, "with_stack=True"),
        (
            lambda **how: tensorboard_trace_handler("link/new")(quiet(**how)),
            CaptureError,
            r"tensorboard_trace_handler\(\) failed: .*symbolic link",
        ),
        (
            lambda **how: tensorboard_trace_handler("log")(profile(**how)),
            ProfileError,
            "nothing was recorded yet",
        ),
        (
            exported_first,
            BackendError,
            r"was exported to /\S+/a.json; .* call the handler before the export",
        ),
        (handled_twice, BackendError, r"another handler has saved the trace as /\S+.json already"),
        (lambda **how: profile(**how).key_averages().table(), ProfileError, "nothing was recorded"),
        (lambda **how: list(profile(**how).events()), ProfileError, "nothing was recorded"),
        (
            lambda **how: quiet(execution_trace_observer=FailingObserver(), **how),
            ZeroDivisionError,
            r"profile.start\(\) failed: ZeroDivisionError",
        ),
        (
            lambda **how: quiet(custom_trace_id_callback=no_id, **how),
            ZeroDivisionError,
            "custom_trace_id_callback failed",
        ),
        (lambda **how: analyse("./nowhere", **how), CaptureError, "nowhere: there is no such file"),
        (lambda **how: analyse(".", **how), CaptureError, "holds no trace"),
    ],
)
def test_a_failed_call_gives_one_warning_or_raises_if_strict(
    failing: Callable[..., object], error: type[Exception], words: str
) -> None:
    """A failed call gives one warning with the script's line; ``strict=True`` raises."""
    Path("link").symlink_to("elsewhere")
    Path("file").touch()
    with pytest.warns(UserWarning, match=rf"(?s)^the script continues, but .*{words}") as caught:
        failing()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error):
            failing(strict=True)
    assert not Path("elsewhere").exists()
    assert recorded().events()


def test_a_profile_that_could_not_start_is_tried_again_in_its_next_cycle() -> None:
    """A profile that could not start records its next cycle."""
    ready: list[int] = []
    mine = torch.profiler.profile()
    prof = profile(
        schedule=schedule(wait=0, active=2, repeat=2),
        on_trace_ready=lambda prof: ready.append(prof.step_num),
    )
    with mine, pytest.warns(UserWarning, match="another torch.profiler is active"):
        prof.start()
    for _ in range(4):
        work()
        prof.step()
    prof.stop()
    assert ready == [4]
    assert any(event.name == "aten::mm" for event in prof.events())


def test_a_strict_profile_that_could_not_start_may_be_started_again() -> None:
    """A strict profile that could not start is not running, and starts later."""
    prof = profile(strict=True)
    with profile(), pytest.raises(BackendError, match="another torch"):
        prof.start()
    with prof:
        work()
    assert prof.events()


@pytest.mark.parametrize("stops", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_and_exit_end_the_script(stops: type[BaseException]) -> None:
    """Ctrl-C and ``sys.exit()`` in a callback end the script."""

    def on_ready(_: object) -> None:
        raise stops

    with pytest.raises(stops):
        recorded(on_trace_ready=on_ready)
    assert recorded().events()


def run(thread: threading.Thread) -> None:
    """Run a thread to its end."""
    thread.start()
    thread.join()


def test_a_call_that_is_out_of_order_changes_nothing() -> None:
    """A second start, or another thread's stop, warns; the profile continues."""
    with profile() as prof:
        with pytest.warns(UserWarning, match="running already"):
            prof.start()
        thread = threading.Thread(target=prof.stop)
        with pytest.warns(UserWarning, match="only the thread"):
            run(thread)
        work()
    assert any(event.name == "aten::mm" for event in prof.events())


@pytest.mark.parametrize(
    ("questionable", "words"),
    [
        (lambda: profile(use_cuda=False), "use_cuda is deprecated"),
        (lambda: profile(acc_events=True), "acc_events=True has no effect"),
        (lambda: profile().step(), "step\\(\\) has no effect"),
        (lambda: recorded().step(), "step\\(\\) has no effect"),
        (lambda: recorded().add_metadata("late", "x"), "after the end"),
        (lambda: tensorboard_trace_handler(analyse_flag=some(1)), "analyse_flag=1 is not a bool"),
        (lambda: tensorboard_trace_handler(async_mode=some(None)), "async_mode=None is not a bool"),
        (
            lambda: tensorboard_trace_handler(use_gzip=some("x")),
            "use_gzip='x' is not a bool; False",
        ),
        (lambda: tensorboard_trace_handler(some(5)), "dir_name=5 is not a path; /.* is used"),
        (
            lambda: tensorboard_trace_handler(worker_name="a/b"),
            "worker_name='a/b' is not a .*_\\d+ is u",
        ),
        (
            lambda: tensorboard_trace_handler(worker_name=".."),
            "worker_name='..' is not a .* is used",
        ),
        (lambda: tensorboard_trace_handler(worker_name="w" * 300), "worker_name='www.* is used"),
        (lambda: schedule(wait=-1, active=1), "wait=-1 is not a whole number of 0 or more; 0 is"),
        (lambda: schedule(wait=0, active=some("x")), "active='x' is not .*of 1 or more; 1 is us"),
        (lambda: _ExperimentalConfig(profiler_level="Level9"), "profiler_level='Level9'"),
        (lambda: _ExperimentalConfig(l2_cache=some("yes")), "l2_cache='yes'"),
        (lambda: _ExperimentalConfig(aic_metrics="L2Cache"), "needs Level1"),
        (
            lambda: _ExperimentalConfig(profiler_level="Level1", aic_metrics="x"),
            "aic_metrics='x' .*; 'PipeUtilization' is used",
        ),
        (lambda: _ExperimentalConfig(op_attr=True), "needs ExportType.Db"),
        (lambda: _ExperimentalConfig(gc_detect_threshold=-1), "gc_detect_threshold=-1"),
        (lambda: _ExperimentalConfig(host_sys="cpu"), r"\(write \['cpu'\]\); \[\] is used"),
        (lambda: _ExperimentalConfig(export_type="xml"), "'text' is used"),
        (lambda: _ExperimentalConfig(export_type=[]), "'text' is used"),
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
            "Text is used",
        ),
        (
            lambda: profile(experimental_config=_ExperimentalConfig(l2_cache=True)),
            "l2_cache: has no effect",
        ),
    ],
)
def test_a_questionable_call_gives_one_warning(
    questionable: Callable[[], object], words: str
) -> None:
    """One warning names the line of the script, and no exception is raised."""
    with pytest.warns(UserWarning, match=words) as caught:
        questionable()
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "export",
    [
        lambda prof: prof.export_chrome_trace("link.json"),
        lambda prof: prof.export_chrome_trace("linked/trace.json"),
        lambda prof: prof.export_stacks("link.json"),
        lambda prof: prof.export_stacks("linked/stack.log"),
        lambda prof: prof.export_memory_timeline("linked/memory.json"),
        tensorboard_trace_handler("linked"),
        tensorboard_trace_handler("linked/new", async_mode=True),
    ],
)
def test_the_document_allows_no_symlink(
    tmp_path: Path, export: Callable[[profile], object]
) -> None:
    """No export follows or replaces a symbolic link; the error names the real path."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "linked").symlink_to("elsewhere")
    (tmp_path / "link.json").symlink_to("elsewhere/kept.json")
    prof = recorded(with_stack=True, record_shapes=True, profile_memory=True, strict=True)
    with pytest.raises(CaptureError, match=f"symbolic link.*; write to {tmp_path}/elsewhere"):
        export(prof)
    assert (tmp_path / "link.json").is_symlink()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_with_a_handler_export_has_no_effect(tmp_path: Path) -> None:
    """An export after a handler warns and writes no file."""
    prof = recorded(on_trace_ready=tensorboard_trace_handler("log"))
    with pytest.warns(UserWarning, match="tensorboard_trace_handler writes it"):
        prof.export_chrome_trace("trace.json")
    assert not (tmp_path / "trace.json").exists()


def test_two_at_once_are_refused() -> None:
    """A second profile cannot start in the first, which continues."""
    with profile() as first:
        with pytest.warns(UserWarning, match="another torch.profiler is active"):
            profile().start()
        work()
    assert any(event.name == "aten::mm" for event in first.events())


@pytest.mark.parametrize(
    "actions",
    [
        [ProfilerAction.RECORD, ProfilerAction.NONE],
        [ProfilerAction.WARMUP, ProfilerAction.NONE],
        [ProfilerAction.RECORD, ProfilerAction.WARMUP, ProfilerAction.NONE],
    ],
)
def test_a_schedule_that_does_not_save(actions: list[ProfilerAction]) -> None:
    """A warning names the schedule, the callback does not run, and the profiler continues."""
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
    """After the profile has stopped, nothing is recorded, and another one may start."""
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
    """Only this step is not recorded. With ``strict`` the exception reaches the script."""
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

    with pytest.warns(UserWarning, match="the script continues"):
        train(strict=False)
    assert len(list((tmp_path / "log").glob("*.trace.json"))) == 4
    with pytest.raises(wrong or ValueError):
        train(strict=True)


def test_a_schedule_that_always_fails_gives_one_warning() -> None:
    """A schedule that always fails gives one warning, in two lines."""

    def train() -> None:
        with profile(schedule=lambda _: some(None)) as prof:
            for _ in range(5):
                prof.step()

    with pytest.warns(UserWarning, match="the schedule returned None for step 0") as caught:
        train()
    assert [len(str(warning.message).splitlines()) for warning in caught] == [2]


def test_a_wrong_folder_is_named_in_a_working_directory_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler with a wrong folder warns, also where the working directory was removed."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.warns(UserWarning, match="the working directory, which was removed, is used"):
        tensorboard_trace_handler(some(3))


def test_the_total_of_metadata_is_limited() -> None:
    """Metadata beyond 50 KiB in total is left out; earlier metadata is kept."""
    with profile() as prof:
        for number in range(13):
            if number < 12:
                prof.add_metadata(str(number), "x" * 4096)
            else:
                with pytest.warns(UserWarning, match="all metadata has more"):
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
    """The end of the process saves the profile, by its handler if it has one."""
    env = {"ASCEND_WORK_PATH": str(tmp_path / "work")}
    with RunningJob(tmp_path, FORGOTTEN.replace("HANDLER", handler), PYTHON, **env) as job:
        _, errors = job.process.communicate()
    assert job.process.returncode == 0
    assert "a profile was never stopped; it ends with the process, and is saved" in errors
    (path,) = (tmp_path / folder).glob("*.pt.trace.json")
    assert any(e["name"] == "aten::mm" for e in json.loads(path.read_text())["traceEvents"])


def test_a_profile_that_cannot_be_saved_at_the_end(tmp_path: Path) -> None:
    """The process ends as usual, and says that the profile is lost."""
    (tmp_path / "log").write_text("a file")
    script = FORGOTTEN.replace("HANDLER", "tensorboard_trace_handler('log')")
    with RunningJob(tmp_path, script, PYTHON) as job:
        _, errors = job.process.communicate()
    assert job.process.returncode == 0
    assert "the trace cannot be saved" in errors


def test_an_exception_in_the_body_passes(tmp_path: Path) -> None:
    """The handler gets the recording, and the script's exception propagates."""

    def fail() -> None:
        with profile(on_trace_ready=tensorboard_trace_handler("log")):
            work()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list((tmp_path / "log").glob("*.json"))


def test_a_handler_that_cannot_write_costs_the_trace(tmp_path: Path) -> None:
    """The script gets a warning, or with ``strict`` an exception."""
    (tmp_path / "log").write_text("a file")
    handler = tensorboard_trace_handler("log")
    with pytest.warns(UserWarning, match="the script continues, but .*cannot be saved"):
        recorded(on_trace_ready=handler)
    with pytest.raises(CaptureError, match="cannot be saved"):
        recorded(on_trace_ready=handler, strict=True)
    assert recorded().events()


def failing_once(action: Callable[..., object]) -> Callable[..., object]:
    """Return a function that raises at its first call only."""
    failed: list[object] = []

    def act(*args: Any, **kwargs: Any) -> object:
        if not failed:
            failed.append(args)
            raise BackendError("on purpose")
        return action(*args, **kwargs)

    return act


@pytest.mark.parametrize("fails", ["saving", "analysis", "callback", "opening"])
def test_a_failure_in_a_loop_does_not_stop_it(tmp_path: Path, fails: str) -> None:
    """Each failed cycle gives one warning; the other cycles are complete."""
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
        "analysis": (saving, "analyse_now"),
        "opening": (ScriptWindows, "open"),
    }
    with pytest.MonkeyPatch.context() as patch:
        if fails in places:
            owner, name = places[fails]
            patch.setattr(owner, name, failing_once(getattr(owner, name)))
        with pytest.warns(UserWarning, match="the script continues") as said:
            train()
    assert [warning.filename for warning in said] == [__file__]
    assert ready == ([8] if fails == "opening" else [4, 8])
    assert len(list((tmp_path / "log").glob("*.trace.json"))) == 1 + (fails == "analysis")
