"""Starts a thread in another process that runs Python code, if the main thread only waits.

The stopped main thread creates it and then continues to wait. The new thread holds no lock, so it
can wait for the GIL for any time. It ends by itself.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import TYPE_CHECKING

from dynprof.errors import LaunchError
from dynprof.launch.stopped_thread import read_memory, write_memory

if TYPE_CHECKING:
    from dynprof.launch.stopped_thread import StoppedThread

_FUNCTIONS = ("PyGILState_Ensure", "PyRun_SimpleString", "PyGILState_Release")
_MACHINE_CODE = bytes.fromhex(
    "f30f1efa"  # endbr64
    "53"  # push rbx
    "4889fb"  # mov rbx, rdi: where the addresses are
    "4883ec10"  # sub rsp, 16
    "ff13"  # call [rbx]: PyGILState_Ensure()
    "890424"  # mov [rsp], eax
    "488b7b18"  # mov rdi, [rbx + 24]
    "ff5308"  # call [rbx + 8]: PyRun_SimpleString(text)
    "8b3c24"  # mov edi, [rsp]
    "ff5310"  # call [rbx + 16]: PyGILState_Release(state)
    "31c0"  # xor eax, eax
    "4883c410"  # add rsp, 16
    "5b"  # pop rbx
    "c3"  # ret
)
"""Code of the thread, for x86-64."""
PTHREAD_BYTES = 8
"""Size of a ``pthread_t`` in bytes."""


def start_thread(
    pid: int, stopped: StoppedThread, functions: dict[str, int], text: int, number: int
) -> None:
    """Create a thread that runs Python code and then ends.

    Args:
        pid: The process.
        stopped: Its main thread, which waits in a system call.
        functions: Addresses of the functions of Python and the C library.
        text: Address of the code.
        number: Address of 8 bytes for the ``pthread_t``.

    Raises:
        LaunchError: The system does not allow the thread.
        OSError: The process has ended.
    """
    if "pthread_create" not in functions:
        raise LaunchError("its C library is not glibc")
    rights, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    page = stopped.call(functions["mmap"], 0, mmap.PAGESIZE, rights, kind, -1, 0)
    if page > (1 << 64) - mmap.PAGESIZE:
        raise LaunchError("it has no memory left")
    addresses = struct.pack("4Q", *(functions[name] for name in _FUNCTIONS), text)
    write_memory(pid, page, addresses + _MACHINE_CODE)
    runs = mmap.PROT_READ | mmap.PROT_EXEC
    if stopped.call(functions["mprotect"], page, mmap.PAGESIZE, runs):
        raise LaunchError("the system does not let it run injected code")
    code = page + len(addresses)
    if problem := stopped.call(functions["pthread_create"], number, 0, code, page) & 0xFFFFFFFF:
        raise LaunchError(f"it cannot create a thread: {os.strerror(problem)}")
    (made,) = struct.unpack("Q", read_memory(pid, number, PTHREAD_BYTES))
    stopped.call(functions["pthread_detach"], made)
