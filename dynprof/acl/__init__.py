"""A profiling session of the whole process, with the calls of Ascend's pyACL.

::

    from dynprof import acl

    acl.init()
    with acl.prof.session("profiles"):
        config = acl.prof.Config(devices=[0, 1])
        with acl.prof.recording(config):
            work()
    acl.finalize()

Input: the calls of pyACL, from any thread. Output: one window over all threads. This package never
records by itself; it uses the windows of ``dynprof.profiler``. Where pyACL returns an error code,
:class:`~dynprof.errors.SessionError` says which call was out of order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.acl import prof
from dynprof.acl.prof import SUCCESS
from dynprof.acl.session import SESSION

if TYPE_CHECKING:
    import os


def init(config_path: str | os.PathLike[str] | None = None) -> int:
    """Begin; call it once in a process.

    Args:
        config_path: A JSON file whose ``profiler`` object says what to record until
            :func:`finalize`. With it the functions of :mod:`dynprof.acl.prof` are out of order.

    Raises:
        ConfigError: The file cannot be used.
        SessionError: It was called before.
    """
    SESSION.init(config_path)
    return SUCCESS


def finalize() -> int:
    """End, and save the recording that a JSON file requested.

    Raises:
        CaptureError: The recording could not be saved.
        SessionError: :func:`init` was not called, or ``prof`` was not finalised.
    """
    SESSION.finalize()
    return SUCCESS


__all__ = ["finalize", "init", "prof"]
