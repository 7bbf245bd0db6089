"""Exceptions of the script's signal handlers are distinguished from failures of dynprof."""

from __future__ import annotations

import functools
import importlib
import signal
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.runtime.error_boundary import came_from_a_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class PreemptionError(Exception):
    """The exception that the handlers raise."""


def plain(_number: int, _frame: object) -> None:
    raise PreemptionError


def with_default(_number: int, _frame: object, text: str = "time is up") -> None:
    raise PreemptionError(text)


def letting_go(_number: int, frame: object) -> None:
    del frame
    raise PreemptionError


class Handlers:
    """A class with a handler as a method."""

    def method(self, _number: int, _frame: object) -> None:
        raise PreemptionError


@pytest.fixture
def handled() -> Iterator[Callable[[Any], object]]:
    """Return a function that installs a handler."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "handler",
    [
        plain,
        letting_go,
        Handlers().method,
        functools.partial(with_default, text="now"),
    ],
)
def test_an_exception_of_a_handler_is_recognised(
    handled: Callable[[Any], object], handler: Any
) -> None:
    """The handler may have any form, and use its arguments in any way."""
    handled(handler)
    with pytest.raises(PreemptionError) as raised:
        signal.raise_signal(signal.SIGUSR1)
    assert came_from_a_signal(raised.value)


def test_a_handler_that_is_not_installed_any_more(handled: Callable[[Any], object]) -> None:
    """A function that was called with a number and a frame counts as a handler."""
    handled(with_default)
    with pytest.raises(PreemptionError) as raised:
        signal.raise_signal(signal.SIGUSR1)
    handled(signal.SIG_DFL)
    assert came_from_a_signal(raised.value)


def test_a_failure_of_dynprof_is_recognised(handled: Callable[[Any], object]) -> None:
    """This holds with and without handlers; other functions with numbers are not handlers."""
    handled(plain)

    def fails(number: int, _other: object) -> None:
        signal.Signals(number)

    for failing in (lambda: fails(10_000, None), lambda: importlib.import_module("no.such")):
        with pytest.raises((ValueError, ImportError)) as raised:
            failing()
        assert not came_from_a_signal(raised.value)
