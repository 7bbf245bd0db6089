"""A flag that no exception between two of its lines can break."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.process.flags import Flag
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Callable


class PreemptedError(Exception):
    """What the signal handler of a script raises."""


def raise_at(line: int, action: Callable[[], object]) -> bool:
    """Run an action, and raise before its so many-th line; return whether it came so far.

    On a thread of its own: where a trace function raises amid the end of a ``with``, Python takes
    the exception that has been dealt with there for one that is dealt with from then on.
    """
    came: list[bool] = []
    thread = threading.Thread(target=lambda: came.append(_raise_here(line, action)))
    thread.start()
    thread.join()
    return came[0]


def _raise_here(line: int, action: Callable[[], object]) -> bool:
    lines = 0

    def trace(*about: Any) -> Any:
        nonlocal lines
        lines += about[1] == "line"
        if lines == line:
            sys.settrace(None)
            raise PreemptedError
        return trace

    try:
        sys.settrace(trace)
        action()
    except PreemptedError:
        return True
    finally:
        sys.settrace(None)
    return False


def waits_for(flag: Flag) -> list[bool]:
    """Have three threads wait while it is set; return what they got."""
    got: list[bool] = []
    threads = [
        threading.Thread(target=lambda: got.append(flag.wait(patience_s())), daemon=True)
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    flag.set()
    for thread in threads:
        thread.join(patience_s())
    return got


def test_all_who_wait_are_woken_each_time() -> None:
    """As many as there are, as often as it is set; and who comes later does not wait."""
    flag = Flag()
    for _ in range(50):
        flag.clear()
        assert not flag.is_set()
        assert not flag.wait(0)
        assert waits_for(flag) == [True] * 3
        assert flag.wait()
        assert flag.is_set()


def test_nobody_is_woken_by_what_was_before_it_was_cleared() -> None:
    """Set and cleared, it is not set, for however long one waits."""
    flag = Flag()
    flag.set()
    flag.clear()
    assert not flag.wait(0.001)


@pytest.mark.parametrize("name", ["set", "clear", "wait"])
def test_an_exception_at_any_line(name: str) -> None:
    """Wherever a signal handler raises, the flag can be set, cleared and waited for as before."""
    line = 1
    while True:
        flag = Flag()
        flag.set()
        if name == "wait":
            flag.clear()
        arguments = (0.01,) if name == "wait" else ()
        if not raise_at(line, functools.partial(getattr(flag, name), *arguments)):
            break
        flag.clear()
        assert waits_for(flag) == [True] * 3
        line += 1
    assert line > 1
