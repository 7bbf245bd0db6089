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


class Depth(threading.local):
    """How deep a thread is in calls of a kind."""

    def __init__(self) -> None:
        self.now = 0


_WRAPPER = "dynprof_put"
"""The attribute of a wrapper that says so, with what it was put over."""


def _original_of(function: object) -> Any:
    """Return what a wrapper of ours was put over; None where this is none.

    Not one over ours either, to which functools.wraps has given all that ours has.
    """
    wrapper, original = getattr(function, _WRAPPER, (None, None))
    return original if wrapper is function else None


class Patches:
    """What was replaced, of whom; each wrapper knows itself what was there.

    Somebody may put another over it, and take that off again, at any time.

    Attributes:
        on: Whether wrappers mark. Those that somebody has kept do nothing once it is False.
        is_compiling: Whether a compiler is looking: it is to see the function and nothing of ours,
            neither in its code nor in what that depends on.
    """

    def __init__(self) -> None:
        self.on = False
        self.is_compiling: Callable[[], bool] = bool
        self._places: dict[tuple[int, str], Any] = {}
        self._depths: dict[str, Depth] = {}

    def replace(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Put a wrapper in the place of a function, once; what is not there is left out."""
        original = vars(owner).get(name)
        if original is None or _original_of(original) is not None:
            return
        wrapper = wrap(original)
        if isinstance(owner, ModuleType):  # where pickle finds it, as it found the original
            wrapper.__module__, wrapper.__qualname__ = owner.__name__, name
        setattr(wrapper, _WRAPPER, (wrapper, original))
        setattr(owner, name, wrapper)
        self._places[id(owner), name] = owner

    def undo(self) -> None:
        """Put back what was there, unless somebody has put something over it since."""
        self.on = False
        for (_, name), owner in self._places.items():
            while (original := _original_of(vars(owner).get(name))) is not None:
                setattr(owner, name, original)
        self._places.clear()

    def marking(self, message: str, *, unless: Callable[..., bool] | None = None) -> Wrap:
        """Return what wraps a function so that each call is a phase, while somebody takes marks.

        But for those inside another one of that name, on their thread: modules, optimizers and
        loaders hold others, and what another tool put over our wrapper is wrapped once more.

        Args:
            message: What to call it.
            unless: Is given the arguments of an outermost call; where it returns true, neither that
                call nor one inside it is a phase.
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
