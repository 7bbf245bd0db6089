"""Decide whether a failure in a script's profile warns, as with the vendor, or raises."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from dynprof.runtime.error_boundary import ErrorBoundary
from dynprof.runtime.standard_streams import warn_script

if TYPE_CHECKING:
    from collections.abc import Callable


class Strictness:
    """Raises or warns: the only place that decides this for a profile or a call.

    Ctrl-C, ``sys.exit()`` and exceptions of the script's signal handlers always pass.

    Args:
        name: Name of the class or function that the script calls, for the warnings.
        raises: Whether the script passed ``strict=True``.
    """

    def __init__(self, name: str, *, raises: bool) -> None:
        self._name, self._raises = name, raises
        self._boundary, self._each_step = ErrorBoundary(self), ErrorBoundary(_First(self))

    def reject(self, what: str, taken: str) -> None:
        """Report a wrong argument, and what is used instead.

        Raises:
            ValueError: The script is strict.
        """
        if self._raises:
            raise ValueError(what)
        warn_script(f"{what}; {taken}")

    def attempt(self, doing: str, action: Callable[[], object]) -> bool:
        """Run an action; on failure warn and return True.

        Args:
            doing: Name of the action for the warning, such as "profile.stop()".
            action: The action.

        Raises:
            Exception: The action failed, and the script is strict.
        """
        if self._raises:
            action()
            return False
        return self._boundary.attempt(doing, action) is not None

    def attempt_each_step(self, doing: str, action: Callable[[], object]) -> bool:
        """Run an action at each step as :meth:`attempt` does; warn only once, in one line.

        Args:
            doing: Name of the action for the warning.
            action: The action.

        Raises:
            Exception: The action failed, and the script is strict.
        """
        if self._raises:
            return self.attempt(doing, action)
        return self._each_step.attempt(doing, action) is not None

    def set_status(self, *, last_error: str) -> None:
        """Do nothing: there is no status."""

    def error(self, text: str) -> None:
        """Warn of a failure."""
        warn_script(f"the script continues, but {text}\n({self._name}(strict=True) raises it)")


class _First:
    """Warns of the first failure, without its traceback."""

    def __init__(self, strictness: Strictness) -> None:
        self._strictness, self._is_said = strictness, False

    def set_status(self, *, last_error: str) -> None:
        """Do nothing: there is no status."""

    def error(self, text: str) -> None:
        """Warn, unless an earlier failure was reported."""
        if not self._is_said:
            self._is_said = True
            self._strictness.error(f"{text.splitlines()[0]}; later failures are not repeated")


class _Strict(Protocol):
    """An object with a strictness."""

    _strictness: Strictness


_S = TypeVar("_S", bound=_Strict)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def warn_on_failure(
    otherwise: Callable[[], Any] = lambda: None,
) -> Callable[[Callable[Concatenate[_S, _P], _R]], Callable[Concatenate[_S, _P], _R]]:
    """Make a method warn and return ``otherwise()`` on failure, unless its object is strict."""

    def decorate(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
        @functools.wraps(method)
        def call(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            found: list[_R] = []
            self._strictness.attempt(
                f"{type(self).__name__}.{method.__name__}()",
                lambda: found.append(method(self, *args, **kwargs)),
            )
            return found[0] if found else otherwise()

        return call

    return decorate
