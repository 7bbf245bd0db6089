"""Events of a job that others want to know: a stuck or slow step, a capture.

Two kinds of others get them, and neither delays the training. Functions in this process get them
on a thread of dynprof's own, see :func:`listen`. The command of ``on_event`` gets them in a fresh
interpreter, see :mod:`dynprof.journal.event_command`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from dynprof.journal.event_command import SUCCEEDED
from dynprof.runtime.clock import iso
from dynprof.runtime.error_boundary import ErrorBoundary, Notes
from dynprof.runtime.side_process import SideProcess
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from dynprof.runtime.layout import Layout

Kind = Literal["stuck", "slow", "captured", "analysed", "failed"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_WAITING = 16
"""Events of a kind that wait for the command; older ones are dropped."""
LISTENERS_S = 10.0
"""Longest wait in seconds of the process's end for its functions: an upload takes less."""


@dataclass(frozen=True)
class Event:
    """What happened in a job, and where.

    Attributes:
        event: The kind.
        text: What the log says about it.
        at: When it was noticed, in UTC.
        directory: The directory of the config.
        role: Role of the rank in a job with several roles; else empty.
        rank: The rank that it is about.
        host: Name of the rank's machine.
        pid: Id of the rank's process, if this one knows it.
        step: The step that it is about; of a capture, the last recorded one.
        request: Number of the request of a capture.
        capture: Path or URL of the capture's manifest.
        trace: Path or URL of its trace.
        first_step: Its first recorded step.
        last_step: Its last recorded step.
        verdict: Where the time of its steps went, from the analysis.
    """

    event: Kind
    text: str
    at: str
    directory: str
    role: str
    rank: int
    host: str
    pid: int | None
    step: int | None = None
    request: int | None = None
    capture: str | None = None
    trace: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    verdict: str | None = None


@dataclass(frozen=True)
class _Listener:
    kinds: tuple[Kind, ...]
    name: str
    function: Callable[[Event], object]


_listeners: list[_Listener] = []
"""Those of this process. They stay when a session ends, for the next one."""


def listen(function: Callable[[Event], object], name: str, *kinds: Kind) -> None:
    """Call a function at each event of some kinds, on a thread that no training waits for.

    Args:
        function: What to call. The log has what it raises.
        name: What gets the events, for the log.
        kinds: The kinds of events.
    """
    _listeners.append(_Listener(kinds, name, function))


class _Journal(Notes, Protocol):
    """The part of a journal that events need."""

    @property
    def layout(self) -> Layout:
        """Where this rank writes; it has the rank."""

    def warning(self, text: str) -> None:
        """Log a text."""


class Events:
    """The events of a session.

    The command runs for events about rank 0, and for those that rank 0 notices: ranks that wait for
    each other notice the same event, and a job may have thousands. It runs once at a time for each
    kind.

    Args:
        journal: The log; it also knows the rank.
        command: The command of ``on_event``; empty for none.
    """

    def __init__(self, journal: _Journal, command: tuple[str, ...]) -> None:
        self._journal, self._command = journal, command
        self._boundary = ErrorBoundary(journal)
        self._waiting = {kind: deque[Event]() for kind in KINDS}
        self._running: dict[Kind, SideProcess] = {}
        self._last_failure = ""
        self._heard: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._listening: threading.Thread | None = None

    @property
    def program(self) -> str:
        """The program of the command; empty for none. Its arguments may have keys."""
        return self._command[0] if self._command else ""

    def report(self, kind: Kind, text: str, **facts: Any) -> None:
        """Report an event; any thread may.

        Args:
            kind: The kind.
            text: What the log says about it.
            facts: Other fields of the event; by default it is about this rank.
        """
        self._boundary.attempt("reporting an event", lambda: self._report(kind, text, facts))

    def _report(self, kind: Kind, text: str, facts: dict[str, Any]) -> None:
        here = self._journal.layout
        where = {"role": here.role, "rank": here.rank, "host": here.host, "pid": here.pid}
        event = Event(kind, text, iso(time.time()), str(here.root), **{**where, **facts})
        if self._command and 0 in (here.rank, event.rank):
            self._add(event)
        if any(kind in one.kinds for one in _listeners):
            self._heard.put(event)
            if self._listening is None:
                self._listening = own_thread(self._pass_on, "dynprof-events")
                self._listening.start()

    def _add(self, event: Event) -> None:
        waiting = self._waiting[event.event]
        waiting.append(event)
        if len(waiting) > MAX_WAITING:
            waiting.popleft()
            text = f"{MAX_WAITING} events wait for the command of on_event, which is too slow"
            self._warn(f"{text}; the oldest are dropped")

    def _pass_on(self) -> None:
        while (event := self._heard.get()) is not None:
            for one in tuple(_listeners):
                if event.event in one.kinds:
                    call = _call_of(one, event)
                    self._boundary.attempt(f"passing a capture to {one.name}", call)

    def finish(self) -> None:
        """Wait until functions have got all events; give up after :data:`LISTENERS_S`."""
        if self._listening is None:
            return
        self._heard.put(None)
        self._listening.join(LISTENERS_S)
        if self._listening.is_alive():
            names = " and ".join(dict.fromkeys(one.name for one in _listeners))
            self._journal.warning(
                f"the last captures may be missing in {names}: it took more than {LISTENERS_S:g} s"
            )

    # on the journal's thread

    def run_command(self, *, is_last: bool = False) -> None:
        """Start the command for the events that wait, once at a time for each kind.

        Args:
            is_last: Whether the session ends. Then the command starts in any case, and its
                processes outlive this one.
        """
        for kind, waiting in self._waiting.items():
            if (running := self._running.get(kind)) and self._has_ended(running):
                del self._running[kind]
            if waiting and (is_last or kind not in self._running):
                events = [waiting.popleft() for _ in range(len(waiting))]
                self._running[kind] = self._start(events)

    def _start(self, events: list[Event]) -> SideProcess:
        asked = {
            "command": self._command,
            "events": [dataclasses.asdict(event) for event in events],
            "environment": dict(os.environ),
        }
        return SideProcess.begin("dynprof.journal.event_command", stdin_text=json.dumps(asked))

    def _has_ended(self, running: SideProcess) -> bool:
        line = running.last_line()
        if line == SUCCEEDED:
            self._last_failure = ""
        elif line is not None:
            text = "to see its output, run it with an event on its standard input"
            self._warn(f"the command of on_event failed: {line}; {text}")
        return line is not None

    def _warn(self, text: str) -> None:
        if text != self._last_failure:
            self._last_failure = text
            self._journal.warning(text)


def _call_of(listener: _Listener, event: Event) -> Callable[[], object]:
    return lambda: listener.function(event)
