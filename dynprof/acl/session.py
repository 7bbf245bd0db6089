"""The one session of a process, its window, its subscription, and the order of its calls."""

from __future__ import annotations

import queue
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.acl.config import Config, read_json
from dynprof.config import ProfilerConfig
from dynprof.errors import BackendError, SessionError
from dynprof.profiler.saving import export_of, prepare_folder, save_now, worker_here
from dynprof.profiler.script_windows import ScriptWindows
from dynprof.requests.plan import Script
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.process_hooks import call_in_child
from dynprof.runtime.standard_streams import say, warn_script
from dynprof.windows.window import ProfilerAction

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from typing import Self

    from dynprof.backends.torch.operator_stream import OperatorStream

MAX_PENDING = 100_000
"""Most operators that wait for iteration; operators beyond them are counted as lost."""


class SessionWindow:
    """A window from the first start to the last stop.

    Args:
        folder: The folder for its trace.
        config: What to record.
        unknown: Keys of the JSON file that have no effect.

    Raises:
        CaptureError: The folder is behind a symbolic link, cannot be created, or is not writable.
    """

    def __init__(self, folder: Path, config: Config, unknown: tuple[str, ...]) -> None:
        if unknown:
            warn_script(f"these keys of the profiler object have no effect: {', '.join(unknown)}")
        self._folder, self._first = prepare_folder(folder), config
        self._devices = set(config.devices)
        script = Script(in_place="the session ends on any thread", all_threads=True)
        model = ProfilerConfig.model_validate(config.settings())
        self._windows = ScriptWindows(model, script, marks_steps=False)
        self._thread = threading.current_thread()
        self._windows.end_at_exit = self._end_at_exit
        self._windows.open(lambda _step: ProfilerAction.RECORD, 0)
        self._warn_of_missing(config.devices)

    def join(self, config: Config) -> None:
        """Add another config to the recording; one profiler serves all."""
        self._devices.update(config.devices)
        self._warn_of_missing(config.devices)
        if config.settings() != self._first.settings():
            warn_script("one profiler serves all configs, with the settings of the first")

    def require_may_end(self, call: str) -> None:
        """Raise where the window cannot end now; it then continues.

        Raises:
            BackendError: A graph capture on another thread does not end.
            SessionError: Only the thread that opened it may end it, as on an NPU.
        """
        if self._windows.window and not self._windows.is_movable:
            text = f"only the thread that started this recording may stop it: {self._thread.name}"
            raise SessionError(f"{call}: {text}")
        self._windows.wait_until_closable()

    def _warn_of_missing(self, devices: tuple[int, ...]) -> None:
        """Warn of devices that this process does not see; the others are recorded."""
        found = [name.lower() for name in self._windows.activities if name != "CPU"]
        count = getattr(sys.modules["torch"], found[0]).device_count() if found else 0
        missing = ", ".join(str(number) for number in devices if number >= count)
        if missing:
            recorded = "the others and the host are" if count else "the host is"
            warn_script(f"there is no device {missing} here; {recorded} recorded")

    def end(self) -> None:
        """Stop, and save the trace; inside this thread's graph capture, do so after the capture.

        Raises:
            CaptureError: The trace could not be saved.
        """
        if not self._windows.window or self._windows.defers_close(self.end):
            return
        recorded = self._windows.close({"devices": sorted(self._devices)})
        if recorded:
            export = export_of(recorded, self._folder, worker_here(), use_gzip=True)
            save_now(recorded, export, analyse=False)

    def _end_at_exit(self) -> None:
        """End at process exit what the script did not stop."""
        say("an acl session was never stopped; it ends with the process, and is saved")
        self.end()


class Session:
    """The state of the calls so far; a call out of order raises and changes nothing.

    Any thread may call; a lock serialises the calls.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._begun = False
        self._ended = False
        self._folder: Path | None = None
        self._by_file: SessionWindow | None = None
        self._started: list[Config] = []
        self._window: SessionWindow | None = None
        self._subscription: Subscription | None = None

    # acl

    def init(self, config_path: str | os.PathLike[str] | None) -> None:
        """``acl.init``."""
        with self._lock:
            if self._begun:
                raise SessionError("acl.init() was called before; it is called once in a process")
            requested = None if config_path is None else read_json(config_path)
            if requested:
                self._by_file = self._open(
                    Path(requested.output), requested.config(), requested.unknown
                )
            self._begun = True

    def finalize(self) -> None:
        """``acl.finalize``."""
        with self._lock:
            self._require_begun("acl.finalize()")
            if self._folder:
                raise SessionError("acl.finalize() comes after acl.prof.finalize()")
            if self._subscription:
                raise SessionError("acl.finalize() comes after the end of the subscription")
            if self._by_file:
                self._by_file.require_may_end("acl.finalize()")
            self._ended = True
            window, self._by_file = self._by_file, None
            if window:
                window.end()

    # acl.prof

    def prof_init(self, folder: str | os.PathLike[str]) -> None:
        """``acl.prof.init``."""
        with self._lock:
            self._require_begun("acl.prof.init()")
            self._require_no_file("acl.prof.init()")
            if self._folder:
                raise SessionError("acl.prof.init() was called before; acl.prof.finalize() first")
            if self._subscription:
                raise SessionError("acl.prof.init(): operators are subscribed; end that first")
            self._folder = Path(folder)

    def prof_finalize(self) -> None:
        """``acl.prof.finalize``."""
        with self._lock:
            self._require_init("acl.prof.finalize()")
            if self._started:
                text = "acl.prof.finalize(): acl.prof.stop() is missing for devices "
                raise SessionError(text + "; ".join(_devices(config) for config in self._started))
            self._folder = None

    def start(self, config: Config) -> None:
        """``acl.prof.start``."""
        with self._lock:
            folder = self._require_init("acl.prof.start()")
            if config in self._started:
                raise SessionError(
                    "acl.prof.start(): this config was started before; stop it first"
                )
            taken = {number for other in self._started for number in other.devices}
            if twice := sorted(taken.intersection(config.devices)):
                numbers = ", ".join(map(str, twice))
                raise SessionError(f"acl.prof.start(): device {numbers} is being profiled already")
            if self._window is None:
                self._window = self._open(folder, config, ())
            else:
                self._window.join(config)
            self._started.append(config)

    def stop(self, config: Config) -> None:
        """``acl.prof.stop``."""
        with self._lock:
            self._require_init("acl.prof.stop()")
            if config not in self._started:
                text = "acl.prof.stop(): acl.prof.start() was not called with this config"
                raise SessionError(f"{text} (devices {_devices(config)})")
            if self._started == [config] and self._window:
                self._window.require_may_end("acl.prof.stop()")
                window, self._window = self._window, None
                self._started.clear()
                window.end()
            else:  # another config, or the parent of this forked child, still records
                self._started.remove(config)

    def stop_all(self) -> None:
        """Stop all started configs."""
        with self._lock:
            for config in list(self._started):
                self.stop(config)

    def require_started(self, call: str) -> None:
        """Raise unless a config is started: stamps belong between start and stop."""
        with self._lock:
            self._require_init(call)
            if not self._started:
                text = f"{call} must come between acl.prof.start() and acl.prof.stop()"
                raise SessionError(text)

    # subscription

    def subscribe(self, subscription: Subscription, call: str) -> None:
        """Register a subscription."""
        with self._lock:
            self._require_begun(call)
            self._require_no_file(call)
            self.require_no_session(call)
            if self._subscription:
                raise SessionError(f"{call}: there is a subscription already; end it first")
            self._subscription = subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        with self._lock:
            if self._subscription is not subscription:
                raise SessionError("acl.prof.unsubscribe(): this subscription has ended")
            self._subscription = None

    def require_no_session(self, call: str) -> None:
        """Raise between ``acl.prof.init`` and ``finalize``, which exclude a subscription."""
        if self._folder:
            text = f"{call} must not come between acl.prof.init() and acl.prof.finalize()"
            raise SessionError(text)

    def reset_in_child(self) -> None:
        """Drop the parent's recording in a child that was just forked.

        The child keeps the state of the calls, but its last stop and its finalize save nothing.
        """
        self._lock = threading.RLock()  # the thread that held it is not in the child
        self._window = self._by_file = None

    def _open(self, folder: Path, config: Config, unknown: tuple[str, ...]) -> SessionWindow:
        return SessionWindow(folder, config, unknown)

    def _require_begun(self, call: str) -> None:
        if not self._begun or self._ended:
            when = "after acl.finalize()" if self._ended else "before acl.init()"
            raise SessionError(f"{call} was called {when}")

    def _require_no_file(self, call: str) -> None:
        if self._by_file:
            raise SessionError(f"{call}: the file given to acl.init() says what is recorded")

    def _require_init(self, call: str) -> Path:
        self._require_begun(call)
        self._require_no_file(call)
        if self._folder is None:
            raise SessionError(f"{call} was called before acl.prof.init()")
        return self._folder


def _devices(config: Config) -> str:
    return ", ".join(map(str, config.devices))


SESSION = Session()
"""The process's session."""
call_in_child(SESSION.reset_in_child)


@dataclass(frozen=True)
class Operator:
    """One operator that ran.

    Attributes:
        name: Its name, such as ``aten::mm``.
        began_ns: Its start, in ns since the epoch.
        duration_ns: Its duration on the host, in ns, without the delivery.
    """

    name: str
    began_ns: int
    duration_ns: int


class Subscription:
    """Receives operators and passes them on; created by :func:`dynprof.acl.prof.subscribe`.

    Attributes:
        lost: Operators dropped because too many waited.
    """

    def __init__(
        self,
        callback: Callable[[Operator], object] | None,
        on_end: Callable[[Subscription], None],
        call: str,
    ) -> None:
        if "torch" not in sys.modules:
            raise BackendError(f"{call} needs torch, which the script has not imported")
        self.lost = 0
        self._callback, self._on_end = callback, on_end
        self._pending: queue.SimpleQueue[Operator | None] = queue.SimpleQueue()
        self._boundary = ErrorBoundary(StderrNotes())
        self._thread = threading.get_ident()
        self._stream: OperatorStream | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __iter__(self) -> Iterator[Operator]:
        """Yield operators as they come, until the subscription ends."""
        while (operator := self._pending.get()) is not None:
            yield operator
        self._put(None)  # so that another iteration ends too

    def begin(self) -> None:
        """Receive the operators that this thread runs from now on."""
        from dynprof.backends.torch.operator_stream import OperatorStream

        self._stream = OperatorStream(self._take)
        self._stream.__enter__()

    def end(self, call: str = "acl.prof.unsubscribe()") -> None:
        """End the delivery.

        Args:
            call: The script's call, for the error message.

        Raises:
            SessionError: It has ended, or another thread subscribed.
        """
        if self._thread != threading.get_ident():
            raise SessionError(f"{call}: only the thread that subscribed may end the subscription")
        stream = self._stream
        if stream and not stream.is_innermost():
            text = f"{call}: end the TorchDispatchMode that was entered after it first"
            raise SessionError(text)
        self._on_end(self)
        self._stream = None
        if stream:
            stream.__exit__(None, None, None)
        self._put(None)

    def _take(self, name: str, began_ns: int, duration_ns: int) -> None:
        operator = Operator(name, began_ns, duration_ns)
        callback = self._callback
        if callback is None:
            self._put(operator)
        elif self._boundary.attempt("the subscriber", lambda: callback(operator)):
            self._callback = _ignore  # a failing callback is not called again

    def _put(self, operator: Operator | None) -> None:
        if operator is None or self._pending.qsize() < MAX_PENDING:  # the end must arrive
            self._pending.put(operator)
        else:
            self.lost += 1


def _ignore(_: Operator) -> None:
    """Do nothing."""
