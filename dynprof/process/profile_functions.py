"""Profile functions of Python's, one a thread: whose they are, and whether a thread is amid one.

A profiler puts one of C on threads, and the script may put another one over it at any time. What
Python itself returns is what the function is given; which one it is only the state of the thread
tells, where Python 3.10 to 3.13 have the two next but one to each other.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

from dynprof.process.garbage_collector import no_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORD = ctypes.sizeof(ctypes.c_void_p)
"""Bytes of a pointer."""
_WORDS = 32
"""So many words of a thread's state are looked through; there are more."""
_BEFORE = 2
"""So many words before what a function is given stands where it is."""
_MADE_AT = (3 if sys.version_info >= (3, 11) else 2) * WORD
"""There a state has what is not 0 once it is made whole: from Python 3.11 on, which puts it into
the list before, that it is; else the interpreter."""
_LOOKS, _LOOK_AGAIN_S = 1000, 0.0001
"""To make one takes a microsecond, and as long as the system keeps its thread from a processor."""


@dataclass(frozen=True)
class ProfileFunction:
    """A function of C that Python calls at each call on a thread.

    Attributes:
        address: Where it is.
        at: Where states of threads have that, in bytes.
        given: What it is given on this thread; on others perhaps something else.
    """

    address: int
    at: int
    given: Any = field(compare=False)

    @classmethod
    def here(cls) -> ProfileFunction | None:
        """Return that of the calling thread; None where it has none, or that cannot be told."""
        given = sys.getprofile()
        if given is None:
            return None
        state = c_function("PyThreadState_Get", 0)()
        words = list((ctypes.c_void_p * _WORDS).from_address(state))
        found = words.index(id(given)) - _BEFORE if id(given) in words else -1
        return cls(words[found] or 0, found * WORD, given) if found >= 0 else None

    def put_here(self) -> None:
        """Have this thread call it again."""
        put = ctypes.pythonapi["PyEval_SetProfile"]
        put.restype, put.argtypes = None, [ctypes.c_void_p, ctypes.py_object]
        put(self.address, self.given)

    @classmethod
    def of_python(cls, given: Any) -> ProfileFunction:
        """Return that by which Python calls a function on a thread, which must have none so far."""
        sys.setprofile(given)
        try:
            return cast("ProfileFunction", cls.here())
        finally:
            sys.setprofile(None)

    def put_on_all(self) -> None:
        """Have all threads call it that call none."""
        put = partial(_put, address=self.address, given=id(self.given))
        _change(lambda states: map(operator.not_, _words(states, self.at)), put)

    def take_off_all(self) -> None:
        """Have no thread call it any more, and leave alone who calls another one."""
        _change(partial(_have, at=self.at, word=self.address), partial(_take_off, at=self.at))

    def take_off_given(self) -> None:
        """Have no thread call it with what this one is given."""
        theirs = partial(_have, at=self.at + _BEFORE * WORD, word=id(self.given))
        _change(theirs, partial(_take_off, at=self.at))


class CallsOfThread:
    """Knows whether the function that the calls of this thread are given to still gets them.

    Args:
        are_recorded: Whether anybody records them.

    Attributes:
        cut: What has taken its place by the end, in a sentence; empty where nothing has, or another
            thread came to the end.
    """

    def __init__(self, *, are_recorded: bool) -> None:
        self._here = threading.local()  # an ended thread's number is the next one's
        self._here.is_it, self._given = True, are_recorded and sys.getprofile()
        self.cut: tuple[str, ...] = ()

    def end(self) -> None:
        """Look once more."""
        is_here = hasattr(self._here, "is_it")
        if is_here and self._given and sys.getprofile() is not self._given:
            what = "a profile function of its own, by sys.setprofile() or cProfile"
            self.cut = (f"the script has set {what}: later calls of that thread are not there",)


def audited() -> str:
    """Say what is wrong with calls of all threads where the script audits; empty where nothing is.

    To put a function on a thread is an event to be audited, and so to be looked at in Python, with
    other threads running and ending amid that. One that begins then is told that another is having
    one put, and never runs; one that ends leaves a state behind that is still to be changed.
    """
    try:
        sys.audit(cast("str", None))  # looks at the name only if anybody audits
    except TypeError:
        return "the script audits what Python does (sys.addaudithook), which runs amid that"
    return ""


def take_off_each() -> None:
    """Have no thread call any profile function: what Python 3.12 has a function for."""
    _change(lambda states: map(bool, states), _put)


def _change(
    chosen: Callable[[Iterator[int]], Iterator[bool]],
    change: Callable[[Iterator[int]], Iterator[object]],
) -> None:
    """Change the states of those threads that are chosen, again while one was but half made.

    A thread that C begins, or that ends one of VizTracer's, makes its state without the GIL, and
    puts it into the list first, where Python 3.11 would crash of changing it. Those behind it are
    not to be seen yet either.
    """
    for _ in range(_LOOKS):
        made: dict[int, bool] = {}
        every, marks, looked, again = itertools.tee(_states(), 4)
        is_made = map(made.setdefault, every, map(bool, _words(marks, _MADE_AT)))
        wanted = map(operator.and_, is_made, chosen(looked))
        with no_collection():
            deque(change(itertools.compress(again, wanted)), maxlen=0)
        if all(made.values()):
            return
        time.sleep(_LOOK_AGAIN_S)


def _have(states: Iterator[int], at: int, word: int) -> Iterator[bool]:
    return map(operator.eq, _words(states, at), repeat(word))


def _states() -> Iterator[int]:
    """Return where the states of all threads are, found one after the other as they are asked for.

    Between two bytecodes another thread may run, and end, whose state is freed; so this, and all
    that is made of it, are iterators of C, which one call walks through.
    """
    head = c_function("PyInterpreterState_ThreadHead", 1)
    following = c_function("PyThreadState_Next", 2)  # takes one: C lets the other be
    interpreter = ctypes.c_void_p(c_function("PyInterpreterState_Get", 0)())
    found = itertools.chain(map(head, (interpreter,)), repeat(None))
    return itertools.takewhile(bool, itertools.accumulate(found, following))


def _words(states: Iterator[int], at: int) -> Iterator[int | None]:
    """Return what states have in one place; None for 0."""
    places = map(operator.add, states, repeat(at))
    return map(operator.attrgetter("value"), map(ctypes.c_void_p.from_address, places))


def _take_off(states: Iterator[int], at: int) -> Iterator[object]:
    if not audited():
        return _put(states)
    # Without a word to Python, which goes on to look there for one.
    here, again = itertools.tee(map(_Words.from_address, map(operator.add, states, repeat(at))))
    return zip(
        map(setattr, here, repeat("function"), repeat(None)),
        map(setattr, again, repeat("given"), repeat(None)),
        strict=True,
    )


class _Words(ctypes.Structure):
    """What a thread's state has of it."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("traces", ctypes.c_void_p),
        ("given", ctypes.c_void_p),
    )


def _put(
    states: Iterator[int], address: int | None = None, given: int | None = None
) -> Iterator[object]:
    return map(c_function("_PyEval_SetProfile", 3), states, repeat(address), repeat(given))


def c_function(name: str, arguments: int) -> Any:
    """Return a function of Python's that takes and returns pointers; it keeps the GIL."""
    function = ctypes.pythonapi[name]
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p] * arguments
    return function


def is_noting_a_call() -> bool:
    """Return whether this thread is amid a profile function, out of which a handler was called.

    What that runs in Python, a collector's callback say, or a ``__repr__``, lets signals be
    handled. Torch waits in ``stop`` until each thread has left it: for ever, where this one has
    called that itself, or waits for the one that has. Python calls no trace function there either,
    which tells; a debugger keeps its own.
    """
    if sys.gettrace():
        return False
    called: list[object] = []

    def note(*_: object) -> None:
        called.append(None)

    sys.settrace(note)
    try:
        _do_nothing()
    finally:
        sys.settrace(None)
    return not called


def _do_nothing() -> None:
    """Be a call."""
