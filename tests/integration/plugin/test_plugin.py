"""Phases of torch's loops, marked without a change in the script or in the calls' behaviour."""

from __future__ import annotations

import functools
import gc
import operator
import os
import pickle
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import dynprof as dp
import dynprof.mstx as mstx
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.marks import open_ranges
from tests import warm_interpreter
from tests.integration.plugin.marking import marked
from tests.integration.running import RunningJob

torch = pytest.importorskip("torch", reason="torch is not installed")


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dynprof.marks.subscription import Marker


class Data:
    """A dataset of eight rows."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index))


def module(forward: Callable[..., object]) -> Any:
    """Return a module that runs a function when it is called."""
    return type("Module", (torch.nn.Module,), {"forward": forward})()


def train(optimizer_kind: Any = torch.optim.SGD, workers: int = 0) -> None:
    """Train for two steps."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = optimizer_kind(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=workers):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        scheduler.step()


STEP = ["dataloader", "optimizer.zero_grad", "forward", "backward", "optimizer.step"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_training_loop_has_its_phases(kind: Any, workers: int) -> None:
    """Each step has each phase once; the loader's end adds one."""
    assert marked(lambda: train(kind, workers)) == [*STEP, *STEP, "step 1", "dataloader"]


def optimizer_of(kind: Any = torch.optim.SGD) -> Any:
    """Return an optimizer of one weight."""
    return kind([torch.ones(2, requires_grad=True)], lr=0.1)


def step_ranges(action: Callable[[], object]) -> list[str]:
    """Return the ranges of steps that end during an action."""
    return [name for name in marked(action) if name.startswith("step ")]


def test_a_step_is_a_range_from_one_step_of_the_optimizer_to_its_next() -> None:
    """Ranges count from 1; one may begin before anything takes marks."""
    optimizer = optimizer_of()
    for _ in range(3):
        optimizer.step()
    found: list[Marker] = []
    with mstx.subscribe(found.append):
        began_ns = time.time_ns()
        optimizer.step()
        optimizer.step()
    inner, first, other, second = found
    assert (first.message, second.message) == ("step 3", "step 4")
    assert inner.message == other.message == "optimizer.step"
    assert first.began_ns < began_ns < inner.ended_ns <= first.ended_ns <= second.began_ns
    assert second.began_ns <= other.began_ns < other.ended_ns <= second.ended_ns


def test_the_newest_of_several_optimizers_counts_the_steps() -> None:
    """The newest optimizer counts, however often others step; after its end, the next to step."""
    first = optimizer_of()

    def turns() -> None:
        last = optimizer_of(torch.optim.Adam)
        for _ in range(3):
            first.step()
            first.step()
            last.step()

    assert step_ranges(turns) == ["step 1", "step 2"]
    gc.collect()
    assert step_ranges(lambda: [first.step() for _ in range(2)]) == ["step 3", "step 4"]


def test_a_step_that_calls_that_of_its_base_class_is_one_step() -> None:
    """Both methods are wrapped; a nested optimizer counts as it does alone."""
    sgd: Any = torch.optim.SGD
    derived = optimizer_of(type("Derived", (sgd,), {"step": lambda self: sgd.step(self)}))
    assert step_ranges(lambda: [derived.step() for _ in range(3)]) == ["step 1", "step 2"]
    outer = optimizer_of(type("Outer", (sgd,), {"step": lambda self: self.inner.step()}))
    outer.inner = optimizer_of()
    assert step_ranges(lambda: [outer.step() for _ in range(2)]) == ["step 3", "step 4"]


def test_skipped_and_accumulated_steps_do_not_end_the_range() -> None:
    """A step's range continues if a GradScaler skips a step."""
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def train_with(factor: float) -> None:
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    train_with(1.0)
    assert step_ranges(lambda: train_with(float("inf"))) == []
    assert step_ranges(lambda: train_with(1.0)) == ["step 1"]


def test_a_step_that_fails_ends_no_range() -> None:
    """The step's error propagates; the next step that succeeds ends the range."""

    def closure() -> None:
        raise KeyError

    optimizer = optimizer_of()
    optimizer.step()

    def fail_once() -> None:
        with pytest.raises(KeyError):
            optimizer.step(closure)
        optimizer.step()

    assert step_ranges(fail_once) == ["step 1"]


def test_uninstalling_ends_the_range_of_the_step() -> None:
    """No range stays open, and the next install counts from 1."""
    optimizer = optimizer_of()
    optimizer.step()
    assert [one.message for one in open_ranges.all_open()] == ["step 1"]
    dp.plugin.uninstall()
    assert not open_ranges.all_open()
    optimizer.step()
    dp.plugin.install()
    assert step_ranges(lambda: [optimizer.step() for _ in range(2)]) == ["step 1"]


def test_a_loss_is_not_a_forward_pass() -> None:
    """The plugin marks the model's call, but not torch's losses, which are modules too."""
    model, features = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    perceptual = {"forward": lambda _self, one, _other: features(one).sum()}
    kinds = [torch.nn.MSELoss, torch.nn.CrossEntropyLoss]
    kinds.append(type("Perceptual", (torch.nn.modules.loss._Loss,), perceptual))

    def forward_passes() -> None:
        out = model(torch.ones(1, 2))
        for kind in kinds:
            kind()(out, out.detach())

    assert marked(forward_passes) == ["forward"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_in_a_backward_pass_is_not_a_forward_pass(reentrant: bool) -> None:
    """Calls of checkpointed modules in a backward pass are no forward pass."""
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Linear(2, 2)
    calls: list[int] = []
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    model = module(lambda _self, x: checkpoint(layer, x, use_reentrant=reentrant))

    def train_once() -> None:
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()

    assert marked(train_once) == ["forward", "backward"]
    assert len(calls) == 2


def test_an_optimizer_that_was_made_before_it() -> None:
    """The optimizer's class is wrapped as well, once."""
    dp.plugin.uninstall()
    weights = [torch.ones(2, requires_grad=True)]
    optimizer = torch.optim.Adam(weights)
    dp.plugin.install()
    dp.plugin.install()
    assert marked(optimizer.step) == ["optimizer.step"]


def test_without_a_recording_no_range_begins() -> None:
    """No range begins, so none is open when a recording starts."""
    seen: list[int] = []

    module(lambda _self: seen.append(len(open_ranges.all_open())))()
    assert seen == [0]


def test_an_exception_propagates_and_ends_its_range() -> None:
    """Errors in a loader, a forward pass, a step and a save end the range."""

    def fail(*_: object) -> None:
        raise StopIteration(7)

    optimizer = type("Optimizer", (torch.optim.SGD,), {"step": fail})

    def work() -> None:
        with pytest.raises(StopIteration):
            module(fail)()
        with pytest.raises(StopIteration):
            optimizer([torch.ones(2, requires_grad=True)], lr=0.1).step()
        with pytest.raises(RuntimeError):
            torch.save({}, "/nowhere/at/all/x.pt")
        with pytest.raises(RuntimeError):
            torch.ones(2).sum().backward()

    assert marked(work) == ["forward", "optimizer.step", "save_checkpoint", "backward"]
    assert not open_ranges.all_open()


def test_a_save_is_a_phase_by_either_name(tmp_path: Path) -> None:
    """``torch.save`` and ``torch.serialization.save`` give one phase each."""

    def work() -> None:
        torch.save({}, tmp_path / "one.pt")
        torch.serialization.save({}, tmp_path / "two.pt")

    assert marked(work) == ["save_checkpoint", "save_checkpoint"]


def test_threads_have_phases_of_their_own() -> None:
    """A thread's forward pass does not hide that of another."""
    inside, leave = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        inside.set()
        leave.wait()

    def work() -> None:
        thread = threading.Thread(target=module(wait))
        thread.start()
        inside.wait()
        torch.nn.Linear(2, 2)(torch.ones(2))
        leave.set()
        thread.join()

    assert marked(work) == ["forward", "forward"]


def test_uninstalling_restores_every_attribute() -> None:
    """Every attribute is the original object, also of optimizers made while it was installed."""
    dp.plugin.uninstall()
    watched = [
        (torch.nn.Module, "__call__"), (torch.autograd, "backward"), (torch, "save"),
        (torch.serialization, "save"),
        (torch.optim.Optimizer, "profile_hook_step"), (torch.optim.Optimizer, "zero_grad"),
        (torch.optim.Optimizer, "__init__"),
        (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
        (torch.distributed, "all_reduce"),
    ]  # fmt: skip
    before = [vars(owner)[name] for owner, name in watched]
    dp.plugin.install()
    train(torch.optim.Adagrad)
    assert [vars(owner)[name] for owner, name in watched] != before
    dp.plugin.uninstall()
    assert all(vars(owner)[name] is was for (owner, name), was in zip(watched, before, strict=True))
    step = torch.optim.Adagrad.step
    assert not hasattr(step, "marks_phases")
    assert marked(lambda: train(torch.optim.Adagrad)) == []
    assert torch.optim.Adagrad.step is step


def test_another_tools_wrapper_stays_after_uninstall() -> None:
    """Another tool's wrapper stays; dynprof's wrapper below it marks no more."""
    ours = torch.save
    torch.save = lambda *args, **kwargs: ours(*args, **kwargs)
    theirs = torch.save
    dp.plugin.uninstall()
    try:
        assert torch.save is theirs
        with pytest.raises(RuntimeError):
            torch.save({}, "/nowhere/at/all/x.pt")
        assert marked(lambda: None) == []
    finally:
        torch.save = ours.__wrapped__


@pytest.mark.parametrize(
    ("owner", "name"),
    [(torch, "save"), (torch.nn.Module, "__call__"), (torch.autograd, "backward")],
)
def test_a_temporary_wrapper_of_another_tool_leaves_one_wrapper(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Windows during that time and later leave one wrapper, which can also be removed."""
    ours = vars(owner)[name]
    for _ in range(3):
        with monkeypatch.context() as others:
            others.setattr(owner, name, lambda *_args, **_kwargs: None)
            assert marked(lambda: None) == []
        assert marked(lambda: None) == []
        assert vars(owner)[name] is ours
    dp.plugin.uninstall()
    assert vars(owner)[name] is ours.__wrapped__


def test_a_step_with_copied_attributes_is_not_taken_for_a_wrapper() -> None:
    """functools.wraps copies all attributes; the script's own step is never removed."""
    train(torch.optim.SGD)
    done: list[str] = []

    def step(self: Any, closure: Any = None) -> Any:
        done.append("own")
        return torch.optim.SGD.step(self, closure)

    body = {"step": functools.wraps(torch.optim.SGD.step)(step)}
    optimizer = type("Own", (torch.optim.SGD,), body)([torch.ones(2, requires_grad=True)], lr=0.1)
    assert marked(optimizer.step) == ["optimizer.step", "step 2"]
    dp.plugin.uninstall()
    optimizer.step()
    assert done == ["own", "own"]


def test_a_function_that_is_wrapped_twice_is_one_phase() -> None:
    """A nested phase of the same name does not count, because it covers the same time."""
    ours = torch.optim.Optimizer.zero_grad
    torch.optim.Optimizer.zero_grad = lambda self: ours(self)
    theirs = torch.optim.Optimizer.zero_grad
    try:
        optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)
        assert marked(lambda: optimizer.zero_grad()) == ["optimizer.zero_grad"]
        dp.plugin.uninstall()
        assert torch.optim.Optimizer.zero_grad is theirs
    finally:
        torch.optim.Optimizer.zero_grad = ours.__wrapped__


@pytest.mark.parametrize("function", ["save", "distributed.all_reduce", "autograd.backward"])
def test_wrapped_functions_can_be_pickled(function: str) -> None:
    """A pool's task may be torch.save: unpickling gives the same function."""
    wrapped = operator.attrgetter(function)(torch)
    assert pickle.loads(pickle.dumps(wrapped)) is wrapped  # noqa: S301


def test_stacks_name_modules_as_without_it() -> None:
    """Torch's tracer reads the module from the frames of ``Module.__call__``."""

    def modules() -> list[str]:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        with torch.profiler.profile(with_stack=True) as prof:
            model(torch.ones(4))
            torch.optim.SGD(model.parameters(), lr=0.1).zero_grad()
        return sorted(e.name for e in prof.events() if e.name.startswith("nn.Module: "))

    marked_too: list[str] = []
    marked(lambda: marked_too.extend(modules()))
    with_it = modules()
    dp.plugin.uninstall()
    assert marked_too == with_it == modules()
    assert len(with_it) == 3


FORKED = """
import os, signal, threading
import torch
import dynprof.mstx as mstx, dynprof.plugin
held, leave = threading.Event(), threading.Event()
def hold():
    with dynprof.plugin._lock:
        held.set()
        leave.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(20)
    with mstx.subscribe(print):
        os._exit(0)
leave.set()
thread.join()
print(os.waitpid(child, 0)[1])
"""


def test_a_child_forked_while_it_installs_can_subscribe(tmp_path: Path) -> None:
    """The thread that held the lock is not in the child, which does not wait for it."""
    done = warm_interpreter.run(FORKED, tmp_path, os.environ)
    assert done.stdout == "0\n", done.stderr


def test_loops_without_torch_have_the_same_phases() -> None:
    """A loop calls ``phase`` and ``iterate`` itself; the iteration may fail."""

    def failing() -> Iterator[int]:
        yield 1
        raise KeyError("the data is gone")

    def work() -> None:
        for _ in dp.phases.iterate([1, 2]):
            with dp.phase("forward"):
                pass
        with pytest.raises(KeyError):
            list(dp.phases.iterate(failing(), "load"))

    assert marked(work) == ["dataloader", "forward", "dataloader", "forward", "dataloader",
                            "load", "load"]  # fmt: skip


@pytest.mark.parametrize("name", [None, "", 7, "x" * 256])
def test_a_loop_with_an_invalid_phase_name_continues(name: Any) -> None:
    """A warning says so, and the phase is lost."""

    def work() -> None:
        with pytest.warns(UserWarning, match="the message"):
            assert list(dp.phases.iterate([1, 2], name)) == [1, 2]

    assert marked(work) == []


JOB = """
import torch, dynprof as dp
class Data:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return torch.full((4,), float(index))
model = torch.nn.Linear(4, 1)
dp.init("prof_config"PLUGIN)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        dp.step()
"""


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_window_of_marks_alone_has_the_phases_of_its_steps(tmp_path: Path, how: str) -> None:
    """A window of marks alone has the phases of each step, also in its tables."""
    env = {"DYNPROF_PLUGIN": "1"} if how == "variable" else {}
    script = JOB.replace("PLUGIN", "" if env else ", plugin=True")
    with RunningJob(tmp_path, script, **env) as job:
        job.when("training", lambda status: status.step > 3)
        job.edit(active=4, experimental_config={"profiler_level": "Level_none", "mstx": True})
        manifest, trace = job.capture()
    assert manifest.complete
    found = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "mstx"]
    assert all(found.count(name) == 4 for name in STEP if name != "dataloader")
    steps = [int(name.removeprefix("step ")) for name in found if name.startswith("step ")]
    assert len(steps) == 5  # the last begins with the end of the window's last optimizer step
    assert sorted(steps) == list(range(min(steps), min(steps) + 5))
    assert 4 <= found.count("dataloader") <= 5  # the end of a loader is one more
    (path,) = tmp_path.rglob("*.trace.json.gz")
    measured = MeasuredTrace(path)
    assert len(measured.phases) == 4
    for phases, (_, _, length) in zip(measured.phases, measured.marked, strict=True):
        assert sum(phases.values()) == length  # "step N" is no phase, and counts no time twice
        assert all(phases[name] > 0 for name in ("data loading", "forward", "backward"))
        assert phases["optimizer"] > 0
