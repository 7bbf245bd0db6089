"""The calls of ``acl.prof``: sessions, recordings, stamps, and operators as they run.

Where pyACL returns an error code, a call raises :class:`~dynprof.errors.SessionError` and changes
nothing. The return code of a successful call is 0.

Operators are passed to a callback, or written to a pipe as pyACL's subscriptions deliver them. A
description has a fixed size, so a reader can read as many as fit its buffer. The functions
``get_*`` take the data, as bytes or by its address, and return pyACL's tuples of a value and 0.
Between ``acl.prof.init`` and ``acl.prof.finalize`` each raises a ``SessionError``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import dynprof.mstx as mstx
from dynprof.acl.config import NO_METRICS, Config, from_acl
from dynprof.acl.session import SESSION, Operator, Subscription
from dynprof.errors import SessionError
from dynprof.marks.sinks import MAX_BYTES, is_short
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.standard_streams import warn_script
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Buffer

DOMAIN = "msproftx"
"""The domain of stamps among the marks of a trace."""
_LAYOUT = struct.Struct("<IQQ256s")
"""Model id, start and duration in ns, zero-padded name."""
_WAIT_S = 10.0
"""Longest wait at the end, in seconds, for a reader that has stopped reading."""
SUCCESS = 0
"""``ACL_SUCCESS``, the result of all calls."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


def init(path: str | os.PathLike[str]) -> int:
    """Begin a session whose traces go to ``path``; another may follow :func:`finalize`.

    Raises:
        SessionError: Out of order: before ``acl.init``, twice, during a subscription, or where
            a file given to ``acl.init`` says what to record.
    """
    SESSION.prof_init(path)
    return SUCCESS


def start(config: Config) -> int:
    """Record all threads until :func:`stop` is called with the same config.

    Raises:
        BackendError: No profiler can record now.
        SessionError: Out of order, or the config or one of its devices was started before.
    """
    SESSION.start(config)
    return SUCCESS


def stop(config: Config) -> int:
    """Stop recording for a config; with the last one, save the trace.

    Raises:
        BackendError: A graph capture on another thread does not end; the recording continues.
        CaptureError: The trace could not be saved.
        SessionError: :func:`start` was not called with this config.
    """
    SESSION.stop(config)
    return SUCCESS


def finalize() -> int:
    """End the session.

    Raises:
        SessionError: Out of order, or a recording has not been stopped.
    """
    SESSION.prof_finalize()
    return SUCCESS


def create_config(
    device_list: Sequence[int],
    aicore_metrics: int = NO_METRICS,
    aicore_events: int = 0,
    data_type_config: int = 0,
) -> Config:
    """Return a config, as pyACL's call of that name does.

    A warning names each argument that has no effect. :func:`start` names the settings that this
    machine's profiler does not support.

    Args:
        device_list: Numbers of the devices.
        aicore_metrics: A number of ``aclprofAicoreMetrics``; needs the bit
            ``ACL_PROF_AICORE_METRICS`` of ``data_type_config``, as with the vendor.
        aicore_events: Must be 0: the vendor has no events yet.
        data_type_config: Bits of ``aclproftype``. They choose the level, the L2 cache and the
            memory; operators, their times and stamps are always recorded.

    Raises:
        pydantic.ValidationError: A device number is invalid or named twice.
    """
    return from_acl(device_list, aicore_metrics, aicore_events, data_type_config)


def destroy_config(config: Config) -> int:  # noqa: ARG001 - there is nothing to free
    """Return 0."""
    return SUCCESS


class session:  # noqa: N801 - used like a function
    """Call :func:`init` and :func:`finalize`; after an exception, stop all recordings first.

    The script's exception propagates; later failures are printed.

    Args:
        path: The folder for the traces.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def __enter__(self) -> None:
        init(self._path)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            finalize()
            return
        boundary = ErrorBoundary(StderrNotes())
        try:
            boundary.attempt("acl.prof.stop()", SESSION.stop_all)
        finally:  # Ctrl-C may come again
            boundary.attempt("acl.prof.finalize()", finalize)


@contextlib.contextmanager
def recording(config: Config) -> Iterator[None]:
    """Call :func:`start` and :func:`stop`.

    The script's exception propagates; a failure of :func:`stop` after it is printed.
    """
    start(config)
    done = False
    try:
        yield
        done = True
    finally:
        if not done:
            ErrorBoundary(StderrNotes()).attempt("acl.prof.stop()", lambda: stop(config))
    stop(config)


# stamps


@dataclass(eq=False)
class Stamp:
    """A message for the trace."""

    message: str = "stamp"
    _alive: bool = True


_ranges: set[int] = set()


def create_stamp(message: str = "stamp") -> Stamp:
    """Return a stamp.

    Args:
        message: Its message, 1 to 156 bytes.

    Raises:
        SessionError: Nothing is being recorded, or the message is invalid.
    """
    SESSION.require_started("acl.prof.create_stamp()")
    _check_message("acl.prof.create_stamp()", message)
    return Stamp(message)


def set_stamp_trace_message(stamp: Stamp, message: str, _length: int = 0) -> int:
    """Change a stamp's message; the length, which pyACL requires, is ignored.

    Raises:
        SessionError: As :func:`create_stamp`; the stamp keeps its message.
    """
    _check_stamp("acl.prof.set_stamp_trace_message()", stamp)
    _check_message("acl.prof.set_stamp_trace_message()", message)
    stamp.message = message
    return SUCCESS


def destroy_stamp(stamp: Stamp) -> int:
    """Destroy a stamp."""
    _check_stamp("acl.prof.destroy_stamp()", stamp)
    stamp._alive = False
    return SUCCESS


def mark(stamp: Stamp) -> int:
    """Mark this moment."""
    _check_stamp("acl.prof.mark()", stamp)
    mstx.mark(stamp.message, domain=DOMAIN)
    return SUCCESS


def push(stamp: Stamp) -> int:
    """Begin a range inside the open ranges of this thread."""
    _check_stamp("acl.prof.push()", stamp)
    mstx.range_push(stamp.message, domain=DOMAIN)
    return SUCCESS


def pop(_stamp: Stamp | None = None) -> int:
    """End the newest open range of this thread, whatever its stamp.

    Raises:
        SessionError: No range is open, or nothing is being recorded.
    """
    SESSION.require_started("acl.prof.pop()")
    if not mstx.is_open(DOMAIN):
        raise SessionError("acl.prof.pop(): no push() before it on this thread")
    mstx.range_pop(DOMAIN)
    return SUCCESS


def range_start(stamp: Stamp) -> tuple[int, int]:
    """Begin a range that any thread may end; return its number and 0, as pyACL does."""
    _check_stamp("acl.prof.range_start()", stamp)
    number = mstx.range_start(stamp.message, domain=DOMAIN)
    _ranges.add(number)
    return number, SUCCESS


def range_stop(number: int | tuple[int, int]) -> int:
    """End a range, by its number or by the tuple that :func:`range_start` returned.

    Raises:
        SessionError: The range is not open, or nothing is being recorded.
    """
    SESSION.require_started("acl.prof.range_stop()")
    number = number[0] if isinstance(number, tuple) else number
    if number not in _ranges:
        raise SessionError(f"acl.prof.range_stop(): there is no open range {number!r}")
    _ranges.remove(number)
    mstx.range_end(number, DOMAIN)
    return SUCCESS


def _check_stamp(call: str, stamp: Stamp) -> None:
    SESSION.require_started(call)
    if not isinstance(stamp, Stamp):
        raise SessionError(f"{call}: {stamp!r} is not a stamp of acl.prof.create_stamp()")
    if not stamp._alive:
        raise SessionError(f"{call}: the stamp was destroyed")


def _check_message(call: str, message: object) -> None:
    if not isinstance(message, str) or not message:
        text = f"the message is {message!r}; it must be a non-empty string"
    elif not is_short(message):
        text = f"the message has more than {MAX_BYTES} bytes"
    else:
        return
    raise SessionError(f"{call}: {text}")


# operators as they run


def subscribe(callback: Callable[[Operator], object] | None = None) -> Subscription:
    """Deliver the operators that this thread runs from now on, and the backward of its graphs.

    Each has its name, its start and its duration on the host; the work on a device may take
    longer. The delivery costs each operator some microseconds.

    Args:
        callback: Receives each operator, on the thread that ran it. Without it, iterate over the
            subscription on any other thread; the iteration ends with the subscription.

    Returns:
        The subscription, also a context manager; end it with :func:`unsubscribe`.

    Raises:
        BackendError: The script has not imported torch.
        SessionError: Out of order: in a session, or during another subscription.
    """
    call = "acl.prof.subscribe()"
    subscription = Subscription(callback, on_end=SESSION.unsubscribe, call=call)
    SESSION.subscribe(subscription, call)
    subscription.begin()
    return subscription


def unsubscribe(subscription: Subscription) -> None:
    """End a subscription, on the thread that subscribed.

    Raises:
        SessionError: It has ended, or another thread subscribed.
    """
    if not isinstance(subscription, Subscription):
        call = "acl.prof.unsubscribe()"
        raise SessionError(
            f"{call}: {subscription!r} is not a subscription of acl.prof.subscribe()"
        )
    subscription.end()


@dataclass(frozen=True)
class SubscribeConfig:
    """The destination of a subscription.

    Attributes:
        fd: The pipe's end to write to.
    """

    fd: int


class _Pipe:
    """Writes a subscription's operators on its own thread, so that a full pipe blocks no other."""

    def __init__(self, model_id: int, config: SubscribeConfig) -> None:
        self._model_id, self._fd = model_id, config.fd
        call = "acl.prof.model_subscribe()"
        self._subscription = Subscription(None, on_end=SESSION.unsubscribe, call=call)
        SESSION.subscribe(self._subscription, call)
        self._thread = own_thread(self._write, "dynprof-operators")
        self._thread.start()
        self._subscription.begin()

    def end(self) -> None:
        """Deliver the remaining operators, as far as the pipe is read."""
        self._subscription.end("acl.prof.model_un_subscribe()")
        self._thread.join(_WAIT_S)

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the reader has closed the pipe
            for operator in self._subscription:
                os.write(self._fd, _described(operator, self._model_id))


_pipes: dict[int, _Pipe] = {}
_lock = threading.RLock()


def _outside_a_session(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Refuse a call between ``acl.prof.init`` and ``acl.prof.finalize``."""
    call = f"acl.prof.{function.__name__}()"

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        SESSION.require_no_session(call)
        return function(*args, **kwargs)

    return checked


def create_subscribe_config(
    time_info_switch: int,  # noqa: ARG001 - times are always there
    aicore_metrics: int,
    fd: int,
) -> SubscribeConfig:
    """Return the destination of a subscription: the pipe's end ``fd``.

    Descriptions hold only names and times; ``aicore_metrics`` other than 0 and ``0xFF`` warn.
    """
    if aicore_metrics not in (0, NO_METRICS):  # the vendor's samples write 0 for none
        text = f"aicore_metrics={aicore_metrics!r} has no effect: operators have times only"
        warn_script(f"acl.prof.create_subscribe_config(): {text}")
    return SubscribeConfig(fd)


def destroy_subscribe_config(config: SubscribeConfig) -> int:  # noqa: ARG001 - nothing to free
    """Return 0."""
    return SUCCESS


def model_subscribe(model_id: int, config: SubscribeConfig) -> int:
    """Deliver the operators that this thread runs from now on; return 0.

    Args:
        model_id: The id to put into each description; torch has no models.
        config: The destination.

    Raises:
        BackendError: The script has not imported torch.
        SessionError: Out of order: in a session, or during another subscription.
    """
    with _lock:
        _pipes[model_id] = _Pipe(model_id, config)
    return SUCCESS


@_outside_a_session
def model_un_subscribe(model_id: int) -> int:
    """Stop the delivery, on the thread that subscribed; return 0.

    Raises:
        SessionError: There is no such subscription, another thread subscribed, or the call comes
            between ``acl.prof.init`` and ``acl.prof.finalize``.
    """
    with _lock:
        if model_id not in _pipes:
            raise SessionError(f"acl.prof.model_un_subscribe(): model {model_id} is not subscribed")
        _pipes[model_id].end()
        del _pipes[model_id]
    return SUCCESS


@_outside_a_session
def get_op_desc_size() -> tuple[int, int]:
    """Return the size of a description, in bytes."""
    return _LAYOUT.size, SUCCESS


@_outside_a_session
def get_op_num(data: int | Buffer, data_len: int) -> tuple[int, int]:  # noqa: ARG001
    """Return the number of descriptions."""
    return data_len // _LAYOUT.size, SUCCESS


@_outside_a_session
def get_model_id(data: int | Buffer, data_len: int, index: int) -> int:
    """Return the id of the subscribed model."""
    return _read(data, data_len, index)[0]


@_outside_a_session
def get_op_start(data: int | Buffer, data_len: int, index: int) -> int:
    """Return an operator's begin, in ns since the epoch."""
    return _read(data, data_len, index)[1]


@_outside_a_session
def get_op_end(data: int | Buffer, data_len: int, index: int) -> int:
    """Return an operator's end, in ns since the epoch."""
    _, begin_ns, duration_ns, _ = _read(data, data_len, index)
    return begin_ns + duration_ns


@_outside_a_session
def get_op_duration(data: int | Buffer, data_len: int, index: int) -> int:
    """Return an operator's duration on the host, in ns."""
    return _read(data, data_len, index)[2]


@_outside_a_session
def get_op_name(
    data: int | Buffer, data_len: int, index: int, op_name_len: int = _LAYOUT.size
) -> tuple[str, int]:
    """Return an operator's name, up to a number of characters."""
    return _read(data, data_len, index)[3][:op_name_len], SUCCESS


@_outside_a_session
def get_op_name_len(data: int | Buffer, data_len: int, index: int) -> tuple[int, int]:
    """Return the length of an operator's name."""
    return len(_read(data, data_len, index)[3]), SUCCESS


@_outside_a_session
def get_op_type(
    data: int | Buffer, data_len: int, index: int, op_type_len: int = _LAYOUT.size
) -> tuple[str, int]:
    """Return an operator's type: its name, as torch's operators have no other."""
    return get_op_name(data, data_len, index, op_type_len)


@_outside_a_session
def get_op_type_len(data: int | Buffer, data_len: int, index: int) -> tuple[int, int]:
    """Return the length of an operator's type."""
    return get_op_name_len(data, data_len, index)


def _described(operator: Operator, model_id: int) -> bytes:
    name = operator.name.encode(errors="replace")
    return _LAYOUT.pack(model_id, operator.began_ns, operator.duration_ns, name)


def _read(data: int | Buffer, data_len: int, index: int) -> tuple[int, int, int, str]:
    """Return a description.

    Raises:
        IndexError: The index is beyond the last description.
    """
    if not 0 <= index < data_len // _LAYOUT.size:
        raise IndexError(f"operator {index} of {data_len // _LAYOUT.size}")
    whole = ctypes.string_at(data, data_len) if isinstance(data, int) else memoryview(data)
    model, begin_ns, duration_ns, name = _LAYOUT.unpack_from(whole, index * _LAYOUT.size)
    return model, begin_ns, duration_ns, name.rstrip(b"\0").decode(errors="replace")


__all__ = [
    "Config",
    "Operator",
    "Stamp",
    "Subscription",
    "create_config",
    "create_stamp",
    "create_subscribe_config",
    "destroy_config",
    "destroy_stamp",
    "destroy_subscribe_config",
    "finalize",
    "get_model_id",
    "get_op_desc_size",
    "get_op_duration",
    "get_op_end",
    "get_op_name",
    "get_op_name_len",
    "get_op_num",
    "get_op_start",
    "get_op_type",
    "get_op_type_len",
    "init",
    "mark",
    "model_subscribe",
    "model_un_subscribe",
    "pop",
    "push",
    "range_start",
    "range_stop",
    "recording",
    "session",
    "set_stamp_trace_message",
    "start",
    "stop",
    "subscribe",
    "unsubscribe",
]
