"""What ``acl.prof`` records: one window, over all threads of the process."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from dynprof.config import ProfilerConfig
from dynprof.errors import SessionError
from dynprof.process.standard_error import say
from dynprof.process.warnings_to_script import warn_script
from dynprof.profiler.saving import export_of, prepare_folder, save_now, worker_here
from dynprof.profiler.script_windows import ScriptWindows
from dynprof.requests.plan import Script
from dynprof.windows.schedule import ProfilerAction

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.acl.config import Config


class SessionWindow:
    """A window from the first start to the last stop.

    Args:
        folder: Where its trace goes.
        config: What to record.
        unknown: Keys of a file that mean nothing here.

    Raises:
        CaptureError: A symbolic link leads there, it cannot be made, or nothing can be written.
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
        """Let another config be recorded from here on; one profiler serves all."""
        self._devices.update(config.devices)
        self._warn_of_missing(config.devices)
        if config.settings() != self._first.settings():
            warn_script("one profiler serves all configs, with the settings of the first")

    def insist_may_end(self, call: str) -> None:
        """Raise where the window cannot be ended now, and goes on.

        Raises:
            BackendError: The capture of another thread does not end.
            SessionError: Only the thread that opened it may end it, as on an NPU.
        """
        if self._windows.window and not self._windows.is_movable:
            text = f"only the thread that started this recording may stop it: {self._thread.name}"
            raise SessionError(f"{call}: {text}")
        self._windows.insist_may_close()

    def _warn_of_missing(self, devices: tuple[int, ...]) -> None:
        """Warn of devices that this process does not see; what it sees is recorded."""
        found = [name.lower() for name in self._windows.activities if name != "CPU"]
        count = getattr(sys.modules["torch"], found[0]).device_count() if found else 0
        missing = ", ".join(str(number) for number in devices if number >= count)
        if missing:
            recorded = "the others and the host are" if count else "the host is"
            warn_script(f"there is no device {missing} here; {recorded} recorded")

    def end(self) -> None:
        """Stop, and save the trace; in a graph capture of this thread when that has ended.

        Raises:
            CaptureError: It could not be saved.
        """
        if not self._windows.window or self._windows.puts_off(self.end):
            return
        recorded = self._windows.close({"devices": sorted(self._devices)})
        if recorded:
            export = export_of(recorded, self._folder, worker_here(), use_gzip=True)
            save_now(recorded, export, analyse=False)

    def _end_at_exit(self) -> None:
        """Do what the script forgot."""
        say("an acl session was never stopped; it ends with the process, and is saved")
        self.end()
