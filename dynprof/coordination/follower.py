"""Everybody else's side of an agreement: listen, do, reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.coordination.messages import Farewell, Rejoin
from dynprof.coordination.participant import answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.coordination.listener import Listener
    from dynprof.coordination.participant import Participant


class Follower:
    """Does what the leader says, on a thread of its own.

    Args:
        listener: Hears it.
        me: This rank.
        has_ended: Returns whether nobody is to follow any more.
        on_leader: Called once, as the first leader is found.

    Attributes:
        leader: Who leads; empty where nobody does.
    """

    def __init__(
        self,
        listener: Listener,
        me: Participant,
        has_ended: Callable[[], bool],
        on_leader: Callable[[], object] = bool,
    ) -> None:
        self._listener, self._me, self._has_ended = listener, me, has_ended
        self._on_leader = on_leader
        self.leader = ""

    def follow(self) -> None:
        """Follow one leader after the other, until this rank's end.

        Raises:
            RuntimeError: The store is gone, as torch has it.
        """
        while not self._has_ended():
            self.leader = self._listener.find_leader()
            if self.leader:
                self._on_leader()
                self._on_leader = bool
                self._follow_one()
            if self.leader and self._has_ended():
                self._listener.part(self._me.parting())
            self.leader = ""

    def _follow_one(self) -> None:
        message = self._listener.hear()
        while not isinstance(message, Farewell):
            if isinstance(message, Rejoin):
                self._me.left_alone("the others have gone on, or begun anew")
            else:
                self._listener.reply(answer(self._me, message))
            message = self._listener.hear()
        if not self._has_ended():
            self._me.left_alone(message.why)
