"""The record of a window of several ranks: who was asked, who took part, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.captures.manifest import Record, RequestRecord, why
from dynprof.errors import CaptureError
from dynprof.runtime.output import write_atomic
from dynprof.runtime.record_values import check_values
from dynprof.runtime.safe_open import read_inside

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 128 << 20
"""Of a record; each rank has some 200 bytes in it, more where the path of its capture is long."""


class RankRecord(Record):
    """What became of a window on one rank.

    Attributes:
        host: Its machine.
        outcome: As in the status: ``saved``, on its way, or what all have given up.
        capture: The manifest of its capture, on that machine; empty where there is none.
        cut: Why that has not all the steps; empty where it has.
    """

    host: str
    outcome: str
    capture: str = ""
    cut: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether all its steps are saved."""
        return self.outcome == "saved" and not self.cut


class WindowRecord(Record):
    """What ``window.json`` holds, written by the rank that leads.

    Attributes:
        dynprof: Version of dynprof that wrote it.
        leader: Who leads: its rank, machine and config.
        world_size: Number of ranks.
        request: What the window was opened for.
        start_step: The step on which they agreed: all open there, and warm up first.
        first: The first step recorded, counted by the leader.
        last: The last step.
        asked: The ranks that were asked for.
        ranks: What became of it on each that takes part.
        missing: Why not, for each that was asked for and does not take part, or no more.
        agreed_ms: From the proposal until all had been told the step, in milliseconds.
        remarks: Which ranks were at other steps as they agreed, so that theirs may be others.
        complete: Whether all that were asked for have saved all of it.
    """

    dynprof: str
    leader: str
    world_size: int
    request: RequestRecord
    start_step: int
    first: int
    last: int
    asked: tuple[int, ...]
    ranks: dict[int, RankRecord]
    missing: dict[int, str]
    agreed_ms: float
    remarks: tuple[str, ...] = ()
    complete: bool

    def save(self, path: Path) -> None:
        """Write it, whole or not at all.

        Raises:
            OSError: It cannot be written.
        """
        write_atomic(path, self.model_dump_json(indent=2) + "\n")


def load_window_record(path: Path) -> WindowRecord:
    """Read a window's record.

    Raises:
        CaptureError: The file is not there or no such record.
    """
    try:
        record = WindowRecord.model_validate_json(read_inside(path, MOST_BYTES))
        check_values(record)
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path} is not the record of a window: {why(error)}") from None
    return record
