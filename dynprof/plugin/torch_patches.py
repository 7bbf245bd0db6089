"""Wraps torch's functions that are phases, names the phases, and restores the functions."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from dynprof.marks import open_ranges
from dynprof.marks.sinks import SINKS
from dynprof.phases import DOMAIN, LOADING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Function = Callable[..., Any]
    Wrap = Callable[[Function], Function]

COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)
"""Functions of ``torch.distributed``; the collectives that DDP and FSDP start do not use them."""
CHECKPOINTS = "torch.distributed.checkpoint"
"""Package whose saves are phases themselves; its threads call ``torch.save`` for the parts."""
_STEP = "optimizer.step"
_WRAPPER = "dynprof_put"
"""Attribute of a wrapper: the wrapper itself and the function that it wraps."""


class Depth(threading.local):
    """Nesting depth of a thread in calls of one kind."""

    def __init__(self) -> None:
        self.now = 0


def _original_of(function: object) -> Any:
    """Return the function that a wrapper of ours wraps; None if it is not our wrapper.

    A wrapper around ours is not one either: functools.wraps only copied our attributes to it.
    """
    wrapper, original = getattr(function, _WRAPPER, (None, None))
    return original if wrapper is function else None


class Patches:
    """The replaced functions and their owners; each wrapper keeps its original.

    Another tool may wrap our wrapper, and unwrap it again, at any time.

    Attributes:
        on: Whether wrappers mark. Wrappers that another object kept do nothing once it is False.
        is_compiling: Returns whether a compiler traces the code. It must see only the original,
            both in the code and in what the code depends on.
    """

    def __init__(self) -> None:
        self.on = False
        self.is_compiling: Callable[[], bool] = bool
        self._places: dict[tuple[int, str], Any] = {}
        self._depths: dict[str, Depth] = {}

    def replace(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Replace a function by a wrapper, once; a missing function is skipped."""
        original = vars(owner).get(name)
        if original is None or _original_of(original) is not None:
            return
        wrapper = wrap(original)
        if isinstance(owner, ModuleType):  # pickle finds functions by these names
            wrapper.__module__, wrapper.__qualname__ = owner.__name__, name
        setattr(wrapper, _WRAPPER, (wrapper, original))
        setattr(owner, name, wrapper)
        self._places[id(owner), name] = owner

    def undo(self) -> None:
        """Restore the originals, except where another tool has wrapped our wrapper since."""
        self.on = False
        for (_, name), owner in self._places.items():
            while (original := _original_of(vars(owner).get(name))) is not None:
                setattr(owner, name, original)
        self._places.clear()

    def marking(self, message: str, *, unless: Callable[..., bool] | None = None) -> Wrap:
        """Return a wrapper factory that makes each call a phase, while marks are taken.

        A call inside another one of the same phase and thread is not a phase. Modules, optimizers
        and loaders contain others, and another tool's wrapper around ours is wrapped again.

        Args:
            message: The name of the phase.
            unless: Receives the arguments of an outermost call. If it returns true, neither that
                call nor calls inside it are phases.
        """
        depth, is_compiling = self._depths.setdefault(message, Depth()), self.is_compiling

        def wrap(function: Function) -> Function:
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if is_compiling() or not SINKS.all or not self.on or depth.now:
                    return function(*args, **kwargs)
                is_phase = unless is None or not unless(*args)
                number = open_ranges.start(message, DOMAIN) if is_phase else 0
                depth.now += 1
                try:
                    return function(*args, **kwargs)
                finally:
                    depth.now -= 1
                    open_ranges.end(number)

            return call

        return wrap


def wrap_all(patches: Patches) -> None:
    """Wrap the loaded functions that are not wrapped yet."""
    torch: Any = sys.modules["torch"]
    patches.is_compiling = getattr(torch.compiler, "is_compiling", bool)
    marking = patches.marking
    loader = _module("torch.utils.data.dataloader")
    patches.replace(getattr(loader, "_BaseDataLoaderIter", loader), "__next__", marking(LOADING))
    forward = marking("forward", unless=_is_not_model_forward)
    patches.replace(torch.nn.Module, "__call__", lambda call: _ModuleCall(call, forward(call)))
    patches.replace(torch.autograd, "backward", marking("backward"))
    saving = marking("save_checkpoint")
    for module in (torch, torch.serialization):
        patches.replace(module, "save", lambda save: _except_from(CHECKPOINTS, save, saving(save)))
    for name in ("save", "async_save"):
        patches.replace(_module(CHECKPOINTS), name, saving)
    for name in COLLECTIVES:
        patches.replace(_module("torch.distributed"), name, marking(name))
    _wrap_optimizers(torch.optim.Optimizer, patches)
    patches.on = True


def unwrap_all(patches: Patches) -> None:
    """Restore every function."""
    torch: Any = sys.modules["torch"]
    patches.undo()
    _STEPS.reset()
    for kind in _all_subclasses(torch.optim.Optimizer):
        step = vars(kind).get("step")
        if _is_own_wrapper(step):  # of a kind of optimizer that torch has wrapped since
            setattr(kind, "step", step.__wrapped__)  # noqa: B010 - its type has no such attribute


def _is_not_model_forward(module: Any, *_: object) -> bool:
    """Return whether a forward pass belongs to a loss, or is recomputed by a backward pass."""
    torch: Any = sys.modules["torch"]
    if isinstance(module, torch.nn.modules.loss._Loss):
        return True
    backward = getattr(torch._C, "_current_graph_task_id", None)  # -1 outside of a backward pass
    return backward is not None and backward() != -1


def _except_from(callers: str, function: Function, marked: Function) -> Function:
    """Return a function that marks its calls, except those from a package."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        return (function if caller.startswith(callers) else marked)(*args, **kwargs)

    return call


class _ModuleCall:
    """Replaces ``Module.__call__``, and has the same ``__code__``.

    Torch's Python tracer reads the code of ``Module.__call__`` once per process. In every frame
    that runs it, it takes the module from the variable ``self``. The code of a wrapper would not
    work: the tracer keeps what it read first, and uninstall() removes the wrapper.

    Equal to the function that a module's ``__call__`` runs, because torch.export compares them.
    """

    def __init__(self, call: Any, marking: Function) -> None:
        functools.update_wrapper(self, call)
        self.__code__ = call.__code__
        self._marking = marking

    def __get__(self, module: Any, kind: type | None = None) -> Any:
        return self if module is None else MethodType(self._marking, module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._marking(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._marking

    def __hash__(self) -> int:
        return hash(self._marking)


class _Steps:
    """The range ``step N`` from one step of an optimizer to its next, as in the vendor's plugin.

    The optimizer is the one that was created last. If the plugin saw none being created, or that
    one is gone, it is the next that steps. ``N`` counts these steps from 1, also without a window.
    """

    def __init__(self) -> None:
        self._inside = Depth()
        self._optimizer: Callable[[], object] = _nothing
        self._count = self._range = 0

    def reset(self) -> None:
        """End the range and restart the count at 1."""
        open_ranges.end(self._range)
        self._optimizer, self._count, self._range = _nothing, 0, 0

    def wrap_init(self, init: Function, patches: Patches) -> Function:
        """Return an optimizer's ``__init__`` that also makes it the tracked optimizer."""

        @functools.wraps(init)
        def make(optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            if patches.on:
                self._optimizer = weakref.ref(optimizer)

        return make

    def wrap_step(self, step: Function, patches: Patches) -> Function:
        """Return an optimizer's ``step`` that also begins the next range."""
        is_compiling, inside = patches.is_compiling, self._inside

        @functools.wraps(step)
        def call(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not patches.on or inside.now or not self._is_tracked(optimizer):
                return step(optimizer, *args, **kwargs)
            inside.now += 1  # its step may call that of its base class
            try:
                found = step(optimizer, *args, **kwargs)
            finally:
                inside.now -= 1
            self._begin_next()
            return found

        return call

    def _is_tracked(self, optimizer: object) -> bool:
        if self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        return self._optimizer() is optimizer

    def _begin_next(self) -> None:
        open_ranges.end(self._range)
        self._count += 1
        self._range = open_ranges.start(f"step {self._count}", DOMAIN)


def _nothing() -> None:
    """Return None, like a weak reference to a deleted object."""


_STEPS = _Steps()
"""One per process."""
_MARKS = "marks_phases"


def _wrap_optimizers(base: Any, patches: Patches) -> None:
    """Wrap the steps of all optimizers; torch wraps each class itself on its first instance."""
    mark = patches.marking(_STEP)

    def marking_step(step: Function) -> Function:
        found: Any = _STEPS.wrap_step(mark(step), patches)
        found.__wrapped__ = step
        setattr(found, _MARKS, found)
        wrapped: Function = found
        return wrapped

    def of_new_kinds(hook: Function) -> Function:
        def hook_step(step: Function) -> Function:
            hooked: Any = hook(step)
            hooked.hooked = True  # torch checks this and does not wrap it again
            return marking_step(hooked)

        return staticmethod(hook_step)

    patches.replace(base, "__init__", lambda init: _STEPS.wrap_init(init, patches))
    patches.replace(base, "profile_hook_step", of_new_kinds)
    patches.replace(base, "zero_grad", patches.marking("optimizer.zero_grad"))
    for kind in _all_subclasses(base):
        step = vars(kind).get("step")
        if getattr(step, "hooked", False) and not _is_own_wrapper(step):
            patches.replace(kind, "step", marking_step)


def _is_own_wrapper(step: object) -> bool:
    """Return whether this is our wrapper, not one around it with its attributes copied."""
    return step is not None and getattr(step, _MARKS, None) is step


def _all_subclasses(base: Any) -> Iterator[Any]:
    for kind in base.__subclasses__():
        yield kind
        yield from _all_subclasses(kind)


def _module(name: str) -> Any:
    """Return a loaded module; a stub without functions if it is not loaded."""
    return sys.modules.get(name, _NoModule)


class _NoModule:
    """Stub for a module that is not loaded."""
