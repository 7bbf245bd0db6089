"""The deliveries of a session's captures, one after the other, on their own thread."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.errors import RemovedError
from dynprof.runtime.destination import OUTGOING
from dynprof.runtime.side_process import SideProcess
from dynprof.runtime.stale_folders import folder_lock
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.captures.delivery_order import Order
    from dynprof.captures.exporter import Attempt

DELIVERED = "delivered "
"""How the last line of a successful delivery begins."""
_GONE = "nothing can be sent: "
"""Prefix of a final error: the interpreter or this package is gone, so a retry is useless."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""The first and the longest pause between two tries, in seconds."""
LEAST_TRY_S, LEAST_BYTES_A_SECOND = 60.0, 1e6
"""A try counts as hung after ``max(LEAST_TRY_S, retry_s)`` seconds plus the size at this rate."""


@dataclass(frozen=True)
class DeliveryTask:
    """An order, and the callbacks for its outcome; they run on the delivery thread.

    Attributes:
        order: Which files to send, and where to.
        wait_s: Returns how many seconds to wait first, while other ranks write to the target.
        on_trouble: Called with the reason of a failed try, once for repeats of the same reason.
        on_end: Called with the path or URL of the last file and an empty text; on failure with an
            empty path and the reason.
    """

    order: Order
    wait_s: Callable[[], float] = lambda: 0.0
    on_trouble: Callable[[str], None] = lambda _: None
    on_end: Callable[[str, str], None] = lambda *_: None


class Deliveries:
    """The deliveries of a session; the thread starts with the first one.

    Args:
        attempt: Runs an action, logs an exception, and returns it.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._tasks: queue.SimpleQueue[DeliveryTask] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._left: list[Order] = []  # the first is being sent
        self._staging_dirs: set[Path] = set()
        self._held: dict[Path, contextlib.ExitStack] = {}
        self._idle, self._ending = threading.Event(), threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a delivery is running or waiting."""
        return not self._idle.is_set()

    def submit(self, task: DeliveryTask) -> None:
        """Queue a delivery."""
        with self._lock:
            self._left.append(task.order)
            self._staging_dirs.add(_staging_dir(task.order))
            self._idle.clear()
            self._lock_pending()
            self._tasks.put(task)
            if self._thread is None:
                thread = own_thread(self._run, "dynprof-delivery")
                thread.start()
                self._thread = thread

    def _lock_pending(self) -> None:
        """Lock the waiting captures, so that no other process takes them for leftovers.

        One lock covers all captures of one staging folder. With one lock per capture, a store that
        is down would cost the job as many descriptors as captures wait for it.
        """
        waiting = {_staging_dir(order) for order in self._left if not order.keeps}
        for staging_dir in waiting - self._held.keys():
            with contextlib.suppress(OSError), contextlib.ExitStack() as held:
                if held.enter_context(folder_lock(staging_dir)):
                    self._held[staging_dir] = held.pop_all()
        for staging_dir in self._held.keys() - waiting:
            with contextlib.suppress(OSError):
                self._held.pop(staging_dir).close()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all are delivered, and skip the waits for other ranks; False on timeout."""
        self._ending.set()
        return self._idle.wait(timeout_s)

    def left(self) -> list[str]:
        """Return a message for each capture that has not arrived as the process ends."""
        with self._lock:
            orders = list(self._left)
        texts = [f"the capture in {o.folder} has not arrived in {o.target}: " for o in orders]
        first = "it may still arrive, otherwise it stays there"
        return [text + ("it stays there" if n else first) for n, text in enumerate(texts)]

    def end(self) -> None:
        """Remove the staging folders that are empty."""
        for staging_dir in self._staging_dirs:
            remove_if_empty(staging_dir)

    def _run(self) -> None:
        while True:
            self._attempt("sending a capture", self._send_next)
            with self._lock:
                self._left.pop(0)
                self._lock_pending()
                if not self._left:
                    self._idle.set()

    def _send_next(self) -> None:
        task = self._tasks.get()
        self._ending.wait(task.wait_s())
        until_s, pause_s = time.monotonic() + task.order.retry_s, FIRST_PAUSE_S
        said, told = send_once(task.order), ""
        while not _is_final(said) and time.monotonic() < until_s:
            if said != told:
                task.on_trouble(said)
                told = said
            time.sleep(min(pause_s, max(0.0, until_s - time.monotonic())))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            said = send_once(task.order)
        if said.startswith(DELIVERED):
            task.on_end(said.removeprefix(DELIVERED), "")
        else:
            task.on_end("", said)


def _is_final(said: str) -> bool:
    """Return whether to stop trying: it was delivered, or dynprof cannot be loaded."""
    return said.startswith((DELIVERED, _GONE, "ImportError: ", "ModuleNotFoundError: "))


def remove_if_empty(staging_dir: Path) -> None:
    """Remove a staging folder of a process if it is empty."""
    with contextlib.suppress(OSError):
        staging_dir.rmdir()
        if staging_dir.parent.name == OUTGOING:
            staging_dir.parent.rmdir()


def _staging_dir(order: Order) -> Path:
    """Return the folder where this process puts together all captures for the same target."""
    return Path(order.folder).parent


def send_once(order: Order) -> str:
    """Send an order in a separate process; return the last line that the process prints."""
    try:
        sending = SideProcess.begin(
            "dynprof.captures.sender", stdin_text=order.to_text(), place=order.target
        )
        return sending.last_line(wait=True, most_s=try_timeout_s(order)) or ""
    except RemovedError as error:
        return f"{_GONE}{error}"
    except OSError as error:
        return f"no process can be started: {error}"


def try_timeout_s(order: Order) -> float:
    """Return how long a try may take; a network disk or a store that hangs never ends."""
    sizes = 0
    for file in order.files:
        with contextlib.suppress(OSError):
            sizes += Path(order.folder, file).stat().st_size
    return max(LEAST_TRY_S, order.retry_s) + sizes / LEAST_BYTES_A_SECOND
