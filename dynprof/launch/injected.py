"""The code that the target process runs before it has loaded dynprof.

A call of :func:`start` is appended to it. That starts a thread for :func:`begin`, so that the
training continues at once. The job's forks wait while that thread imports: a child would wait
forever for a module that never finishes loading.

This file imports only modules that every interpreter has loaded at its start: the finder for
trusted modules does not exist yet, or no longer. Even ``from __future__`` would be an import.
"""

import _thread
import os
import sys
import time
from _frozen_importlib_external import PathFinder  # as in importlib, which may not be loaded

TYPE_CHECKING = False
MAIN_THREAD_ENDED = "its main thread has ended, and only other threads still run"
if TYPE_CHECKING:
    from collections.abc import Collection


class Homes:
    """Finds dynprof, and packages that it needs, in the installation of the attaching command.

    It comes after all other finders, so that the job's own packages are preferred.
    """

    def __init__(self, homes: dict[str, str]) -> None:
        self.homes = homes

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Return the spec of a shared package; None for others."""
        home = None if path else self.homes.get(name)
        return PathFinder.find_spec(name, [home], target) if home else None  # type: ignore[arg-type]


class Installed:
    """Finds only trusted modules for dynprof's own threads; it comes before all other finders.

    Trusted are Python's library, the job's installed packages, then the shared packages. The
    script's folder and the working directory may be on the path too, but other users may write
    there. A module there with the name of a library module is not the one that dynprof needs.

    Args:
        homes: Folders of the shared packages, by name.
        attached: Whether attach has started a session before, which needs the finder too.

    Attributes:
        works_in: PID of the process in which an action is running, during which no other finder may
            replace this one; 0 after the action.
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
        """Return the spec of a module; None if the other finders may look for it."""
        if path is not None or name in sys.builtin_module_names or not self.is_own_thread():
            return None
        places = [*self.places, self.homes[name]] if name in self.homes else self.places
        spec = PathFinder.find_spec(name, places, target)  # type: ignore[arg-type]
        if spec is None and PathFinder.find_spec(name, None, target):  # type: ignore[arg-type]
            text = f"No module named {name!r} outside the job's own folders"
            raise ModuleNotFoundError(text, name=name)
        return spec

    def is_own_thread(self) -> bool:
        """Return whether the importing thread belongs to dynprof."""
        number = _thread.get_ident()
        known = getattr(sys.modules.get("threading"), "_active", {}).get(number)
        named = str(getattr(known, "name", "")).startswith("dynprof")
        return number in self.threads or named


def start(asked: dict[str, object]) -> None:
    """Start a thread for :func:`begin`, unless the request was withdrawn or taken already."""
    began_s, folder = time.perf_counter(), str(asked["folder"])
    try:
        os.rename(folder + "/go", folder + "/taken")  # noqa: PTH104 - pathlib may not be loaded
    except OSError:
        return
    if any(getattr(finder, "works_in", 0) == os.getpid() for finder in sys.meta_path):
        write_answer(
            folder,
            began_s,
            {"failed": "another command is attaching to it or detaching; try again"},
        )
        return
    finder = add_finders(asked)
    try:
        load_threading(finder)
        _thread.start_new_thread(begin, (asked, began_s, finder))
    except (RuntimeError, ImportError, OSError) as error:
        roll_back(finder, sys.modules)
        write_answer(folder, began_s, failure(error))


def add_finders(asked: dict[str, object]) -> Installed:
    """Add the finders; return the one for dynprof's own threads."""
    attached = remove_finders()
    installed = Installed(asked["homes"], attached=attached)  # type: ignore[arg-type]
    sys.meta_path.insert(0, installed)  # type: ignore[arg-type]
    sys.meta_path.append(Homes(asked["homes"]))  # type: ignore[arg-type]
    return installed


def remove_finders() -> bool:
    """Remove the finders of earlier attaches; return whether there were any."""
    found = [one for one in sys.meta_path if type(one).__name__ in ("Homes", "Installed")]
    for finder in found:
        sys.meta_path.remove(finder)
    return bool(found)


def load_threading(finder: Installed) -> None:
    """Load ``threading``, which takes the thread that loads it first for the main thread.

    Raises:
        RuntimeError: This is not the main thread; Python would wait for no thread of the job at
            its end.
    """
    if "threading" in sys.modules:
        return
    if _thread.get_native_id() != os.getpid():
        raise RuntimeError("its main thread only waits and has not loaded the module threading")
    finder.threads.add(_thread.get_ident())
    try:
        import threading  # noqa: F401
    finally:
        finder.threads.discard(_thread.get_ident())


def begin(asked: dict[str, object], began_s: float, finder: Installed) -> None:
    """Run the action and write the answer.

    Args:
        asked: The argument of ``dynprof.launch.in_target.act``, and ``homes``.
        began_s: When the main thread ran this code.
        finder: The finder that loads dynprof.
    """
    no_forks = _thread.RLock()
    os.register_at_fork(
        before=no_forks.acquire, after_in_parent=no_forks.release, after_in_child=no_forks.release
    )
    interval, before = sys.getswitchinterval(), set(sys.modules)
    finder.threads.add(_thread.get_ident())
    sys.setswitchinterval(1e-4)  # else the training waits 5 ms at each release of the GIL
    try:
        answer = perform(asked, before, no_forks)
    except Exception as error:  # noqa: BLE001 - dynprof's boundary is not loaded yet
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


def perform(
    asked: dict[str, object], before: "Collection[str]", no_forks: _thread.RLock
) -> dict[str, object]:
    """Load dynprof and run the action; ``before`` has the modules loaded before that."""
    threading = sys.modules.get("threading")
    if asked["action"] == "attach" and threading and not threading.main_thread().is_alive():
        return {"failed": MAIN_THREAD_ENDED}
    with no_forks:
        from dynprof.launch.in_target import act
        from dynprof.runtime.modules import unload_shadowed
    try:
        if asked["action"] == "attach":  # loads the rest
            with no_forks:
                return act(asked)
        return act(asked)  # waits until captures are saved
    finally:
        unload_shadowed(before, sys.path)


def roll_back(finder: Installed, before: "Collection[str]") -> None:
    """Remove the finders and modules of dynprof that were not loaded ``before``."""
    if finder.attached:
        return
    remove_finders()
    for name in list(sys.modules):
        if name.partition(".")[0] == "dynprof" and name not in before:
            del sys.modules[name]


def failure(error: Exception) -> dict[str, object]:
    """Return the answer for an error."""
    if isinstance(error, RuntimeError) and "shutdown" in str(error):
        return {"failed": MAIN_THREAD_ENDED}
    if isinstance(error, RuntimeError) and "threading" in str(error):
        return {"failed": str(error)}
    return {"failed": f"{type(error).__name__}: {error}"}


def write_answer(folder: str, began_s: float, answer: dict[str, object]) -> None:
    """Write the answer; if that fails, rename a file, which needs no descriptor or disk space."""
    said = ascii({"took_s": time.perf_counter() - began_s, **answer})
    try:
        with open(folder + "/answer.part", "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
            file.write(said)
        os.rename(folder + "/answer.part", folder + "/answer")  # noqa: PTH104 - as above
    except OSError:
        try:  # noqa: SIM105 - contextlib may not be loaded
            os.rename(folder + "/taken", folder + "/unanswered")  # noqa: PTH104 - as above
        except OSError:
            pass  # the command has stopped waiting
