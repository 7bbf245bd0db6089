"""The two lines in a training script, and the few calls beside them.

The names are those of ``torch_npu.profiler.dynamic_profile``. The module holds the package's one
global: what ``step()`` looks into, and the session behind it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dynprof.requests.inbox import NoInbox
from dynprof.runtime.forked_child import forget_in_child
from dynprof.runtime.rank import ignore_inherited_group
from dynprof.runtime.warnings_to_script import say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dynprof.journal.status import Status
    from dynprof.requests.inbox import Inbox
    from dynprof.session.session import Session


class _Outside(NamedTuple):
    """What was requested of a session that was begun from outside.

    Attributes:
        directory: Where the config is.
        steps: Who ends the steps; None where the script may say that.
        by: What asked for it.
    """

    directory: Path
    steps: str | None
    by: str


_inbox: Inbox | NoInbox = NoInbox(silent=False)
_session: Session | None = None
_from_outside: _Outside | None = None
"""Set where a session was begun for the script, not by it."""
_beginning = threading.RLock()


def step() -> None:
    """End one training step and begin the next; call it once per step.

    While nothing is asked for, it adds one to a counter and tests one flag. The numbers count
    from 0: the work before the first call is step 0 (see :func:`set_state` for resumed jobs). Where
    several threads call it, each call ends a step, and a window records them all if it can.
    """
    inbox = _inbox
    inbox.step += 1
    if inbox.due:
        inbox.on_due()


step._torchdynamo_disable = True  # type: ignore[attr-defined]
"""Tells torch.compile to leave it alone: traced, each number of a step would be compiled anew."""


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
) -> None:
    """Watch ``profiler_config.json`` in a directory from now on; call it once, before training.

    The directory and the config are created if they are not there; where torch is used, import
    it before, so that the template names its devices. A config that is there already is not
    taken as a request: only a save from now on is. A second call warns and changes nothing; where
    the process was begun by ``dynprof run``, the first call goes on in that one's directory. With
    ``DYNPROF_DISABLE=1`` in the environment nothing happens at all, nor does it in the workers of a
    DataLoader or a pool; nor, with a warning, where gevent or eventlet has replaced threads.

    Args:
        path: The directory of the config.
        watch: ``"events"`` (inotify and the like), ``"poll"``, or ``"auto"``: decided by the
            file system. Without it ``DYNPROF_WATCH`` decides.
        rank: The rank of this process; without it, the process group or the launcher's variables
            say it.
        exit_wait_s: For so many seconds the end of the process waits for a capture that is being
            saved. Without it ``DYNPROF_EXIT_WAIT_S`` decides, else it is 600.
        prof_dirs: Absolute directories, and URLs, that the config's ``prof_dir`` may name besides
            those under ``path``. Without it ``DYNPROF_PROF_DIRS``, a list as in ``PATH``, decides.
        follow_symlinks: Read the config, and write, through symbolic links below ``path``, as a
            mounted ConfigMap of Kubernetes needs it; else they are refused.
        plugin: Mark the phases of torch's loops for windows that ask for marks, as
            :mod:`dynprof.plugin` does. Without it ``DYNPROF_PLUGIN=1`` decides.
        steps: Who ends the steps: ``"script"``, its calls of :func:`step`; ``"optimizer"``, the
            one that steps first; ``"auto"``, the script, or the optimizer where that
            does not; ``"package.module:function"`` or ``"package.module:Class.method"``, each
            return of it (nothing before the colon means the script itself); a number, a period in
            seconds. Without it ``DYNPROF_STEPS`` decides, else it is ``"script"``.
        store: A ``TCPStore`` of ``torch.distributed`` to which all ranks of the job are connected:
            over it they agree on the steps of windows. How many there are the launcher's variables
            say. Without it the process group's serves, as soon as there is one.
        role: What this process and its ranks do, such as ``"rollout"``, where processes of several
            roles share the directory: up to 32 letters, digits and ``-``. Each role counts its own
            ranks, agrees on its own windows, and has it in the names of its files. Without it
            ``DYNPROF_ROLE`` decides, else it is empty.
        nvtx: Send all marks of :mod:`dynprof.mstx` to NVTX as well, for Nsight and its like.
            Without it ``DYNPROF_NVTX=1`` decides.

    Raises:
        UnusablePathError: The directory cannot be used, or another user could replace it.
        ValueError: An argument or its variable is not one of the values above.
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
        from dynprof.runtime.process_end import call_at_end
        from dynprof.runtime.unsupported_processes import why_unsupported
        from dynprof.session.startup import InitOptions, mark_as_requested, open_session

        if (reason := why_unsupported(rank)) is not None:
            _inbox = NoInbox(silent=True)
            if reason:
                warnings.warn(f"dynprof.init() does nothing here: {reason}", stacklevel=2)
            return
        options = InitOptions(
            watch, rank, exit_wait_s, prof_dirs, follow_symlinks, steps, store, role
        )
        _session = open_session(Path(path), options)
        call_at_end(_end_at_exit)
        _inbox = _session.inbox
    mark_as_requested(plugin=plugin, nvtx=nvtx)


def _why_nothing_changes() -> str:
    text = "since the first call; call dynprof.shutdown() in between to watch another directory"
    return f": {_session.directory} is watched {text}" if _session else ""


def init_from_outside(directory: Path, steps: str | None, by: str) -> None:
    """Watch a directory on behalf of whoever started the process; for :mod:`dynprof.launch`.

    Where the script calls :func:`init` itself, its options count from then on, but in this
    directory and, if ``steps`` names one, with this source of steps.

    Args:
        directory: Where the config is.
        steps: Who ends the steps; None: the script, else the optimizer.
        by: What asked for it, as in "as ... asks".

    Raises:
        UnusablePathError: As :func:`init`.
        ValueError: As :func:`init`.
    """
    global _from_outside
    if _session is None:
        init(directory, steps=steps or "auto")
        if _session is not None and _session.directory.resolve() == directory.resolve():
            _from_outside = _Outside(directory, steps, by)


def watched() -> tuple[str | None, str | None]:
    """Return the directory that this process watches, and what began that from outside."""
    if _session is None:
        return None, None
    return str(_session.directory), _from_outside.by if _from_outside else None


def running() -> Session | None:
    """Return the session, to tell it what only its caller knows; None where there is none."""
    return _session


def _take_over(path: str | os.PathLike[str], steps: str | float | None) -> tuple[Path, str | float]:
    """End the session that was begun from outside; return where and how the script's begins."""
    global _from_outside
    outside, _from_outside = cast("_Outside", _from_outside), None
    _end("the script calls init() itself")
    if Path(path).expanduser().resolve() != outside.directory.resolve():
        text = f"the script's init({str(path)!r}) watches {outside.directory}"
        say(f"{text}, as {outside.by} asks")
    return outside.directory, outside.steps or steps or "auto"


def start(config_path: str | os.PathLike[str] | None = None) -> None:
    """Open a window now, on the calling thread, from the watched config or from another file.

    The config's ``start_step`` is ignored. What hinders it is said in the log and in
    :func:`status`; nothing is raised.

    Args:
        config_path: The other file.
    """
    if session := _running("start"):
        session.start(config_path)


def stop() -> None:
    """Close the open window early and keep what it has; without one, do nothing."""
    if session := _running("stop"):
        session.stop()


def set_state(state_step: dict[str, Any]) -> None:
    """Tell a resumed job's step: ``set_state({"cur_step": 1200})`` says that 1200 is running.

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
    """Return where this process stands: state, step, request, problems, last capture."""
    if _session is None:
        from dynprof.journal.status import Status

        return Status(state="disabled" if disabled() else "not initialised")
    return _session.status()


def shutdown() -> None:
    """Close an open window, wait until it is saved, and stop watching; also done at exit.

    Raises:
        KeyboardInterrupt: Ctrl-C while it waited; what was being saved is given up.
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
            _session = session  # whoever ends it next goes on with it
        elif session and _inbox is session.inbox:  # else another thread has begun one meanwhile
            _inbox = NoInbox(silent=True)
            _inbox.step = session.inbox.step


def _end_at_exit() -> None:
    if _session is not None:
        from dynprof.runtime.graph_captures import GRAPH_CAPTURES

        GRAPH_CAPTURES.process_ends()
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # has done its work; it ends anyway
        _end("the process ended")


def _forget_in_child() -> None:
    """Leave a forked child without profiling: its parent's threads and files are not its own."""
    global _beginning, _inbox, _session, _from_outside
    _beginning = threading.RLock()
    session, _inbox, _session, _from_outside = _session, NoInbox(silent=True), None, None
    ignore_inherited_group()
    if session is not None:
        session.leave_child()


forget_in_child(_forget_in_child)
