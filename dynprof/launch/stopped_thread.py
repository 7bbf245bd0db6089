"""Stops a thread of another process and calls functions in it, with Linux's ptrace.

The thread may be interrupted inside an allocation, or while it holds a lock. So it may only call
functions that take no lock which it could hold. Its registers are restored afterwards, and a system
call in which it waited continues.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import signal
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.errors import LaunchError
from dynprof.runtime.stacks import why_ptrace_forbidden

if TYPE_CHECKING:
    from types import TracebackType

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
_SEIZE, _INTERRUPT, _DETACH, _CONT = 0x4206, 0x4207, 17, 7
"""Requests of ptrace, as in ``linux/ptrace.h``."""
_GETREGSET, _SETREGSET, _GENERAL = 0x4204, 0x4205, 1
"""Requests of ptrace for registers, and ``NT_PRSTATUS``, the general registers."""
_EVENT_STOP = 128
"""``PTRACE_EVENT_STOP``: a thread stopped because of the interrupt."""
_ALL_CHILDREN = 0x40000000
"""``__WALL``: wait for threads too."""
_MAX_VECTORS = 16384
"""Bytes of the vector registers, at most."""
_RED_ZONE = 512
"""Bytes skipped below the stack pointer; a function may use up to 128 bytes there."""
_POLL_S = 0.0005
"""Seconds between two checks whether the thread has stopped, while the job waits."""
_FUTEX, _WAIT_BITSET = 202, 9
"""Number of the system call on x86_64, and its operation with an absolute timeout."""
_X86_WAITS = frozenset(
    {0, 7, 271, 23, 270}  # read, poll, ppoll, select, pselect6
    | {232, 281, 441}  # epoll_wait, epoll_pwait, epoll_pwait2
    | {43, 288, 45, 47}  # accept, accept4, recvfrom, recvmsg
    | {_FUTEX, 35, 230, 219}  # and nanosleep, clock_nanosleep; restart_syscall: one of these again
    | {61, 247, 34, 130, 128}  # wait4, waitid, pause, rt_sigsuspend, rt_sigtimedwait
)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


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


@dataclass(frozen=True)
class _Machine:
    """Positions of registers in the register set that the kernel returns.

    Attributes:
        words: Number of registers, each of 64 bits.
        vectors: The kernel's number of the set of vector and floating point registers.
        arguments: The arguments of a function.
        result: The result of a function.
        stack: The stack pointer.
        program: The program counter.
        link: The return address; None if it is on the stack.
        call: The number of the interrupted system call; None if it need not be changed.
        waits: Numbers of system calls in which a thread waits for others, input or time; empty if
            no thread can be created on this machine.
    """

    words: int
    vectors: int
    arguments: tuple[int, ...]
    result: int
    stack: int
    program: int
    link: int | None
    call: int | None
    waits: frozenset[int] = frozenset()


_MACHINES = {
    "x86_64": _Machine(27, 0x202, (14, 13, 12, 11, 9, 8), 10, 19, 16, None, 15, _X86_WAITS),
    "aarch64": _Machine(34, 2, (0, 1, 2, 3, 4, 5), 0, 31, 32, 30, None),
}


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_vectors = ctypes.POINTER(_Vector)
for _function in ("process_vm_readv", "process_vm_writev"):
    getattr(_libc, _function).argtypes = (
        ctypes.c_int, _vectors, ctypes.c_ulong, _vectors, ctypes.c_ulong, ctypes.c_ulong,
    )  # fmt: skip
    getattr(_libc, _function).restype = ctypes.c_ssize_t


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Read memory of another process.

    Raises:
        OSError: The bytes cannot be read.
    """
    found = ctypes.create_string_buffer(size)
    _transfer(_libc.process_vm_readv, pid, ctypes.addressof(found), address, size)
    return found.raw


def write_memory(pid: int, address: int, content: bytes) -> None:
    """Write memory of another process.

    Raises:
        OSError: The bytes cannot be written.
    """
    kept = ctypes.create_string_buffer(content, len(content))
    _transfer(_libc.process_vm_writev, pid, ctypes.addressof(kept), address, len(content))


def _transfer(function: object, pid: int, here: int, there: int, size: int) -> None:
    own, others = _Vector(here, size), _Vector(there, size)
    done = function(pid, ctypes.byref(own), 1, ctypes.byref(others), 1, 0)  # type: ignore[operator]
    if done != size:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class DoesNotStopError(LaunchError):
    """A thread has not stopped in time; it will stop as soon as it can.

    It continues when the tracing process ends, so that process must end at once.
    """


class StoppedThread:
    """Stops the main thread of a process during a ``with`` block; its other threads continue.

    Signals to the calling thread are blocked in the block. If this process ended during a call, the
    other thread would return to an invalid address, and its process would end too.

    Args:
        pid: The process.
        limit_s: Timeout for each wait for the thread.

    Attributes:
        stopped_s: How long the thread was stopped; set after the block.
    """

    def __init__(self, pid: int, limit_s: float) -> None:
        self._pid, self._limit_s = pid, limit_s
        self._machine = _machine()
        self._signals: list[int] = []
        self._began_s = self.stopped_s = 0.0

    def __enter__(self) -> StoppedThread:
        """Stop the thread.

        Raises:
            LaunchError: It cannot be stopped.
            DoesNotStopError: It has not stopped in time.
        """
        _ptrace(_SEIZE, self._pid)
        self._began_s = time.perf_counter()
        with contextlib.ExitStack() as failing:
            failing.callback(self._detach_thread)
            _ptrace(_INTERRUPT, self._pid)
            while self._wait() != (signal.SIGTRAP, _EVENT_STOP):
                _ptrace(_CONT, self._pid)  # stopped by a signal, which is delivered at the end
            self._before, self._vectors = self._registers(), self._vector_registers()
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            failing.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Restore the thread and let it continue."""
        with contextlib.suppress(LaunchError):
            self._set_registers(self._before)
            _transfer_registers(_SETREGSET, self._pid, self._machine.vectors, self._vectors)
        self._detach_thread()
        self.stopped_s = time.perf_counter() - self._began_s
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    @property
    def waits_at(self) -> tuple[int, int] | None:
        """Stack pointer and program counter if it waits in a system call; None otherwise.

        A thread that stays there for long holds no lock of the C library that a new thread needs:
        such locks are waited for in another way, and held only for moments.
        """
        machine, registers = self._machine, self._before
        if machine.call is None or registers[machine.call] not in machine.waits:
            return None
        if registers[machine.call] == _FUTEX and registers[13] & 0x7F != _WAIT_BITSET:
            return None  # waits for a lock of glibc
        return registers[machine.stack], registers[machine.program]

    def call(self, function: int, *arguments: int) -> int:
        """Call a function in the thread; return its result as an unsigned 64-bit number.

        Raises:
            LaunchError: It does not return in time; the thread then continues where it was.
        """
        machine, registers = self._machine, list(self._before)
        stack = (registers[machine.stack] - _RED_ZONE) & ~0xF
        for place, argument in zip(machine.arguments, arguments, strict=False):
            registers[place] = argument & (1 << 64) - 1
        if machine.link is None:  # return address on the stack: 0 makes the return fault
            stack -= 8
            write_memory(self._pid, stack, bytes(8))
        else:
            registers[machine.link] = 0
        if machine.call is not None:
            registers[machine.call] = (1 << 64) - 1  # do not restart the system call now
            registers[machine.result] = 0
        registers[machine.stack], registers[machine.program] = stack, function
        self._set_registers(registers)
        _ptrace(_CONT, self._pid)
        return self._returned()

    def _returned(self) -> int:
        """Wait until the call returns to address 0; return its result."""
        machine = self._machine
        try:
            while self._wait() != (signal.SIGSEGV, 0):
                _ptrace(_CONT, self._pid)
        except DoesNotStopError as error:
            _ptrace(_INTERRUPT, self._pid)
            self._limit_s = float("inf")  # its registers must be restored
            self._wait()
            raise LaunchError(f"process {self._pid} did not finish the requested call") from error
        registers = self._registers()
        if registers[machine.program] != 0:
            raise LaunchError(f"process {self._pid} failed in the requested call")
        return registers[machine.result]

    def _wait(self) -> tuple[int, int]:
        """Return the signal and event that stopped the thread; keep signals for the job."""
        deadline_s = time.monotonic() + self._limit_s
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG | _ALL_CHILDREN)
            if pid:
                break
            if time.monotonic() > deadline_s:
                text = f"process {self._pid} does not stop; it waits in the system"
                raise DoesNotStopError(f"{text}, see /proc/{self._pid}/stack")
            time.sleep(_POLL_S)
        if not os.WIFSTOPPED(status):
            raise LaunchError(f"process {self._pid} has ended")
        found, event = os.WSTOPSIG(status), status >> 16
        if not event and found not in (signal.SIGSEGV, signal.SIGTRAP):
            self._signals.append(found)
        return found, event

    def _registers(self) -> list[int]:
        content = bytes(self._machine.words * 8)
        found = _transfer_registers(_GETREGSET, self._pid, _GENERAL, content)
        return list(struct.unpack(f"{self._machine.words}Q", found))

    def _set_registers(self, registers: list[int]) -> None:
        content = struct.pack(f"{len(registers)}Q", *registers)
        _transfer_registers(_SETREGSET, self._pid, _GENERAL, content)

    def _vector_registers(self) -> bytes:
        """Return the registers that a function need not preserve; the thread may be using them."""
        kind, room = self._machine.vectors, bytes(_MAX_VECTORS)
        return _transfer_registers(_GETREGSET, self._pid, kind, room)

    def _detach_thread(self) -> None:
        """Detach, and deliver the signals that arrived while it was stopped."""
        first, *rest = self._signals or [0]
        with contextlib.suppress(LaunchError):  # it has ended
            _ptrace(_DETACH, self._pid, 0, first)
        for number in rest:
            with contextlib.suppress(OSError):
                os.kill(self._pid, number)


def _machine() -> _Machine:
    name = platform.machine()
    if name not in _MACHINES:
        raise LaunchError(f"attaching supports {' and '.join(_MACHINES)}; this machine is {name}")
    return _MACHINES[name]


def _transfer_registers(request: int, pid: int, kind: int, content: bytes) -> bytes:
    """Set or get a register set; return its bytes, cut to their actual length."""
    kept = ctypes.create_string_buffer(content, len(content))
    vector = _Vector(ctypes.addressof(kept), len(content))
    _ptrace(request, pid, kind, ctypes.addressof(vector))
    return kept.raw[: vector.length]


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> None:
    ctypes.set_errno(0)
    if _libc.ptrace(request, pid, address, data) == -1:
        number = ctypes.get_errno()
        why = why_ptrace_forbidden() if number == errno.EPERM else os.strerror(number)
        raise LaunchError(f"process {pid} cannot be reached: {why}")
