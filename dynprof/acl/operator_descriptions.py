"""Operators written to a pipe, as pyACL's subscriptions deliver them, and functions to read them.

A description has a fixed size, so a reader can read as many as fit its buffer. The functions
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

from dynprof.acl.config import NO_METRICS
from dynprof.acl.session import SESSION
from dynprof.acl.subscription import Subscription
from dynprof.errors import SessionError
from dynprof.runtime.standard_streams import warn_script
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from dynprof.acl.subscription import Operator

_LAYOUT = struct.Struct("<IQQ256s")
"""Model id, begin and duration in ns, zero-padded name."""
_WAIT_S = 10.0
"""Longest wait at the end, in seconds, for a reader that has stopped reading."""
SUCCESS = 0
"""``ACL_SUCCESS``, the result of all calls."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


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
