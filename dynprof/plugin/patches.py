"""Replaces functions by wrappers, and restores them."""

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


class Depth(threading.local):
    """Nesting depth of a thread in calls of one kind."""

    def __init__(self) -> None:
        self.now = 0


_WRAPPER = "dynprof_put"
"""Attribute of a wrapper: the wrapper itself and the function that it wraps."""


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
