"""Start of a session: from the arguments of ``init()`` to a running ``Session``."""

from __future__ import annotations

import contextlib
import encodings.utf_8_sig  # noqa: F401 - as below
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic.dataclasses  # noqa: F401 - as below

import dynprof.mstx
import dynprof.phases  # noqa: F401 - as below: a script may use both in a later step
from dynprof.backends import all_backends
from dynprof.backends.torch.kineto import keep_kineto_quiet
from dynprof.captures.manifest import RequestRecord
from dynprof.config.editing import write_starter_files
from dynprof.errors import UnusablePathError
from dynprof.extras import find_all_packages
from dynprof.journal.event_command import command_of
from dynprof.requests.config_watcher import choose_mode
from dynprof.runtime.destination import is_url, split_urls, why_no_destination
from dynprof.runtime.layout import CONFIG_NAME, Layout
from dynprof.runtime.permissions import why_not_watched
from dynprof.runtime.rank import SCRIPT, Rank, find_rank, role_of
from dynprof.runtime.safe_open import make_dir, why_not_used
from dynprof.session.session import Session
from dynprof.steps.base import StepOption, step_option_of
from dynprof.windows.process_context import ProcessContext

# Load the modules that the threads of a session use before the threads begin. If the job forks
# while another thread imports a module, the child never gets that module's lock. A child that
# imports the same module, as a loader's worker may, then waits for ever.
with contextlib.suppress(ImportError):  # isal is not built for every machine
    import isal.igzip  # noqa: F401
find_all_packages()

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Places = Iterable[str | os.PathLike[str]] | str | os.PathLike[str]


EXIT_WAIT_S = 600.0
"""Default of how long the end of the process waits for a capture that is being saved."""
_ENTRY = re.compile(r"[A-Za-z][\w+.-]*://(?:[^:]|:(?!/(?!/)|~|:|$|[A-Za-z][\w+.-]*://))*|[^:]+")
"""An entry of ``DYNPROF_PROF_DIRS``: a path, or a URL, where ``:`` precedes a port or password."""
_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]+:")
"""The first part of a URL that was parsed as a path."""


@dataclass(frozen=True)
class InitOptions:
    """The arguments of :func:`dynprof.init`, which documents them; None where left out."""

    watch: str | None = None
    rank: int | None = None
    exit_wait_s: float | None = None
    prof_dirs: Places | None = None
    follow_symlinks: bool = False
    steps: str | float | None = None
    store: object = None
    role: str | None = None
    on_event: Sequence[str] | None = None


def open_session(path: Path, options: InitOptions) -> Session:
    """Prepare the directory and return a running session.

    Raises:
        UnusablePathError: The directory cannot be used, or another user could replace it.
        ValueError: An argument has a value that :func:`dynprof.init` does not accept.
    """
    place, role = _place(options.rank), role_of(options.role)
    patience_s = _exit_wait(options.exit_wait_s)
    prof_dirs, urls = _prof_dirs(options.prof_dirs)
    steps = step_option_of(options.steps, otherwise=StepOption("script"))
    on_event = command_of(options.on_event)
    backends = all_backends()
    root = _usable(path)
    try:
        usable = next(
            (capable for b in backends if not (capable := b.capabilities()).missing), None
        )
        write_starter_files(root)
        if usable:
            keep_kineto_quiet(usable)
        layout = Layout.here(
            root,
            place.number,
            role=role,
            prof_dirs=prof_dirs,
            urls=urls,
            follow_symlinks=options.follow_symlinks,
        )
        process = ProcessContext(layout, place, backends, store=options.store)
        watching = choose_mode(options.watch, root)
        session = Session(
            process, watching=watching, exit_wait_s=patience_s, steps=steps, on_event=on_event
        )
        use_readers()
        _begin(session)
    except (OSError, RuntimeError) as error:  # RuntimeError: a thread cannot start
        raise UnusablePathError(f"dynprof cannot work in {root}: {error}") from error
    return session


def _begin(session: Session) -> None:
    """Begin a session; if that fails, end it, so that its log and status say so."""
    begun = False
    try:
        session.begin()
        begun = True
    finally:
        if not begun:
            session.end("the session could not start")


def _place(rank: int | None) -> Rank:
    if rank is not None and (not isinstance(rank, int) or rank < 0):
        raise ValueError(f"rank={rank!r} is not a whole number of 0 or more")
    found = find_rank()
    return found if rank is None else Rank(rank, max(found.world_size, rank + 1), SCRIPT)


def mark_as_requested(*, plugin: bool | None, nvtx: bool | None) -> None:
    """Mark torch's loops, and send marks to NVTX, by the arguments, else the environment."""
    if plugin or (plugin is None and os.environ.get("DYNPROF_PLUGIN") == "1"):
        from dynprof.plugin import install

        install()
    if nvtx or (nvtx is None and os.environ.get("DYNPROF_NVTX") == "1"):
        from dynprof.mstx import to_nvtx

        to_nvtx()


def _prof_dirs(asked: Places | None) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the other allowed places of captures, from the argument, else the variable.

    Returns:
        Directories, and URLs.

    Raises:
        ValueError: An entry cannot be used. The message names its position: it may be secret.
    """
    if isinstance(asked, (str, os.PathLike)):
        asked = [asked]
    variable = _ENTRY.findall(os.environ.get("DYNPROF_PROF_DIRS", ""))
    source, told = ("DYNPROF_PROF_DIRS", variable) if asked is None else ("prof_dirs", asked)
    entries = list(map(str, told))
    for number, entry in enumerate(entries, 1):
        if why := _why_no_place(entry):
            raise ValueError(f"entry {number} of {source} cannot be used: {why}")
    named, urls = split_urls(entries)
    return tuple(Path(place).expanduser().resolve() for place in named), urls


def _why_no_place(entry: str) -> str:
    """Return what is wrong with a place, without repeating it; empty if it may be used."""
    if why := why_no_destination(entry):
        return why
    is_place = is_url(entry) or Path(entry).expanduser().is_absolute()
    return "" if is_place else "it is neither an absolute path nor a URL"


def _usable(path: Path) -> Path:
    """Make the directory; return its absolute path with links resolved."""
    scheme = next(iter(path.parts), "")
    if _SCHEME.fullmatch(scheme) and not path.exists():  # not repeated: it may hold a password
        text = "is no directory of this machine; captures may go to such a place, by prof_dir"
        raise UnusablePathError(f"a URL ({scheme}//...) {text}")
    if path.name == CONFIG_NAME:
        raise UnusablePathError(f"{path} is the config; give init() its directory, {path.parent}")
    try:
        meant = path.expanduser()
        root = meant.resolve()
        if root.exists() and not root.is_dir():
            raise UnusablePathError(f"{root} is not a directory; give init() a directory")
        _check_owners(meant)
        make_dir(root)
        _check_owners(root)  # another user may have made it in the meantime
    except (OSError, RuntimeError, ValueError) as error:
        raise UnusablePathError(f"{path} cannot be used: {error}") from error
    if why := why_not_used(root):
        raise UnusablePathError(why)
    return root


def _check_owners(directory: Path) -> None:
    if why := why_not_watched(directory):
        raise UnusablePathError(why)


def _exit_wait(asked: float | None) -> float:
    """Return how long the process's end waits: the argument, else the variable, else 600 s."""
    variable = os.environ.get("DYNPROF_EXIT_WAIT_S") or EXIT_WAIT_S
    source, value = ("DYNPROF_EXIT_WAIT_S", variable) if asked is None else ("exit_wait_s", asked)
    with contextlib.suppress(TypeError, ValueError):
        if 0 <= float(value) <= threading.TIMEOUT_MAX:
            return float(value)
    raise ValueError(f"{source}={value!r} is not a number of seconds, 0 or more")


def use_readers() -> None:
    """Use the parsers and writers of the session's threads once, so that they are loaded."""
    record = RequestRecord(number=0, edited_at="", sha256="", config={})
    RequestRecord.model_validate_json(record.model_dump_json())
    with contextlib.suppress(ValueError):
        RequestRecord.model_validate_json("{}")
