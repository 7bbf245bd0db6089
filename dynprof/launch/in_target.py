"""Actions in the target process, on a thread of dynprof's own."""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
from pathlib import Path
from typing import Any

from dynprof import dynamic_profile
from dynprof.runtime.plural import counted
from dynprof.runtime.rank import why_no_rank, why_no_threads
from dynprof.runtime.stacks import place_of

BY = "dynprof attach"
"""Origin of a session that attach has started."""
_STOPPED_WAIT_S = 2.0
"""How long to wait for the file that says how long the main thread was stopped."""
_IMPORT_WAIT_S = 20.0
"""How long to wait for an import of torch."""


def act(asked: dict[str, Any]) -> dict[str, Any]:
    """Start a session, or end one that attach has started; return the answer.

    Args:
        asked: ``action``, ``directory``, ``steps`` and ``on_event``, the ``folder`` of the caller,
            and its PID as ``by``.

    Raises:
        DynprofError: The directory cannot be used.
        ValueError: ``steps`` names no source.
    """
    if asked["action"] == "detach":
        return _detach()
    if already := dynamic_profile.watched()[0]:
        return {"watched": already}
    if dynamic_profile.disabled():
        return {"failed": "DYNPROF_DISABLE is set in its environment"}
    if reason := why_no_threads() or _why_no_rank():
        return {"failed": reason}
    if reason := _why_importing():
        return {"failed": reason}
    dynamic_profile.init_from_outside(
        Path(asked["directory"]), asked["steps"], BY, asked.get("on_event")
    )
    if session := dynamic_profile.running():
        session.number_as_leader()
    place = place_of(threading.main_thread().ident or 0)
    stopped_ms = _stopped_ms(Path(asked["folder"]))
    if stopped_ms is not None:
        text = f"attached from outside by process {asked['by']}: its main thread was stopped"
        _note(f"{text} for {stopped_ms:.2f} ms")
    return {"begun": dynamic_profile.watched()[0], "place": place}


def _why_importing() -> str:
    """Wait while torch is being imported; return a reason if that takes too long.

    If two threads import parts of it at once, Python may give the script incomplete modules.
    """
    deadline_s = time.monotonic() + _IMPORT_WAIT_S
    while _torch_is_being_imported():
        if time.monotonic() > deadline_s:
            return f"it has been importing torch for {_IMPORT_WAIT_S:g} s; try again after that"
        time.sleep(0.05)
    return ""


def _torch_is_being_imported() -> bool:
    loaded = [module for name, module in [*sys.modules.items()] if name.split(".")[0] == "torch"]
    return any(getattr(getattr(one, "__spec__", None), "_initializing", False) for one in loaded)


def _why_no_rank() -> str:
    """Return why this process is not a rank, and which process to attach to instead."""
    reason, parent = why_no_rank(), multiprocessing.parent_process()
    advice = f"attach to process {parent.pid}, which started it" if parent else ""
    return f"{reason}; {advice}" if reason and advice else reason or ""


def _detach() -> dict[str, Any]:
    directory, by = dynamic_profile.watched()
    if not directory:
        return {"failed": "it has no session of dynprof"}
    if by != BY:
        return {"failed": f"dynprof attach did not start its session in {directory}, which stays"}
    _note("detached from outside")
    dynamic_profile.shutdown()
    left = sum(name.partition(".")[0] == "dynprof" for name in list(sys.modules))
    return {"ended": directory, "left": f"{counted(left, 'module')} of dynprof, which do nothing"}


def _note(text: str) -> None:
    if session := dynamic_profile.running():
        session.note(text)


def _stopped_ms(folder: Path) -> float | None:
    """Return how long the main thread was stopped; the attaching command writes that to a file."""
    deadline_s = time.monotonic() + _STOPPED_WAIT_S
    while time.monotonic() < deadline_s:
        if (folder / "stood").exists():
            return float(json.loads((folder / "stood").read_text()))
        time.sleep(0.005)
    return None
