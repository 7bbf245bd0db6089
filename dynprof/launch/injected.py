"""The text that the other process runs, before it has anything of dynprof.

It is followed by a call of :func:`start`, which has a thread run :func:`begin`, so that the
training goes on at once. No fork of the job's happens while that thread imports: a child would wait
for ever for a module that it never gets.

Here only modules are imported that the interpreter has from the beginning: the finder of what may
be trusted is not there yet, or no more, and ``from __future__`` is an import like any other.
"""

import _thread
import os
import sys
import time
from _frozen_importlib_external import PathFinder  # as in importlib, which may not be loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


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


class Installed:
    """Finds for dynprof's own threads what nobody but the job's user can have put there.

    Python's library, the job's installed packages, then what is lent. The script's folder and the
    working directory may be on the path too: others may write there, and what the job has there
    under a name of the library's is not meant. It stands before all others.

    Args:
        homes: As above.
        attached: Whether somebody had attached before: his session needs it as well.

    Attributes:
        works_in: The process in which what was asked for is being done, and no other finder may
            take the place of this one; 0 where it is done.
    """

    def __init__(self, homes: dict[str, str], *, attached: bool) -> None:
        self.homes, self.attached, self.works_in = homes, attached, os.getpid()
        self.threads = set[int]()
        library = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib may not be loaded
        ends = ("/site-packages", "/dist-packages")
        self.places = [
            place
            for place in sys.path
            if place in (library, library + "/lib-dynload") or place.endswith(ends)
        ]

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Return where it is; None where others may look."""
        if path is not None or name in sys.builtin_module_names or not self.is_own_thread():
            return None
        places = [*self.places, self.homes[name]] if name in self.homes else self.places
        spec = PathFinder.find_spec(name, places, target)  # type: ignore[arg-type]
        if spec is None and PathFinder.find_spec(name, None, target):  # type: ignore[arg-type]
            raise ModuleNotFoundError(f"No module named {name!r} but where it works", name=name)
        return spec

    def is_own_thread(self) -> bool:
        """Return whether a thread of dynprof's imports."""
        number = _thread.get_ident()
        known = getattr(sys.modules.get("threading"), "_active", {}).get(number)
        named = str(getattr(known, "name", "")).startswith("dynprof")
        return number in self.threads or named


def start(asked: dict[str, object]) -> None:
    """Have it begun on a thread, unless it was withdrawn or another thread has come before."""
    began_s, folder = time.perf_counter(), str(asked["folder"])
    try:
        os.rename(folder + "/go", folder + "/taken")  # noqa: PTH104 - pathlib may not be loaded
    except OSError:
        return
    if any(getattr(finder, "works_in", 0) == os.getpid() for finder in sys.meta_path):
        write_answer(folder, began_s, {"failed": "another command is reaching into it; try again"})
        return
    finder = add_finders(asked)
    try:
        load_threading(finder)
        _thread.start_new_thread(begin, (asked, began_s, finder))
    except (RuntimeError, ImportError, OSError) as error:
        roll_back(finder, sys.modules)
        write_answer(folder, began_s, failure(error))


def add_finders(asked: dict[str, object]) -> Installed:
    """Have what is lent found; return the finder of dynprof's own threads."""
    attached = remove_finders()
    installed = Installed(asked["homes"], attached=attached)  # type: ignore[arg-type]
    sys.meta_path.insert(0, installed)  # type: ignore[arg-type]
    sys.meta_path.append(Homes(asked["homes"]))  # type: ignore[arg-type]
    return installed


def remove_finders() -> bool:
    """Remove those of whoever has attached; return whether there were any."""
    found = [one for one in sys.meta_path if type(one).__name__ in ("Homes", "Installed")]
    for finder in found:
        sys.meta_path.remove(finder)
    return bool(found)


def load_threading(finder: Installed) -> None:
    """Load ``threading``, which takes the thread that loads it first for the main one.

    Raises:
        RuntimeError: This is another one; at its end Python would wait for no thread of the job's.
    """
    if "threading" in sys.modules:
        return
    if _thread.get_native_id() != os.getpid():
        raise RuntimeError("its main thread only waits, and has never loaded threading")
    finder.threads.add(_thread.get_ident())
    try:
        import threading  # noqa: F401
    finally:
        finder.threads.discard(_thread.get_ident())


def begin(asked: dict[str, object], began_s: float, finder: Installed) -> None:
    """Do what is asked, and answer.

    Args:
        asked: What ``dynprof.launch.in_target.act`` takes, and ``homes``.
        began_s: When the main thread ran this text.
        finder: Finds dynprof.
    """
    no_forks = _thread.RLock()
    os.register_at_fork(
        before=no_forks.acquire, after_in_parent=no_forks.release, after_in_child=no_forks.release
    )
    interval, before = sys.getswitchinterval(), set(sys.modules)
    finder.threads.add(_thread.get_ident())
    sys.setswitchinterval(1e-4)  # else the training waits 5 ms each time that it lets go
    try:
        answer = perform(asked, before, no_forks)
    except Exception as error:  # noqa: BLE001 - the boundary cannot be there before dynprof is
        answer = failure(error)
    finally:
        sys.setswitchinterval(interval)
    if "ended" in answer:
        remove_finders()
    elif "begun" not in answer:
        roll_back(finder, before)
    finder.works_in = 0
    finder.threads.discard(_thread.get_ident())
    write_answer(str(asked["folder"]), began_s, answer)


MAIN_THREAD_ENDED = "its main thread has ended, and only other threads go on"


def perform(
    asked: dict[str, object], before: "Collection[str]", no_forks: _thread.RLock
) -> dict[str, object]:
    """Load dynprof, and have it do what is asked; ``before`` names what was loaded by then."""
    threading = sys.modules.get("threading")
    if asked["action"] == "attach" and threading and not threading.main_thread().is_alive():
        return {"failed": MAIN_THREAD_ENDED}
    with no_forks:
        from dynprof.launch.in_target import act
        from dynprof.runtime.modules import forget_shadowed
    try:
        if asked["action"] == "attach":  # loads the rest
            with no_forks:
                return act(asked)
        return act(asked)  # waits for what is being saved
    finally:
        forget_shadowed(before, sys.path)


def roll_back(finder: Installed, before: "Collection[str]") -> None:
    """Leave nothing of dynprof that was not there ``before``, where nothing was begun."""
    if finder.attached:
        return
    remove_finders()
    for name in list(sys.modules):
        if name.partition(".")[0] == "dynprof" and name not in before:
            del sys.modules[name]


def failure(error: Exception) -> dict[str, object]:
    """Return what to say of a failure."""
    if isinstance(error, RuntimeError) and "shutdown" in str(error):
        return {"failed": MAIN_THREAD_ENDED}
    if isinstance(error, RuntimeError) and "threading" in str(error):
        return {"failed": str(error)}
    return {"failed": f"{type(error).__name__}: {error}"}


def write_answer(folder: str, began_s: float, answer: dict[str, object]) -> None:
    """Answer; where nothing can be written, say that, which takes neither descriptor nor room."""
    said = ascii({"took_s": time.perf_counter() - began_s, **answer})
    try:
        with open(folder + "/answer.part", "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
            file.write(said)
        os.rename(folder + "/answer.part", folder + "/answer")  # noqa: PTH104 - as above
    except OSError:
        try:  # noqa: SIM105 - contextlib may not be loaded
            os.rename(folder + "/taken", folder + "/unanswered")  # noqa: PTH104 - as above
        except OSError:
            pass  # the command waits no more
