"""Writes results that torch itself collected, and checks that libkineto wrote all of them.

torch holds the GIL while it writes a trace, so no Python runs for seconds. The writing function is
exported, and needs only the address of the results from Python. pybind11 gives that address by its
protocol for other libraries, ``_pybind11_conduit_v1_``.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from dynprof.backends.torch.detached_close import library
from dynprof.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.backends.torch.detached_close import DetachedClose

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
