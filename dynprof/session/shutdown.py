"""The end of the process: close the open window, and wait for the capture being saved."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dynprof.runtime.standard_streams import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.captures.deliveries import Deliveries
    from dynprof.captures.exporter import Exporter
    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.windows.loop import Loop

CLOSE_WAIT_S = 3.0
"""Wait for the training thread's next step, if it has a window open."""
QUIET_S = 1.0
"""Wait for a capture that is being saved before a message says so."""


class Shutdown:
    """Winds a session down.

    Args:
        loop: Closes the open window.
        inbox: May have a waiting request.
        exporter: May be saving.
        deliveries: May be sending.
        journal: The log.
        wait_s: How long to wait for a capture that is being saved.
        stop_input: Stops the sources of new requests.
        leave_agreements: Exchanges the last reports on windows with the other ranks.
    """

    def __init__(
        self,
        loop: Loop,
        inbox: Inbox,
        exporter: Exporter,
        deliveries: Deliveries,
        journal: Journal,
        wait_s: float,
        stop_input: Callable[[], None],
        leave_agreements: Callable[[], None],
    ) -> None:
        self._loop, self._inbox = loop, inbox
        self._exporter, self._deliveries, self._journal = exporter, deliveries, journal
        self._wait_s, self._stop_input, self._leave_agreements = (
            wait_s,
            stop_input,
            leave_agreements,
        )

    def close_and_save_all(self, reason: str) -> None:
        """Close, save and stop.

        Raises:
            KeyboardInterrupt: Ctrl-C during this; the capture being saved is given up.
            SystemExit: A signal handler of the script raised it during this.
        """
        text = f"{reason}; it waits up to {self._wait_s:g} s for what is being saved and sent"
        self._journal.set_status(ending=text, stuck_at="")
        try:
            try:
                self._close_and_save(reason)
            except SystemExit:  # the process ends already, as a launcher ends all ranks
                self._close_and_save(reason)
                raise
        except KeyboardInterrupt:
            self._give_up("Ctrl-C while the process ended")
            self._log_undelivered()
            raise

    def _close_and_save(self, reason: str) -> None:
        self._stop_input()
        if waiting := self._inbox.cancel():
            self._journal.report(waiting.number, "not served", f"not served, {reason}")
        self._close_on_other_thread(reason)
        self._loop.close(reason)
        self._loop.discard(reason)
        self._wait_for_saving()

    def _close_on_other_thread(self, reason: str) -> None:
        """Wait for another thread to close its window at its next step, or for a graph capture.

        The window may be this thread's while another thread captures a graph.
        """
        deadline_s = time.monotonic() + CLOSE_WAIT_S
        while (current := self._loop.open_window) and current.blocked_by():
            if not current.thread.is_alive() or time.monotonic() > deadline_s:
                return
            self._inbox.request_close(reason)
            time.sleep(0.005)

    def _wait_for_saving(self) -> None:
        until_s = time.monotonic() + self._wait_s
        self._exporter.stop_waiting_for_ranks()
        if not self._wait_and_report(self._exporter.wait, "saved", until_s):
            self._give_up(f"it took more than {self._wait_s:g} s, and the process ended")
        self._exporter.stop()  # it may still hand a saved capture to the deliveries
        arrived = self._wait_and_report(self._deliveries.wait, "sent to its place", until_s)
        self._leave_agreements()  # after that the record of the window may have to be sent
        if not (
            arrived and self._wait_and_report(self._deliveries.wait, "sent to its place", until_s)
        ):
            self._log_undelivered()
        self._deliveries.end()

    def _log_undelivered(self) -> None:
        for text in self._deliveries.left():
            self._journal.warning(text)

    def _wait_and_report(self, wait: Callable[[float], bool], what: str, until_s: float) -> bool:
        """Wait; if that takes long, say so in the log and on stderr."""
        if wait(max(0.0, min(QUIET_S, until_s - time.monotonic()))):
            return True
        text = f"a capture is being {what}; the process waits for it, up to {self._wait_s:g} s"
        self._journal.info(text)
        say(f"{text}. Ctrl-C gives it up.")
        return wait(max(0.0, until_s - time.monotonic()))

    def _give_up(self, reason: str) -> None:
        for export in self._exporter.abandon(reason):
            text = f"saving is given up: {reason}"
            self._journal.report(export.manifest.request.number, "failed", text)
            self._journal.set_status(last_error=text)
            say(f"{text}.")
