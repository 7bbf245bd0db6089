"""The source of a session's steps: the script, a framework, an optimizer, a function, a clock."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from dynprof.journal.status import NO_SOURCE
from dynprof.runtime.plural import counted
from dynprof.runtime.stacks import place_of
from dynprof.steps.base import CallbackSteps, EndedSteps, PeriodSteps

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.runtime.clock import Clock
    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.steps.base import Source, StepOption

    Function = Callable[..., Any]

SCRIPT = "dp.step()"
SILENT_S = 30.0
"""Seconds without a step after which the log names the other sources."""
_OTHERS = {
    "dp.step()": "script",
    "a framework's callback, of dynprof.integrations": "callback",
    'steps="optimizer"': "optimizer",
    'a function, steps="package.module:function"': "function",
    "a period in seconds, steps=5.0": "period",
}


class StepSources:
    """Sets up the requested source, and gives way to a script that calls ``step()`` itself.

    A framework's callback takes precedence over the optimizer, unless another source was requested
    by name.

    Args:
        option: The requested source.
        inbox: Counts the steps, and stores their source.
        journal: Logs the source.
        boundary: Keeps failures from the training loop.
        clock: Tells the time.
        set_step: Renumbers the running step.
    """

    def __init__(
        self,
        option: StepOption,
        inbox: Inbox,
        journal: Journal,
        boundary: ErrorBoundary,
        clock: Clock,
        set_step: Callable[[int, str], None],
    ) -> None:
        self._option, self._inbox, self._journal, self._clock = option, inbox, journal, clock
        self._boundary = boundary
        self._set_step = set_step
        self._named = SCRIPT
        inbox.name_source = self._current_name
        self._steps = EndedSteps(inbox, self._on_other_source)
        self._source: Source | None = None
        self._began_s = clock.now_s()
        self._is_silent = False
        self._callback: CallbackSteps | None = None
        self._declined = False

    @property
    def is_function(self) -> bool:
        """Whether the steps are the returns of a function."""
        return self._option.kind == "function"

    def begin(self) -> None:
        """Set up the source."""
        self._source = self._make()
        self._named = self._name
        self.check()

    def _current_name(self) -> str:
        """Return the current source of steps; called on any thread, even before ``check()``."""
        return SCRIPT if self._yields else self._named

    @property
    def _yields(self) -> bool:
        """Whether the script ends the steps itself, and therefore takes precedence."""
        may_be_both = self._callback or self._option.kind == "auto"
        return bool(self._source and may_be_both and not self._steps.is_only_source)

    @property
    def _name(self) -> str:
        return self._source.name if self._source else SCRIPT

    def check(self) -> None:
        """Check for sources that were not there before; warn if no step has ended for long."""
        why = self._source.check() if self._source else f"{SCRIPT} was not called"
        if self._yields:
            self._yield_to_script(self._steps.ended)
        if self._steps.ended or not self._steps.is_only_source:
            if self._is_silent:
                self._is_silent, self._named = False, self._name
        elif not self._is_silent and self._clock.now_s() - self._began_s > SILENT_S:
            self._is_silent = True
            text = f"no step has ended in {SILENT_S:.0f} s: {why or 'the source reported none'}"
            self._named = f"{NO_SOURCE}: {text}"
            now = "callback" if self._callback else self._option.kind
            others = [text for text, kind in _OTHERS.items() if kind != now]
            where = place_of(threading.main_thread().ident or 0) or "no Python function"
            self._journal.warning(
                f"{text}; the main thread is in {where}, which may be a long first step; other "
                f"sources of steps: {', '.join(others)}"
            )

    def why_none(self) -> str:
        """Return why a source other than the script has ended no step; empty if it has."""
        if self._source is None or self._steps.ended or not self._steps.is_only_source:
            return ""
        return self._source.check() or "the source reported none"

    def end(self) -> None:
        """Stop giving steps; also called in a forked child."""
        source, self._source, self._callback = self._source, None, None
        if source:
            source.end()

    def follow(self, on_begin: Callable[[int], object]) -> None:
        """Call a function with the number of each step that dynprof itself counts."""
        self._steps.on_begin = on_begin

    def renumber(self, step: int) -> None:
        """Continue from another number."""
        self._steps.renumber(step)

    def reached(self, framework: str, step: int) -> None:
        """Process a framework's step count, which is the number of the running step.

        Args:
            framework: The framework of the callback.
            step: The count.
        """
        if self._callback and self._callback.framework == framework:
            self._callback.reached(step)
        elif not self._declined:
            self._boundary.attempt(
                "processing a callback", lambda: self._use_framework(framework, step)
            )

    def _use_framework(self, framework: str, step: int) -> None:
        """Make a framework's callback the source, unless another source takes precedence."""
        found = CallbackSteps(framework, self._steps, self._renumber_running)
        kind = self._option.kind
        if kind not in ("script", "auto") or not (self._callback or self._steps.is_only_source):
            self._declined = True
            self._journal.info(f"{found.name} ends no steps; they come from {self._name}")
            return
        self.end()
        self._source = self._callback = found
        found.begin(step)
        self._found(found.name)

    def _renumber_running(self, step: int, why: str) -> None:
        self._boundary.attempt("renumbering the step", lambda: self._set_step(step, why))

    def _make(self) -> Source | None:
        if self._option.kind in ("auto", "optimizer"):
            return OptimizerSteps(self._steps, self._found, self._boundary)
        if self._option.kind == "function":
            return FunctionSteps(self._option, self._steps, self._found)
        if self._option.kind == "period":
            return PeriodSteps(self._option.seconds, self._steps, self._clock)
        return None

    def _found(self, name: str, advice: str = "") -> None:
        """Log the source that ends the steps from now on."""
        self._is_silent, self._named = False, name
        self._journal.info(f"steps come from {name}{advice}")

    def _on_other_source(self, given: int) -> None:
        self._boundary.attempt("giving way to the script", lambda: self._yield_to_script(given))

    def _yield_to_script(self, given: int) -> None:
        """Leave the steps to the script, which turned out to end them itself."""
        if self._source is None:  # another thread has, at the same moment
            return
        name = self._named
        self._declined = True
        self.end()
        self._named = SCRIPT
        text = f"the script calls {SCRIPT} itself, so {name} ends no more steps"
        if given:
            text += f", and {counted(given, 'step')} that it had ended no longer count"
        self._set_step(self._inbox.step - given, text)


class FunctionSteps:
    """A step ends with each return of a function.

    On Python 3.12 and newer the interpreter reports the returns of that one code object, and
    nothing is replaced. On older versions, and for decorated functions, a wrapper replaces the
    function.

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

    def _around(self, function: Any) -> Function:
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


class OptimizerSteps:
    """A step ends with each step of one optimizer, the first one that steps.

    If other optimizers step too, the log says how to name another one. After the chosen optimizer
    is deleted, the next one that steps is chosen. A step that a ``GradScaler`` skips, because the
    gradients are not finite, also counts.

    Args:
        steps: Ends the steps.
        say: Called with the optimizer, and how to name another one, on each change.
        boundary: Keeps failures from the training loop.
    """

    def __init__(
        self, steps: EndedSteps, say: Callable[..., None], boundary: ErrorBoundary
    ) -> None:
        self._steps, self._say, self._boundary = steps, say, boundary
        self._hook, self._scaler = _PostHook(self._on_step), _ScalerStep(self._on_step)
        self._chosen: Callable[[], Any] = lambda: None
        self._are_several = False
        self.name = "the optimizer"

    def check(self) -> str:
        """Hook into optimizers and scalers once torch has them."""
        module = sys.modules.get("torch.optim.optimizer")
        if not hasattr(module, "register_optimizer_step_post_hook"):
            return "torch has not been imported"
        self._hook.install(module)
        self._scaler.install(sys.modules.get("torch.amp.grad_scaler"))
        return "" if self._chosen() else "no torch optimizer has made a step"

    def end(self) -> None:
        """Remove the hooks."""
        self._hook.uninstall()
        self._scaler.uninstall()

    def _on_step(self, optimizer: Any, _args: object = None, _kwargs: object = None) -> None:
        self._scaler.seen += 1
        if optimizer is not self._chosen():
            self._boundary.attempt("choosing an optimizer", lambda: self._choose(optimizer))
        if optimizer is self._chosen():
            self._steps.end_step()

    _on_step._torchdynamo_disable = True  # type: ignore[attr-defined]

    def _choose(self, optimizer: Any) -> None:
        if self._chosen() is None:
            self._chosen, self._are_several = weakref.ref(optimizer), False
            self.name = f"the optimizer {type(optimizer).__name__}"
            self._say(self.name)
        elif not self._are_several:
            self._are_several = True
            self.name += ", the first of several"
            other = f"{type(optimizer).__module__}:{type(optimizer).__qualname__}.step"
            self._say(self.name, f'; steps="{other}" selects another one, ":function" a function')


class _PostHook:
    """A hook after each step of each optimizer, including optimizers that exist already.

    Torch iterates over the dict of its hooks while other threads run. If the dict grows or shrinks
    during that, the training raises an error. So the hook is added only to an empty dict; otherwise
    it wraps the last hook there. At the end it is replaced, not removed.

    Args:
        on_step: Called with the optimizer.
    """

    def __init__(self, on_step: Function) -> None:
        self._on_step, self._put = on_step, on_step
        self._hooks: Any = {}
        self._key: object = None
        self._before: Function | None = None

    def install(self, module: Any) -> None:
        """Install the hook unless it is installed.

        Args:
            module: The module of torch's optimizers.
        """
        hooks = getattr(module, "_global_optimizer_post_hooks", {})
        if hooks.get(self._key) is self._put:
            return
        self._hooks = hooks
        if not hooks:
            self._key = module.register_optimizer_step_post_hook(self._on_step).id
            self._before = None
            self._put = self._on_step
        else:
            self._key, self._before = list(hooks.items())[-1]
            self._put = hooks[self._key] = _both(self._before, self._on_step)

    def uninstall(self) -> None:
        """Restore the earlier hook; if there was none, leave a function that does nothing."""
        if self._hooks.get(self._key) is self._put:
            self._hooks[self._key] = self._before or "".format


def _both(first: Any, second: Function) -> Function:
    def call(*args: Any) -> None:
        first(*args)
        second(*args)

    return call


class _ScalerStep:
    """Reports the steps that a ``GradScaler`` skips.

    Args:
        on_step: Called with the optimizer.

    Attributes:
        seen: How many optimizer steps were reported.
    """

    def __init__(self, on_step: Function) -> None:
        self._on_step = on_step
        self._kind: Any = None
        self._step: Function | None = None
        self._before: Function | None = None
        self.seen = 0

    def install(self, module: Any) -> None:
        """Wrap the scalers' ``step``; without a module there are no scalers."""
        kind = getattr(module, "GradScaler", None)
        if kind is None or self._step is not None:
            return
        before = kind.step

        @functools.wraps(before)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            seen = self.seen
            result = before(scaler, optimizer, *args, **kwargs)
            if self.seen == seen and self._step is not None:
                self._on_step(optimizer)
            return result

        self._kind, self._before, self._step = kind, before, step
        kind.step = step

    def uninstall(self) -> None:
        """Restore torch's own ``step``, unless it has been replaced since."""
        step, self._step = self._step, None
        if step is not None and vars(self._kind).get("step") is step:
            self._kind.step = self._before
