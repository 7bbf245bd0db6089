"""Functions that were put in the place of others, and how to put those back."""

from __future__ import annotations

import functools
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dynprof.marks import open_ranges
from dynprof.marks.sinks import SINKS
from dynprof.phases import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = Callable[..., Any]
    Wrap = Callable[[Function], Function]


class _Depth(threading.local):
    """How deep a thread is in calls of a kind."""

    def __init__(self) -> None:
        self.now = 0


class Patches:
    """What was replaced: whose attribute, by what, and what was there.

    Attributes:
        on: Whether wrappers mark. Those that somebody has kept do nothing once it is False.
        is_compiling: Whether a compiler is looking: it is to see the function and nothing of ours,
            neither in its code nor in what that depends on.
    """

    def __init__(self) -> None:
        self.on = False
        self.is_compiling: Callable[[], bool] = bool
        self._made: dict[tuple[int, str], tuple[Any, Function, Function]] = {}
        self._depths: dict[str, _Depth] = {}

    def replace(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Put a wrapper in the place of a function, once; what is not there is left out."""
        original = vars(owner).get(name)
        made = self._made.get((id(owner), name))
        if original is None or (made is not None and made[1] is original):
            return
        wrapper = wrap(original)
        if isinstance(owner, ModuleType):  # where pickle finds it, as it found the original
            wrapper.__module__, wrapper.__qualname__ = owner.__name__, name
        setattr(owner, name, wrapper)
        self._made[id(owner), name] = (owner, wrapper, original)

    def undo(self) -> None:
        """Put back what was there, unless somebody has put something over it since."""
        self.on = False
        for (_, name), (owner, wrapper, original) in self._made.items():
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original)
        self._made.clear()

    def marking(self, message: str) -> Wrap:
        """Return what wraps a function so that each call is a phase, while somebody takes marks.

        But for those inside another one of that name, on their thread: modules, optimizers and
        loaders hold others, and what another tool put over our wrapper is wrapped once more.

        Args:
            message: What to call it.
        """
        depth, is_compiling = self._depths.setdefault(message, _Depth()), self.is_compiling

        def wrap(function: Function) -> Function:
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if is_compiling() or not SINKS.all or not self.on or depth.now:
                    return function(*args, **kwargs)
                number = open_ranges.start(message, DOMAIN)
                depth.now += 1
                try:
                    return function(*args, **kwargs)
                finally:
                    depth.now -= 1
                    open_ranges.end(number)

            return call

        return wrap
