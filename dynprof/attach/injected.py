"""The text that the other process runs, before it has anything of dynprof.

It is followed by a call of :func:`start`, which has a thread run :func:`begin`, so that the
training goes on at once. No fork of the job's happens while that thread imports: a child would wait
for ever for a module that it never gets.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from importlib.machinery import PathFinder


class Homes:
    """Finds dynprof, and packages that it needs, where the one who attaches has them.

    It stands behind all others: what the job has itself comes from there.
    """

    def __init__(self, homes: dict[str, str]) -> None:
        self.homes = homes

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Return where a package is; None for every other one."""
        home = None if path else self.homes.get(name)
        return PathFinder.find_spec(name, [home], target) if home else None  # type: ignore[arg-type]


def start(asked: dict[str, object]) -> None:
    """Have it begun on a thread."""
    began_s = time.perf_counter()
    try:
        _thread.start_new_thread(begin, (asked, began_s))
    except RuntimeError as error:
        tell(str(asked["folder"]), began_s, failed(error))


def begin(asked: dict[str, object], began_s: float) -> None:
    """Do what is asked, unless it was withdrawn, and answer.

    Args:
        asked: What ``dynprof.attach.inside.act`` takes, and ``homes``.
        began_s: When the main thread ran this text.
    """
    folder = str(asked["folder"])
    try:
        os.rename(folder + "/go", folder + "/taken")  # noqa: PTH104 - pathlib may not be loaded
    except OSError:
        return
    no_forks = _thread.RLock()
    os.register_at_fork(
        before=no_forks.acquire, after_in_parent=no_forks.release, after_in_child=no_forks.release
    )
    interval = sys.getswitchinterval()
    with no_forks:
        sys.setswitchinterval(1e-4)  # else the training waits 5 ms each time that it lets go
        lent = sys.getswitchinterval()
        try:
            answer = answered(asked)
        except Exception as error:  # noqa: BLE001 - the wall cannot be there before dynprof is
            answer = failed(error)
        finally:
            if sys.getswitchinterval() == lent:  # else the script has set one meanwhile
                sys.setswitchinterval(interval)
    tell(folder, began_s, answer)


def answered(asked: dict[str, object]) -> dict[str, object]:
    """Load dynprof, and have it do what is asked."""
    if not any(type(finder).__name__ == "Homes" for finder in sys.meta_path):
        sys.meta_path.append(Homes(asked["homes"]))  # type: ignore[arg-type]
    from dynprof.attach.inside import act

    return act(asked)


def failed(error: Exception) -> dict[str, object]:
    """Return what to say of a failure."""
    if isinstance(error, RuntimeError) and "shutdown" in str(error):
        return {"failed": "its main thread has ended, and only other threads go on"}
    return {"failed": f"{type(error).__name__}: {error}"}


def tell(folder: str, began_s: float, answer: dict[str, object]) -> None:
    """Answer."""
    import json

    with open(folder + "/answer.part", "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
        json.dump({"took_s": time.perf_counter() - began_s, **answer}, file)
    os.rename(folder + "/answer.part", folder + "/answer")  # noqa: PTH104 - as above
