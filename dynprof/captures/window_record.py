"""The record of a window of several ranks: which ranks were selected, took part, and saved it."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from dynprof.captures.manifest import Record, RequestRecord, why
from dynprof.errors import CaptureError
from dynprof.journal.edit_outcomes import IN_PROGRESS
from dynprof.journal.status import Status, load_status
from dynprof.runtime.clock import iso
from dynprof.runtime.job_files import check_values
from dynprof.runtime.layout import STATUS_DIR, STATUS_FILES
from dynprof.runtime.safe_open import read_inside
from dynprof.runtime.safe_write import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

MAX_RECORD_BYTES = 128 << 20
"""Largest record; a rank takes some 200 bytes, more if the path of its capture is long."""


class RankRecord(Record):
    """The outcome of a window on one rank.

    Attributes:
        host: Its machine.
        outcome: As in the status: ``saved``, in progress, or given up by all.
        capture: The manifest of its capture, on that machine; empty if there is none.
        cut: Why the capture lacks some steps; empty if it has all.
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
    """The content of ``window.json``, written by the leader.

    Attributes:
        dynprof: Version of dynprof that wrote it.
        leader: Rank, machine and config of the leader.
        world_size: Number of ranks.
        request: What the window was opened for.
        start_step: The step that the ranks agreed on: all open there, and warm up first.
        first: The first step recorded, counted by the leader.
        last: The last step.
        asked: The ranks that the request selects.
        ranks: The outcome on each rank that takes part.
        missing: The selected ranks that take no part, or no longer, each with the reason.
        agreed_ms: Time from the proposal until all ranks knew the step, in milliseconds.
        remarks: Which ranks were at other steps when they agreed, so that theirs may differ.
        complete: Whether all selected ranks have saved all of it.
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

    def outcome(self, rank: int, path: Path) -> str:
        """Return the outcome on a rank, of a record with this path.

        A leader that is killed leaves windows ``open``.
        """
        said = self.ranks[rank].outcome
        is_open = said in IN_PROGRESS
        return f"{said} as the job ended" if is_open and self._is_abandoned(path) else said

    def _is_abandoned(self, path: Path) -> bool:
        """Return whether no live process has the request in its status.

        False if the statuses are not in a folder above the record.
        """
        found = list[Status]()
        for folder in path.resolve().parents:
            for file in (folder / STATUS_DIR).glob(STATUS_FILES):
                with contextlib.suppress(CaptureError):
                    found.append(load_status(file))
            if found:
                break
        live = [edit for one in found if one.is_live(time.time()) for edit in one.edits]
        wanted = self.request.edited_at, self.request.sha256
        return bool(found) and wanted not in [(iso(edit.edited_at), edit.sha256) for edit in live]

    def save(self, path: Path) -> None:
        """Write the record, whole or not at all.

        Raises:
            OSError: It cannot be written.
        """
        write_atomic(path, self.model_dump_json(indent=2) + "\n")


def load_window_record(path: Path) -> WindowRecord:
    """Read a window's record.

    Raises:
        CaptureError: The file is missing, or is not such a record.
    """
    try:
        record = WindowRecord.model_validate_json(read_inside(path, MAX_RECORD_BYTES))
        check_values(record)
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path} is not the record of a window: {why(error)}") from None
    return record
