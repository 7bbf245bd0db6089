"""Returns of a named function of any kind end steps; the function is restored at the end."""

from __future__ import annotations

import asyncio
import functools
import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.requests.inbox import Inbox
from dynprof.steps.base import EndedSteps, StepOption
from dynprof.steps.sources import FunctionSteps
from tests import processes

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
import functools

def step(x):
    return x + 1

def failing():
    raise KeyError("x")

def batches():
    yield 1

async def waiting(x):
    return x

def decorator(function):
    @functools.wraps(function)
    def around(*args):
        return function(*args)
    return around

def counting(x):
    counting.calls = getattr(counting, "calls", 0) + 1

def nameless(function):
    def around(*args):
        return function(*args)
    return around

@nameless
def hidden(x):
    return x

@nameless
def hidden_too(x):
    return x

@decorator
def decorated(x):
    return x

@decorator
def another(x):
    return x

class Trainer:
    def step(self, x):
        return x + 2

    @staticmethod
    def still(x):
        return x

    @classmethod
    def of(cls, x):
        return cls, x
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module as a job would have it."""
    (tmp_path / "a_trainer.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_trainer", raising=False)
    return importlib.import_module("a_trainer")


class Counted:
    """A source on one function, and the number of steps that it ended."""

    def __init__(self, name: str) -> None:
        self.inbox = Inbox(lambda: None)
        steps = EndedSteps(self.inbox, lambda _: None)
        self.source = FunctionSteps(
            StepOption("function", "a_trainer", name), steps, lambda _: None
        )

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.end()


def test_returns_end_steps_until_the_end(module: ModuleType) -> None:
    """The return value stays; an exception is no return; at the end all is restored."""
    before = module.step
    with Counted("step") as counted:
        assert counted.source.check() == ""
        assert [module.step(1), module.step(2)] == [2, 3]
        assert counted.inbox.step == 2
        assert module.another(7) == 7
        assert counted.inbox.step == 2
    assert module.step is before
    assert module.step(1) == 2
    assert counted.inbox.step == 2


def test_methods_of_all_kinds(module: ModuleType) -> None:
    """Methods of objects, of classes and static ones work; the class is restored at the end."""
    kind = module.Trainer
    before = dict(vars(kind))
    with Counted("Trainer.step") as counted:
        assert counted.source.check() == ""
        assert (kind().step(1), counted.inbox.step) == (3, 1)
    with Counted("Trainer.still") as counted:
        assert counted.source.check() == ""
        assert (kind.still(1), kind().still(2), counted.inbox.step) == (1, 2, 2)
    with Counted("Trainer.of") as counted:
        assert counted.source.check() == ""
        assert (kind.of(1), counted.inbox.step) == ((kind, 1), 1)
    assert dict(vars(kind)) == before


@pytest.mark.parametrize(("name", "other"), [("decorated", "another"), ("hidden", "hidden_too")])
def test_a_decorated_function_is_not_mistaken_for_another(
    module: ModuleType, name: str, other: str
) -> None:
    """Decorated functions share the decorator's code, with and without functools.wraps."""
    with Counted(name) as counted:
        counted.source.check()
        getattr(module, other)(1)
        assert counted.inbox.step == 0
        getattr(module, name)(1)
        assert counted.inbox.step == 1


@pytest.mark.parametrize("name", ["step", "Trainer.step", "Trainer.of", "decorated", "hidden"])
def test_a_function_that_is_defined_again(module: ModuleType, name: str) -> None:
    """After a reload of the module, its new functions count."""
    *parts, last = name.split(".")

    def call() -> None:
        getattr(module.Trainer() if parts else module, last)(1)

    with Counted(name) as counted:
        counted.source.check()
        call()
        importlib.reload(module)
        counted.source.check()
        call()
        assert counted.inbox.step == 2
        counted.source.check()
        call()
        assert counted.inbox.step == 3
    call()
    assert counted.inbox.step == 3


def test_a_wrapper_over_the_function_is_left_alone(module: ModuleType) -> None:
    """If a script installs a wrapper that calls it, each call counts once."""
    with Counted("step") as counted:
        counted.source.check()
        before = module.step
        vars(module)["step"] = lambda x: before(x)
        counted.source.check()
        module.step(1)
        before(1)
        assert counted.inbox.step == 2


def test_attributes_of_a_function_stay(module: ModuleType) -> None:
    """The function counts its calls under its own name, before, during and after."""
    module.counting(1)
    with Counted("counting") as counted:
        counted.source.check()
        module.counting(1)
    module.counting(1)
    assert module.counting.calls == 3


def test_a_failing_call_ends_no_step(module: ModuleType) -> None:
    """The exception propagates."""
    with Counted("failing") as counted:
        counted.source.check()
        with pytest.raises(KeyError):
            module.failing()
        assert counted.inbox.step == 0


def test_a_coroutine_ends_a_step_when_it_is_done(module: ModuleType) -> None:
    """Making the coroutine does not count."""
    with Counted("waiting") as counted:
        counted.source.check()
        coroutine = module.waiting(5)
        assert counted.inbox.step == 0
        assert asyncio.run(coroutine) == 5
        assert counted.inbox.step == 1


def test_names_that_others_imported_count_too(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``from a_trainer import step`` gives such a name."""
    other: Any = ModuleType("another_one")
    other.renamed = module.step
    monkeypatch.setitem(sys.modules, "another_one", other)
    with Counted("step") as counted:
        counted.source.check()
        other.renamed(1)
        assert counted.inbox.step == 1
    assert other.renamed is module.step


def test_a_source_waits_until_its_function_exists(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source says what it waits for, or why it cannot work."""
    model = type("Model", (), {"__call__": module.step, "step": module.step})()
    kept = {"model": model, "bound": model.step, "cached": functools.lru_cache(module.step)}
    vars(module).update(kept)
    for name, text in (
        ("later", "has no function later"),
        ("Nobody.step", "has no class Nobody"),
        ("Trainer.never", "a_trainer.Trainer has no function never"),
        ("Trainer", "is a type, not a Python function"),
        ("batches", "is a generator"),
        ("functools", "is a module, not a Python function"),
        ("model", "is a Model, not a Python function; name a function that it calls"),
        ("bound", "is a method, not a Python function"),
        ("cached", "is a _lru_cache_wrapper, not a Python function"),
    ):
        assert text in Counted(name).source.check()
    with Counted("later") as counted:
        counted.source.check()
        module.later = lambda: module.step(1)  # type: ignore[attr-defined]
        assert counted.source.check() == ""
        assert module.later() == 2
        assert counted.inbox.step == 1
    assert all(vars(module)[name] is found for name, found in kept.items())
    monkeypatch.delitem(sys.modules, "a_trainer")
    assert Counted("step").source.check() == "a_trainer has not been imported"


@pytest.mark.parametrize("script", [["a_server.py"], ["-m", "a_package.a_server"]])
def test_the_script_goes_by_its_own_name_too(tmp_path: Path, script: list[str]) -> None:
    """``python a_server.py`` has the names ``a_server`` and ``__main__``."""
    (tmp_path / "a_package").mkdir()
    name = script[-1].removesuffix(".py")
    text = f"""
from dynprof.requests.inbox import Inbox
from dynprof.steps.sources import FunctionSteps
from dynprof.steps.base import EndedSteps
from dynprof.steps.base import StepOption
def handle():
    pass
inbox = Inbox(lambda: None)
steps = EndedSteps(inbox, lambda _: None)
assert not FunctionSteps(StepOption("function", {name!r}, "handle"), steps, lambda _: None).check()
handle()
assert inbox.step == 1
other = FunctionSteps(StepOption("function", "another", "handle"), steps, lambda _: None)
assert other.check() == "another has not been imported"
"""
    for place in (tmp_path, tmp_path / "a_package"):
        (place / "a_server.py").write_text(text)
    found = processes.run([sys.executable, *script], cwd=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")


def test_calls_that_do_not_count_are_named(module: ModuleType) -> None:
    """If a wrapper replaces it, callers that kept the function itself call that."""
    kept = module.decorated
    with Counted("decorated") as counted:
        assert counted.source.check() == ""
        kept(1)
        assert counted.inbox.step == 0
        assert "calls by earlier references to the function are missed" in counted.source.check()
