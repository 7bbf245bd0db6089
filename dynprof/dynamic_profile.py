"""The two lines of a training script, and a few further calls.

The names are those of ``torch_npu.profiler.dynamic_profile``. The module holds the package's global
state: the session, and the inbox that ``step()`` tests.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dynprof.requests.inbox import NoInbox
from dynprof.runtime.process_hooks import call_in_child
from dynprof.runtime.rank import ignore_inherited_group
from dynprof.runtime.standard_streams import say

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dynprof.journal.status import Status
    from dynprof.requests.inbox import Inbox
    from dynprof.session.session import Session


class _Outside(NamedTuple):
    """The options of a session that was begun from outside the script.

    Attributes:
        directory: The directory of the config.
        steps: The source of steps; None if the script may choose it.
        by: The command or variable that requested the session.
    """

    directory: Path
    steps: str | None
    by: str


_inbox: Inbox | NoInbox = NoInbox(silent=False)
_session: Session | None = None
_from_outside: _Outside | None = None
"""Set if a session was begun for the script, not by it."""
_beginning = threading.RLock()


def step() -> None:
    """End one training step and begin the next; call it once per step.

    Without a request it adds one to a counter and tests one flag. Steps count from 0: the work
    before the first call is step 0 (see :func:`set_state` for resumed jobs). If several threads
    call it, each call ends a step, and a window records them all if it can.
    """
    inbox = _inbox
    inbox.step += 1
    if inbox.due:
        inbox.on_due()


step._torchdynamo_disable = True  # type: ignore[attr-defined]
"""Excludes it from torch.compile, which would recompile it for each step number."""


def init(
    path: str | os.PathLike[str],
    *,
    watch: str | None = None,
    rank: int | None = None,
    exit_wait_s: float | None = None,
    prof_dirs: Iterable[str | os.PathLike[str]] | None = None,
    follow_symlinks: bool = False,
    plugin: bool | None = None,
    nvtx: bool | None = None,
    steps: str | float | None = None,
    store: object = None,
    role: str | None = None,
    on_event: Sequence[str] | None = None,
) -> None:
    """Watch ``profiler_config.json`` in a directory; call it once, before training.

    It creates the directory and the config if they are missing. If the job uses torch, import torch
    before this call, so that the template names its devices. An existing config is no request: only
    a save from now on is one. A second call warns and changes nothing. If ``dynprof run`` began the
    process, the first call keeps the directory of ``dynprof run``.

    Nothing happens with ``DYNPROF_DISABLE=1`` in the environment, or in the workers of a DataLoader
    or a pool. If gevent or eventlet has replaced threads, nothing happens but a warning.

    Args:
        path: The directory of the config.
        watch: ``"events"`` (inotify and the like), ``"poll"``, or ``"auto"``: chosen by the file
            system. Default: ``DYNPROF_WATCH``.
        rank: The rank of this process. Default: from the process group, or the launcher's
            variables.
        exit_wait_s: Seconds that the end of the process waits for a capture that is being saved.
            Default: ``DYNPROF_EXIT_WAIT_S``, else 600.
        prof_dirs: Absolute directories, and URLs, that the config's ``prof_dir`` may name in
            addition to those under ``path``. Default: ``DYNPROF_PROF_DIRS``, a list as in ``PATH``.
        follow_symlinks: Read the config, and write, through symbolic links below ``path``, as a
            mounted ConfigMap of Kubernetes needs it. By default they are refused.
        plugin: Mark the phases of torch's loops for windows that record marks, as
            :mod:`dynprof.plugin` does. Default: whether ``DYNPROF_PLUGIN=1``.
        steps: The source of steps. ``"script"``: its calls of :func:`step`. ``"optimizer"``: the
            first one that steps. ``"auto"``: the script, or the optimizer if the script does not
            call :func:`step`. ``"package.module:function"`` or ``"package.module:Class.method"``:
            each return of it; nothing before the colon means the script itself. A number: a period
            in seconds. Default: ``DYNPROF_STEPS``, else ``"script"``.
        store: A ``TCPStore`` of ``torch.distributed`` to which all ranks of the job are connected.
            Through it they agree on the steps of windows. The launcher's variables give the number
            of ranks. Default: the store of the process group, once there is one.
        role: The task of this process and its ranks, such as ``"rollout"``, if processes of several
            roles share the directory. Up to 32 letters, digits and ``-``. Each role counts its own
            ranks, agrees on its own windows, and has its name in its files. Default:
            ``DYNPROF_ROLE``, else empty.
        on_event: A command that rank 0 of each role runs at an event, such as a stuck step, without
            a shell: ``["notify.sh", "team"]``. It gets the event as JSON on its standard input.
            Default: ``DYNPROF_ON_EVENT``, in the syntax of a shell.
        nvtx: Also send all marks of :mod:`dynprof.mstx` to NVTX, for Nsight and similar tools.
            Default: whether ``DYNPROF_NVTX=1``.

    Raises:
        UnusablePathError: The directory cannot be used, or another user could replace it.
        ValueError: An argument or its variable has none of the values above.
    """
    global _inbox, _session
    if disabled():
        _inbox = NoInbox(silent=True)
        return
    if not isinstance(path, (str, os.PathLike)):
        from dynprof.errors import UnusablePathError

        raise UnusablePathError(f'init({path!r}) names no directory; write init("prof_config")')
    with _beginning:
        if _session is not None and _from_outside is not None:
            path, steps = _take_over(path, steps)
        if said := _why_nothing_changes():
            warnings.warn(f"dynprof.init({str(path)!r}) changes nothing{said}", stacklevel=2)
            return
        from dynprof.runtime.process_hooks import call_at_end
        from dynprof.runtime.rank import why_unsupported
        from dynprof.session.startup import InitOptions, mark_as_requested, open_session

        if (reason := why_unsupported(rank)) is not None:
            _inbox = NoInbox(silent=True)
            if reason:
                warnings.warn(f"dynprof.init() does nothing here: {reason}", stacklevel=2)
            return
        options = InitOptions(
            watch, rank, exit_wait_s, prof_dirs, follow_symlinks, steps, store, role, on_event
        )
        _session = open_session(Path(path), options)
        call_at_end(_end_at_exit)
        _inbox = _session.inbox
    mark_as_requested(plugin=plugin, nvtx=nvtx)


def _why_nothing_changes() -> str:
    text = "since the first call; call dynprof.shutdown() in between to watch another directory"
    return f": {_session.directory} is watched {text}" if _session else ""


def init_from_outside(
    directory: Path, steps: str | None, by: str, on_event: Sequence[str] | None = None
) -> None:
    """Watch a directory for a command that started the process; for :mod:`dynprof.launch`.

    If the script calls :func:`init` itself, its options apply from then on. The directory stays
    this one, and so does the source of steps if ``steps`` names one.

    Args:
        directory: The directory of the config.
        steps: The source of steps; None: the script, else the optimizer.
        by: The command or variable that requested it, as in "as ... asks".
        on_event: As :func:`init` takes it.

    Raises:
        UnusablePathError: As :func:`init`.
        ValueError: As :func:`init`.
    """
    global _from_outside
    if _session is None:
        init(directory, steps=steps or "auto", on_event=on_event)
        if _session is not None and _session.directory.resolve() == directory.resolve():
            _from_outside = _Outside(directory, steps, by)


def watched() -> tuple[str | None, str | None]:
    """Return the watched directory, and what began the session from outside; each may be None."""
    if _session is None:
        return None, None
    return str(_session.directory), _from_outside.by if _from_outside else None


def running() -> Session | None:
    """Return the session, for callers inside dynprof; None if there is none."""
    return _session


def _take_over(path: str | os.PathLike[str], steps: str | float | None) -> tuple[Path, str | float]:
    """End the session from outside; return the directory and the steps for the script's own."""
    global _from_outside
    outside, _from_outside = cast("_Outside", _from_outside), None
    _end("the script calls init() itself")
    if Path(path).expanduser().resolve() != outside.directory.resolve():
        text = f"the script's init({str(path)!r}) watches {outside.directory}"
        say(f"{text}, as {outside.by} asks")
    return outside.directory, outside.steps or steps or "auto"


def start(config_path: str | os.PathLike[str] | None = None) -> None:
    """Open a window now, on the calling thread, from the watched config or another file.

    It ignores the config's ``start_step``. Problems are in the log and in :func:`status`; nothing
    is raised.

    Args:
        config_path: The other file.
    """
    if session := _running("start"):
        session.start(config_path)


def stop() -> None:
    """Close the open window early and keep its recording; without one, do nothing."""
    if session := _running("stop"):
        session.stop()


def set_state(state_step: dict[str, Any]) -> None:
    """Set the step of a resumed job: after ``set_state({"cur_step": 1200})``, 1200 is running.

    Args:
        state_step: ``cur_step``, a whole number of 0 or more. Anything else warns and changes
            nothing.
    """
    step = state_step.get("cur_step") if isinstance(state_step, dict) else None
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**53:
        text = f'dynprof.set_state({state_step!r}) changes nothing; it takes {{"cur_step": 1200}}'
        warnings.warn(text, stacklevel=2)
    elif session := _running("set_state"):
        session.set_step(step)


def status() -> Status:
    """Return the status of this process: state, step, request, problems, last capture."""
    if _session is None:
        from dynprof.journal.status import Status

        return Status(state="disabled" if disabled() else "not initialised")
    return _session.status()


def shutdown() -> None:
    """Close an open window, wait until it is saved, and stop watching; also done at exit.

    Raises:
        KeyboardInterrupt: Ctrl-C while it waited; the capture being saved is given up.
    """
    _end("shutdown() was called")


def disabled() -> bool:
    """Return whether ``DYNPROF_DISABLE`` switches everything off."""
    return os.environ.get("DYNPROF_DISABLE", "0").lower() not in ("", "0", "false", "no")


def _running(name: str) -> Session | None:
    if _session is None and not disabled():
        text = f"dynprof.{name}() was called before init() or after shutdown(); it does nothing"
        warnings.warn(text, stacklevel=3)
    return _session


def _end(reason: str) -> None:
    global _inbox, _session
    session, was_interrupted = None, True
    try:
        session, _session = _session, None
        if session is not None:
            session.end(reason)  # steps of other threads still count: they may close a window
        was_interrupted = False
    finally:
        if session and was_interrupted and not session.is_over and _session is None:
            _session = session  # the next call that ends it continues
        elif session and _inbox is session.inbox:  # else another thread has begun a new one
            _inbox = NoInbox(silent=True)
            _inbox.step = session.inbox.step


def _end_at_exit() -> None:
    if _session is not None:
        from dynprof.runtime.graph_captures import GRAPH_CAPTURES
        from dynprof.runtime.stacks import uncaught_exception

        GRAPH_CAPTURES.process_ends()
        _session.process_ends(uncaught_exception())
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # it has ended
        _end("the process ended")


def _reset_in_child() -> None:
    """Disable profiling in a forked child: the threads and files belong to its parent."""
    global _beginning, _inbox, _session, _from_outside
    _beginning = threading.RLock()
    session, _inbox, _session, _from_outside = _session, NoInbox(silent=True), None, None
    ignore_inherited_group()
    if session is not None:
        session.leave_child()


call_in_child(_reset_in_child)
