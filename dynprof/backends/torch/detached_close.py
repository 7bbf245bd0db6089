"""Ends a ``torch.profiler`` recording without stopping the training thread.

The ordinary close collects all events of the window inside one Python call, which takes longer
than the window itself. But libtorch exports the C++ functions behind this call, and ctypes
releases the GIL while it calls them. So the training thread only detaches the profiler's state, in
about 20 microseconds. Another thread turns the state into a trace.

The functions are in ``libtorch_cpu.so``:

- ``ProfilerStateBase::pop(bool) -> std::shared_ptr``, ``push(std::shared_ptr&&)``,
  ``removeCallback()``: the profiler state of one thread, or of all;
- ``get(bool) -> ProfilerStateBase*`` or ``getGlobal() -> std::shared_ptr``: the state of all
  threads, which stays in place. :data:`_STATE_OF_ALL` says which builds have which;
- ``disableProfiler() -> std::unique_ptr<ProfilerResult>``: stops libkineto, collects the events;
- ``ProfilerResult::save(const std::string&)``, ``~ProfilerResult()``.

C++ returns objects with a destructor through a hidden pointer, on x86-64 and aarch64. ctypes
receives a structure of more than 16 bytes in the same way.

The results of an ordinary close are written by ``ProfilerResult::save``, too. torch holds the GIL
while it writes a trace, so no Python runs for seconds. The exported function needs no GIL, and only
the address of the results, which pybind11 gives by its protocol for other libraries,
``_pybind11_conduit_v1_``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.backends.torch.quiescence import wait_for_operators, wait_for_threads_inside
from dynprof.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

_STATE = "_ZN5torch8profiler4impl17ProfilerStateBase"
_RESULT = "_ZN5torch8autograd8profiler14ProfilerResult"
_SYMBOLS = {
    "pop": f"{_STATE}3popEb",
    "push": f"{_STATE}4pushEOSt10shared_ptrIS2_E",
    "remove_callback": f"{_STATE}14removeCallbackEv",
    "disable": "_ZN5torch8autograd8profiler15disableProfilerEv",
    "save": f"{_RESULT}4saveERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
    "destroy": f"{_RESULT}D1Ev",
}
_EXCHANGE_AND_ADD = "_ZN9__gnu_cxx18__exchange_and_addEPVii"
_USE_COUNT_AT = 8
"""Offset in the control block of a ``std::shared_ptr``, after its vtable pointer."""
OPERATORS_WAIT_S = 0.1
"""Longest wait for other threads' running operators, which write to the recording at their end."""


class _Returned(ctypes.Structure):
    """A smart pointer, in a structure large enough to be returned through a hidden pointer."""

    _fields_ = [
        ("pointer", ctypes.c_void_p),
        ("control_block", ctypes.c_void_p),
        ("rest", ctypes.c_void_p * 2),
    ]


def _shared_address(get_global: Any) -> int | None:
    state: _Returned = get_global()
    _drop_reference(state)
    address: int | None = state.pointer
    return address


_STATE_OF_ALL: tuple[tuple[str, Any, tuple[Any, ...], Callable[[Any], int | None]], ...] = (
    (f"{_STATE}3getEb", ctypes.c_void_p, (ctypes.c_bool,), lambda get: get(True)),
    (f"{_STATE}9getGlobalEv", _Returned, (), _shared_address),
)
"""Symbol, result, arguments, and a call that returns the address of the state of all threads.

This table holds the only difference between builds of torch: up to 2.13 they have the first entry,
from 2.14 on the second. The first symbol found is used, and the self-test tries it.
"""


class _StdString(ctypes.Structure):
    """A read-only ``const std::string`` of libstdc++."""

    _fields_ = [
        ("data", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("unused", ctypes.c_size_t),
    ]


class DetachedClose:
    """libtorch's functions for the detached close.

    Raises:
        BackendError: This build of torch lacks one of them.
    """

    def __init__(self) -> None:
        path = library()
        self._parent_state: int | None = None
        try:
            with_gil, without_gil = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
            self._state_of_all = _state_of_all(with_gil)
            self._pop = _function(with_gil, "pop", _Returned, ctypes.c_bool)
            self._remove_callback = _function(with_gil, "remove_callback", None, ctypes.c_void_p)
            self._push = _function(without_gil, "push", None, ctypes.c_void_p)
            self._disable = _function(without_gil, "disable", _Returned)
            self._save = _function(without_gil, "save", None, ctypes.c_void_p, ctypes.c_void_p)
            self._destroy = _function(without_gil, "destroy", None, ctypes.c_void_p)
            runtime = ctypes.CDLL("libstdc++.so.6")
            self._delete = runtime["_ZdlPv"]
        except (OSError, AttributeError) as error:
            text = "this build of torch lacks functions of the detached close"
            raise BackendError(f"{text}: {error}") from None
        self._delete.argtypes, self._delete.restype = [ctypes.c_void_p], None

    def records_all_threads(self) -> bool:
        """Return whether a profiler of all threads is on."""
        return bool(self._state_of_all())

    def detach(self) -> DetachedState:
        """Detach the profiler's state from the calling thread and return it; microseconds.

        Raises:
            BackendError: No profiler is on.
        """
        return DetachedState(self, self.detached_state(all_threads=False))

    def detach_all(self, *, at_once: bool = False) -> DetachedState:
        """End the recording of all threads and return its state; microseconds.

        Args:
            at_once: Also detach the state. Else it stays attached until it is collected, so that
                running operators can write when they end.

        Raises:
            BackendError: No profiler of all threads is on.
        """
        if at_once:
            return DetachedState(self, self.detached_state(all_threads=True))
        state = self._state_of_all()
        if not state:
            raise BackendError("no profiler of all threads is on")
        self._remove_callback(state)
        return DetachedState(self, None)

    def end_for_all_threads(self) -> None:
        """End the recording of all threads, so that it can be collected.

        Waits for other threads' running operators, up to :data:`OPERATORS_WAIT_S`.

        Raises:
            BackendError: No profiler of all threads is on.
        """
        state = self.detach_all().state_off_threads(under_way=wait_for_operators)
        if state is not None:
            self._install(state)

    def detach_in_child(self) -> None:
        """Detach the parent's recording of all threads in a forked child; takes no lock."""
        self._parent_state = self._pop(True).pointer or self._parent_state

    def remove_parent_callback(self) -> None:
        """Remove the parent's callback, which would make a child's profiler record twice."""
        parent_state, self._parent_state = self._parent_state, None
        if parent_state:
            self._remove_callback(parent_state)

    def detached_state(self, *, all_threads: bool) -> _Returned:
        """Detach the state from the calling thread, or from all, and return it."""
        state = self._pop_state(all_threads=all_threads)
        self._remove_callback(state.pointer)
        return state

    def _pop_state(self, *, all_threads: bool) -> _Returned:
        state: _Returned = self._pop(all_threads)
        if not state.pointer:
            raise BackendError("no profiler is on, on this thread")
        return state

    def share(self) -> DetachedState:
        """Return a shared reference to the calling thread's state.

        The state then outlives its thread. Without the reference C++ destroys the state, with its
        Python frames, as the thread ends and has no interpreter any more.

        Raises:
            BackendError: No profiler is on.
        """
        state = self._pop_state(all_threads=False)
        self._push(ctypes.byref(state))
        return DetachedState(self, state)

    def release(self, state: _Returned) -> None:
        """Release a shared reference to a state that has another owner."""
        _drop_reference(state)

    def collect(self, state: _Returned) -> _Returned:
        """Turn a state into its events, on the calling thread; seconds, without the GIL."""
        self._install(state)
        result: _Returned = self._disable()
        return result

    def write_result(self, address: int | None, path: Path) -> None:
        """Write the result at an address as a trace; seconds, without the GIL."""
        name = os.fsencode(path)
        string = _StdString(name, len(name), len(name), 0)
        self._save(address, ctypes.byref(string))

    def free(self, result: _Returned) -> None:
        """Free a result."""
        if result.pointer:
            self._destroy(result.pointer)
            self._delete(result.pointer)

    def _install(self, state: _Returned) -> None:
        """Attach a state to the calling thread, or to the process.

        ``push`` copies its pointer, although its signature says that it moves it. This drops the
        remaining reference; else every window would leak its state.
        """
        self._push(ctypes.byref(state))
        self.release(state)


class DetachedState:
    """A detached recording; it is collected once, then written once or dropped.

    The holder of this object owns the recording. Its methods are called on one thread at a time.

    Args:
        functions: libtorch's functions.
        state: The profiler's state; None where it is still attached to all threads.
    """

    def __init__(self, functions: DetachedClose, state: _Returned | None) -> None:
        self._functions = functions
        self._state, self._is_on_all_threads = state, state is None
        self._result: _Returned | None = None

    def release(self) -> None:
        """Release a shared state, which has another owner."""
        state, self._state = self._state, None
        if state is not None:
            self._functions.release(state)

    def state_off_threads(
        self, under_way: Callable[[float], object] = time.sleep
    ) -> _Returned | None:
        """Return the state once no thread can write to it any more; None where it is gone.

        Args:
            under_way: Waits for running operators, up to a number of seconds.

        Raises:
            BackendError: The state is not attached to all threads any more.
        """
        if self._is_on_all_threads:
            self._is_on_all_threads = False
            under_way(OPERATORS_WAIT_S)
            self._state = self._functions.detached_state(all_threads=True)
        state, self._state = self._state, None
        if state is not None:
            wait_for_threads_inside()
        return state

    def collect(self) -> None:
        """Stop libkineto and collect the events; the state is gone afterwards.

        Raises:
            BackendError: As :meth:`state_off_threads`.
        """
        state = self.state_off_threads()
        if state is not None:
            self._result = self._functions.collect(state)

    def reset(self) -> None:
        """Leave the uncollected recording to torch.

        Raises:
            BackendError: As :meth:`state_off_threads`.
        """
        self._state = self.state_off_threads()
        self.release()

    def write(self, path: Path) -> None:
        """Write the trace and free the events.

        Raises:
            BackendError: There are no events.
        """
        result, self._result = self._result, None
        if result is None or not result.pointer:
            raise BackendError("torch collected no events")
        self._functions.write_result(result.pointer, path)
        self._functions.free(result)

    def drop(self) -> None:
        """Free the events; does nothing the second time."""
        result, self._result = self._result, None
        if result is not None:
            self._functions.free(result)


def _state_of_all(library: Any) -> Callable[[], int | None]:
    """Return a function for the address of the state of all threads; it returns None for none.

    Raises:
        AttributeError: This build of torch has none of the functions.
    """
    for symbol, result, arguments, ask in _STATE_OF_ALL:
        if hasattr(library, symbol):
            function = library[symbol]
            function.restype, function.argtypes = result, list(arguments)
            return functools.partial(ask, function)
    raise AttributeError("; ".join(f"undefined symbol: {symbol}" for symbol, *_ in _STATE_OF_ALL))


def _drop_reference(state: _Returned) -> None:
    """Drop a reference to a state that has another owner: this never destroys the state."""
    if state.control_block:
        _exchange_and_add()(state.control_block + _USE_COUNT_AT, -1)


@functools.cache
def _exchange_and_add() -> Any:
    function = ctypes.CDLL("libstdc++.so.6")[_EXCHANGE_AND_ADD]
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return function


def library() -> Path:
    """Return the library that exports the functions."""
    import torch

    return Path(str(torch.__file__)).parent / "lib" / "libtorch_cpu.so"


@functools.cache
def find_functions() -> DetachedClose:
    """Return the functions, tested or not; jobs use :mod:`dynprof.backends.torch.closing`.

    Raises:
        BackendError: They are not available here.
    """
    if sys.platform != "linux":
        raise BackendError(f"the detached close has not been tried on {sys.platform}")
    return DetachedClose()


def _function(library: Any, name: str, result: Any, *arguments: Any) -> Any:
    function = library[_SYMBOLS[name]]
    function.restype, function.argtypes = result, list(arguments)
    return function


_TYPE = "_ZTIN5torch8autograd8profiler14ProfilerResultE"
"""The symbol of the ``std::type_info`` of the results."""
_BUILD = b"system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1"
"""pybind11's name for the C++ ABI of torch 2.13 to 2.15 on Linux; another build answers None."""
_LONGEST_TAIL = 1 << 13
"""Longest last member of a trace, in bytes: its own path."""


def writer_of(profiler: Any, functions: DetachedClose) -> Callable[[Path], None]:
    """Return a function that writes the results of a ``torch.autograd.profiler.profile``, once.

    It needs no GIL. The results must not have been written before: C++ would raise through ctypes,
    which ends the process.

    Raises:
        BackendError: This build of torch does not give their address.
    """
    results = getattr(profiler, "kineto_results", None)
    address = _address_of(results)

    def write(path: Path, _kept: object = results) -> None:
        functions.write_result(address, path)

    return write


def _address_of(results: Any) -> int:
    """Return the C++ address of the results that Python holds as an object.

    Raises:
        BackendError: pybind11 does not give it: torch was built otherwise, or it is another object.
    """
    # Looked up by item: attributes are shared with the script, which may set other types.
    new, pointer = ctypes.pythonapi["PyCapsule_New"], ctypes.pythonapi["PyCapsule_GetPointer"]
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        info = ctypes.c_char.in_dll(
            ctypes.CDLL(str(library().with_name("libtorch_python.so"))), _TYPE
        )
        kind = new(ctypes.addressof(info), b"St9type_info", None)
        capsule = results._pybind11_conduit_v1_(_BUILD, kind, b"raw_pointer_ephemeral")
        return int(pointer(capsule, _TYPE.removeprefix("_ZTI").encode()))
    except (OSError, AttributeError, ValueError, RuntimeError) as error:
        raise BackendError(f"torch does not give the address of its results: {error}") from None


def check_written(path: Path) -> None:
    """Raise unless libkineto wrote a complete trace.

    Raises:
        BackendError: It did not. libkineto only prints a failure, or does not check its last write.
    """
    if not path.exists():  # libkineto leaves a partial file under another name
        raise BackendError("libkineto could not write the trace")
    if not _is_complete(path):
        raise BackendError("libkineto could not write the whole trace")


def _is_complete(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LONGEST_TAIL))
        tail = file.read()
    return b'"traceName"' in tail and tail.rstrip().endswith(b"}")
