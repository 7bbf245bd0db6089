"""What is done in the process that was reached, on a thread of dynprof's own."""

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
from dynprof.runtime.rank import why_no_rank
from dynprof.runtime.threads import place_of
from dynprof.runtime.unsupported_processes import why_no_threads

BY = "dynprof attach"
_STOPPED_WAIT_S = 2.0
_IMPORT_WAIT_S = 20.0


def act(asked: dict[str, Any]) -> dict[str, Any]:
    """Begin a session, or end the one that was begun so; return what to say of it.

    Args:
        asked: ``action``, ``directory`` and ``steps``, and the ``folder`` of who asks.

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
    dynamic_profile.init_from_outside(Path(asked["directory"]), asked["steps"], BY)
    if session := dynamic_profile.running():
        session.number_as_leader()
    place = place_of(threading.main_thread().ident or 0)
    stopped_ms = _stopped_ms(Path(asked["folder"]))
    if stopped_ms is not None:
        text = f"attached from outside by process {asked['by']}: its main thread stood still"
        _note(f"{text} for {stopped_ms:.2f} ms")
    return {"begun": dynamic_profile.watched()[0], "place": place}


def _why_importing() -> str:
    """Wait while torch is being imported; say so where that takes long.

    Where two threads import parts of it at once, Python may give the script half-made modules.
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
    """Say why this process is no rank, and which process to attach to instead."""
    reason, parent = why_no_rank(), multiprocessing.parent_process()
    advice = f"attach to process {parent.pid}, which has started it" if parent else ""
    return f"{reason}; {advice}" if reason and advice else reason or ""


def _detach() -> dict[str, Any]:
    directory, by = dynamic_profile.watched()
    if not directory:
        return {"failed": "nothing of dynprof's runs there"}
    if by != BY:
        return {"failed": f"its session in {directory} was not begun by dynprof attach, and stays"}
    _note("detached from outside")
    dynamic_profile.shutdown()
    left = sum(name.partition(".")[0] == "dynprof" for name in list(sys.modules))
    return {"ended": directory, "left": f"{counted(left, 'module')} of dynprof, which do nothing"}


def _note(text: str) -> None:
    if session := dynamic_profile.running():
        session.note(text)


def _stopped_ms(folder: Path) -> float | None:
    """Return for how long the main thread stood; who attached writes it down right afterwards."""
    deadline_s = time.monotonic() + _STOPPED_WAIT_S
    while time.monotonic() < deadline_s:
        if (folder / "stood").exists():
            return float(json.loads((folder / "stood").read_text()))
        time.sleep(0.005)
    return None
