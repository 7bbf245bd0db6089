"""A named function as the source of steps: each of its returns ends a step.

On Python 3.12 and newer the interpreter reports the returns of that one code object, and nothing
is replaced. On older versions, and for decorated functions, a wrapper replaces the function.
"""

from __future__ import annotations

import functools
import inspect
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from dynprof.steps.source import EndedSteps, StepOption


class FunctionSteps:
    """A step ends with each return of a function.

    Args:
        option: Names the function.
        steps: Ends the steps.
        say: Called with the source's name once the function is found.
    """

    def __init__(self, option: StepOption, steps: EndedSteps, say: Callable[[str], None]) -> None:
        self._module, self._path = option.module or "__main__", option.function.split(".")
        self._end_step, self._say = steps.end_step, say
        self._watched: _Monitored | _Wrapped | None = None
        self._function: FunctionType | None = None
        self.name = f"returns of {option.module}:{option.function}"

    def check(self) -> str:
        """Find the function once it is defined, and again after the script has redefined it."""
        if self._watched and self._is_redefined():
            self._watched.end()
            self._watched = None
        return self._watched.missed_calls if self._watched else self._find()

    def _find(self) -> str:
        owner, why = self._owner()
        name = self._path[-1]
        if not why and name not in vars(owner):
            why = f"{'.'.join((self._module, *self._path[:-1]))} has no function {name}"
        return why or self._watch(owner, name)

    def _owner(self) -> tuple[Any, str]:
        """Return the module or class that should have the function, or why there is none."""
        owner: Any = _module(self._module)
        if owner is None:
            return None, f"{self._module} has not been imported"
        for part in self._path[:-1]:
            owner = vars(owner).get(part)
            if not isinstance(owner, type):
                return None, f"{self._module} has no class {part}"
        return owner, ""

    def _is_redefined(self) -> bool:
        """Return whether the same lines have defined a new function, as ``importlib.reload`` does.

        Any other replacement probably calls the function, so the watch stays.
        """
        owner, why = self._owner()
        found = None if why else _innermost(vars(owner).get(self._path[-1]))
        known = self._function
        if not isinstance(found, FunctionType) or known is None or found is known:
            return False
        here, there = found.__code__, known.__code__
        return (here.co_filename, here.co_name) == (there.co_filename, there.co_name)

    def end(self) -> None:
        """Stop watching returns."""
        if self._watched:
            self._watched.end()

    def _watch(self, owner: Any, name: str) -> str:
        function = _plain(vars(owner)[name])
        if not isinstance(function, FunctionType):
            kind = type(function).__name__
            return f"{name} is a {kind}, not a Python function; name a function that it calls"
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return f"{name} is a generator, which returns only at its end; name what it calls"
        if sys.version_info >= (3, 12) and _is_plain(function):
            self._watched = _Monitored.of(function.__code__, self._end_step)
        self._function = _innermost(function)
        self._watched = self._watched or _Wrapped(owner, name, self._end_step)
        self._say(self.name)
        return ""


def _module(name: str) -> ModuleType | None:
    """Return an imported module, or the script, which may be named by its file."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    scripts = spec.name if spec else Path(file).stem if file else ""
    return sys.modules.get(name, main if name == scripts else None)


def _plain(found: Any) -> Any:
    """Return the function of a class method or static method."""
    return found.__func__ if isinstance(found, (classmethod, staticmethod)) else found


def _innermost(found: Any) -> Any:
    """Return the function inside decorators and dynprof's wrapper."""
    function = _plain(found)
    return inspect.unwrap(function) if isinstance(function, FunctionType) else function


def _is_plain(function: FunctionType) -> bool:
    """Return whether its code belongs to it alone, unlike the wrapper of a decorator.

    A wrapper has the wrapped function in a closure, even if it has no ``__wrapped__``.
    """
    return not hasattr(function, "__wrapped__") and {"__class__"}.issuperset(
        function.__code__.co_freevars
    )


class _Monitored:
    """Makes the interpreter report the returns of a code object.

    Args:
        tool: The tool id of ``sys.monitoring``.
        code: The code.

    Attributes:
        missed_calls: Which calls end no step; empty for none.
    """

    missed_calls = ""

    def __init__(self, tool: int, code: CodeType) -> None:
        self._tool, self._code = tool, code

    @classmethod
    def of(cls, code: CodeType, end_step: Callable[[], None]) -> _Monitored | None:
        """Start; None if both free tool ids are taken."""
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
        for tool in (4, 3):  # the others are for debuggers, coverage, profilers and optimizers
            if monitoring.get_tool(tool) is None:
                monitoring.use_tool_id(tool, "dynprof")
                monitoring.register_callback(
                    tool, monitoring.events.PY_RETURN, lambda *_: end_step()
                )
                monitoring.set_local_events(tool, code, monitoring.events.PY_RETURN)
                return cls(tool, code)
        return None

    def end(self) -> None:
        """Stop the reports."""
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
        monitoring.set_local_events(self._tool, self._code, 0)
        monitoring.register_callback(self._tool, monitoring.events.PY_RETURN, None)
        monitoring.free_tool_id(self._tool)


class _Wrapped:
    """Replaces a function wherever a module has it under some name.

    Args:
        owner: The module or class that has it.
        name: Its name there.
        end_step: Called after each return.

    Attributes:
        missed_calls: Which calls end no step.
    """

    missed_calls = "calls by earlier references to the function are missed; name one that it calls"

    def __init__(self, owner: Any, name: str, end_step: Callable[[], None]) -> None:
        self._before = vars(owner)[name]
        self._end_step: Callable[[], None] | None = end_step
        kind = type(self._before) if isinstance(self._before, (staticmethod, classmethod)) else None
        wrapper = self._around(getattr(self._before, "__func__", self._before))
        self._wrapper: Any = kind(wrapper) if kind else wrapper
        self._places = [(owner, name)]
        if isinstance(owner, ModuleType):
            self._places = list(_places_of(self._before))
        for place, known_as in self._places:
            setattr(place, known_as, self._wrapper)

    def _around(self, function: Any) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def waiting(*args: Any, **kwargs: Any) -> Any:
                result = await function(*args, **kwargs)
                if self._end_step:
                    self._end_step()
                return result

            return waiting

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if self._end_step:
                self._end_step()
            return result

        call._torchdynamo_disable = True  # type: ignore[attr-defined]
        return call

    def end(self) -> None:
        """Restore the function wherever the wrapper has not been replaced since."""
        self._end_step = None
        for owner, name in self._places:
            if vars(owner).get(name) is self._wrapper:
                setattr(owner, name, self._before)
        own = {"__wrapped__", "_torchdynamo_disable"}
        kept = {
            name: value for name, value in vars(_plain(self._wrapper)).items() if name not in own
        }
        vars(_plain(self._before)).update(kept)  # attributes that were set on the wrapper


def _places_of(function: object) -> list[tuple[ModuleType, str]]:
    """Return the modules and names that have a function, as ``from ... import`` leaves it."""
    modules = [module for module in list(sys.modules.values()) if type(module) is ModuleType]
    return [
        (module, name)
        for module in modules
        for name, value in list(vars(module).items())
        if value is function
    ]
