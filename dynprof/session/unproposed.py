"""What is saved where this rank follows: it is proposed by who leads, or nothing comes of it."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dynprof.coordination.terms import LEADER
from dynprof.coordination.wire import in_utf_8
from dynprof.errors import CaptureError
from dynprof.journal.status import load_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.files.layout import Layout
    from dynprof.journal.journal import Journal
    from dynprof.requests.edits import Edit
    from dynprof.session.participation import Participation

PROPOSED_WITHIN_S = 10.0
"""What a rank reads that follows is proposed by then, where all read the same file."""


def named(rank: int, host: str, layout: Layout) -> str:
    """Return what other ranks are told of one that leads."""
    return f"rank {rank} on {host} ({in_utf_8(str(layout.config))})"


@dataclass(frozen=True)
class _Read:
    """An edit that was read here.

    Attributes:
        edit: That.
        at_s: When.
        since_s: Since when it could have been proposed.
        is_told: Whether it is said that the leader is silent.
    """

    edit: Edit
    at_s: float
    since_s: float
    is_told: bool = False


class Unproposed:
    """The newest edit that this rank has read and the leader has not spoken of.

    Args:
        layout: Where this rank watches.
        member: Hears the leader.
        journal: Is told.
        refuse: Answers an edit that is not proposed.
    """

    def __init__(
        self,
        layout: Layout,
        member: Participation,
        journal: Journal,
        refuse: Callable[[Edit, str], object],
    ) -> None:
        self._layout, self._member, self._journal, self._refuse = layout, member, journal, refuse
        self._lock = threading.Lock()
        self._read: _Read | None = None
        self._leader = ""

    def read(self, edit: Edit, leader: str) -> None:
        """Take an edit, on the watcher's thread."""
        now_s = time.monotonic()
        with self._lock:
            self._read = _Read(edit, now_s, now_s)
        if leader != self._leader:
            self._leader = leader
            self._journal.info(f"{leader} leads: what it has accepted is served, on all ranks")

    def look(self, leader: str) -> None:
        """See whether it is proposed; called once a second, on the journal's thread.

        Args:
            leader: Who leads now; empty for nobody.
        """
        if (read := self._read) is None:
            return
        now_s, (text, heard_s) = time.monotonic(), self._member.heard
        if text == read.edit.text and heard_s >= read.at_s - PROPOSED_WITHIN_S:
            self._replace(read, None)
        elif self._member.is_amid_an_agreement:  # what the leader reads meanwhile waits for its end
            self._replace(read, replace(read, since_s=now_s))
        elif self._member.asked_s < read.since_s and self._is_read_by(leader):
            self._replace(read, self._wait_on(read, leader, now_s))
        elif now_s >= read.since_s + PROPOSED_WITHIN_S and self._replace(read, None):
            self._refuse(read.edit, self._why_not(leader, read))

    def _wait_on(self, read: _Read, leader: str, now_s: float) -> _Read:
        """A leader that is silent has yet to see it: once it speaks again, the time begins."""
        is_long = now_s >= read.at_s + PROPOSED_WITHIN_S
        if is_long and not read.is_told:
            text = f"{leader}, which leads, has said nothing since this file was saved"
            self._journal.warning(f"{text}: it is waited for")
        return replace(read, since_s=now_s, is_told=is_long)

    def _why_not(self, leader: str, read: _Read) -> str:
        if leader and self._member.left_s >= read.at_s - PROPOSED_WITHIN_S:
            text = f"the others answered what was saved here without this rank, if {leader} read it"
            return f"{text}: it was silent then."
        again = "once more" if not leader or self._is_read_by(leader) else "there"
        return f"what was saved here was not proposed by {leader or 'who led'}; save it {again}."

    def _replace(self, read: _Read, then: _Read | None) -> bool:
        """Return False where another edit has been read meanwhile, which takes its place."""
        with self._lock:
            is_newest = self._read is read
            if is_newest:
                self._read = then
        return is_newest

    def _is_read_by(self, leader: str) -> bool:
        """Return whether who leads reads the very file that this rank reads."""
        layout, hosts = self._layout, {self._layout.host}
        with contextlib.suppress(CaptureError):  # on another machine, it has its status here
            hosts.add(load_status(replace(layout, rank=LEADER).status).host)
        return leader in {named(LEADER, host, layout) for host in hosts}
