"""An edit, and its meaning: a request, a cancel, or the reasons against it."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dynprof.config import parse_config
from dynprof.errors import ConfigError, Problem
from dynprof.requests.plan import Plan, Refusal, plan

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.config import Parsed, ProfilerConfig
    from dynprof.requests.plan import ProcessState

LATEST_S = 253_370_764_800.0
"""Start of the year 9999, in seconds since the epoch: the latest time that a save can have."""
_CANCEL_KEPT = (
    "the previous save had it too, so this save counts as a request; save again unchanged to "
    "cancel, or set it to false."
)
_BY_SCRIPT = "has no effect: the script itself requests this window."


@dataclass(frozen=True)
class Edit:
    """One save of the config.

    Attributes:
        raw: The saved bytes; empty if they could not be read.
        edited_at_s: Time of the save, in seconds since the epoch. A file or another machine's
            clock can have any time; it is clamped to between 1970 and 9999.
        problems: Why the bytes could not be read.
        file: Its path, if it is not the watched config.
        owner: User id of the file's owner; None if it came from another rank.
        is_received: Whether another process sent it over the job's store.
        is_own: Whether dynprof made it itself: after a slow step, or for a baseline.
        is_repeated: Whether it repeats an earlier save, which asked for baselines.
        trigger: What made dynprof request it, such as ``slow step 12 of rank 0``; empty if a save
            did.
    """

    raw: bytes
    edited_at_s: float
    problems: tuple[Problem, ...] = ()
    file: Path | None = None
    owner: int | None = None
    is_received: bool = False
    is_own: bool = False
    is_repeated: bool = False
    trigger: str = ""

    def __post_init__(self) -> None:
        """Clamp the time, so that it can be shown and be part of a folder's name."""
        at_s = min(max(0.0, self.edited_at_s), LATEST_S)  # NaN becomes 0, too
        object.__setattr__(self, "edited_at_s", at_s)

    @property
    def text(self) -> str:
        """The saved bytes as text; invalid bytes are replaced."""
        return self.raw.decode(errors="replace")


@dataclass(frozen=True)
class Request:
    """A window that an edit requests and that can be recorded, with its plan.

    Attributes:
        number: The number of its edit, counted by this process from 1.
        plan: What to do.
        edited_at_s: Time of the save, in seconds since the epoch.
        sha256: Digest of the config's bytes.
        remarks: Settings that have no effect or were downgraded.
        at_once: Whether the script itself requests it, for the current step.
        agreed_in: The step numbering in which other ranks open at its start step too; None if they
            do not.
        trigger: As in the edit.
    """

    number: int
    plan: Plan
    edited_at_s: float
    sha256: str
    remarks: tuple[Problem, ...]
    at_once: bool = False
    agreed_in: int | None = None
    trigger: str = ""

    @property
    def config(self) -> ProfilerConfig:
        """The requested config."""
        return self.plan.config


@dataclass(frozen=True)
class Cancel:
    """An edit that cancels: it closes the open window or drops the waiting request."""


class CancelDetector:
    """Distinguishes a save that cancels from one that only kept an earlier ``cancel``.

    A save cancels if it sets ``cancel``, or if it keeps ``cancel`` and changes nothing: the user
    repeats it. A save that keeps ``cancel`` and changes another setting is a request.

    Args:
        at_start: Content of the file when watching began; empty if it could not be read.
    """

    def __init__(self, at_start: bytes) -> None:
        self._at_start = at_start
        self._before: dict[str, Any] | None = None

    def is_cancel(self, config: ProfilerConfig) -> bool:
        """Return whether a save cancels, and remember the save for the next call."""
        before, self._before = self._last_saved(), config.requested_json()
        is_kept = bool(before.get("cancel")) and before != self._before
        return config.cancel and not is_kept

    def _last_saved(self) -> dict[str, Any]:
        if self._before is None:
            with contextlib.suppress(ConfigError):
                return parse_config(self._at_start).config.requested_json()
        return self._before or {}


@dataclass(frozen=True)
class UnplannedRequest:
    """A request before the check whether this process can serve it.

    Attributes:
        edit: The edit.
        config: Its config.
        parsed: The parsed file, with the place of each key.
        now: Whether the script requests it, for the current step.
        agreed_in: The step numbering in which other ranks open at the config's start step too; None
            if they do not.
    """

    edit: Edit
    config: ProfilerConfig
    parsed: Parsed
    now: bool
    agreed_in: int | None = None

    def to_request(self, number: int, state: ProcessState) -> Request | Refusal:
        """Return the request, or the reasons against it.

        Args:
            number: The number of the edit.
            state: The state of the process.
        """
        outcome = plan(self.config, state, is_agreed=self.agreed_in is not None)
        if isinstance(outcome, Refusal):
            return replace(outcome, problems=self.parsed.locate(outcome.problems))
        text = _BY_SCRIPT if self.now else _CANCEL_KEPT
        kept = [Problem(text, "/cancel")] if self.config.cancel else []
        kept += [Problem(_BY_SCRIPT, "/every")] if self.now and self.parsed.config.every else []
        remarks = (*self.parsed.remarks, *self.parsed.locate((*kept, *outcome.remarks)))
        digest = hashlib.sha256(self.edit.raw).hexdigest()
        return Request(
            number,
            outcome,
            self.edit.edited_at_s,
            digest,
            remarks,
            at_once=self.now,
            agreed_in=self.agreed_in,
            trigger=self.edit.trigger,
        )


def read_edit(
    edit: Edit, cancels: CancelDetector, *, now: bool = False
) -> UnplannedRequest | Cancel | Refusal:
    """Return what an edit requests.

    Args:
        edit: The edit.
        cancels: The detector, which has the earlier saves.
        now: The script requests the current step; ``start_step``, ``every`` and ``cancel`` are
            ignored.
    """
    if edit.problems:
        return Refusal(edit.problems)
    try:
        parsed = parse_config(edit.raw)
    except ConfigError as error:
        return Refusal(error.problems)
    if now:
        config = parsed.config.model_copy(update={"start_step": 0, "every": None})
        return UnplannedRequest(edit, config, parsed, now)
    if not edit.is_own and cancels.is_cancel(parsed.config):
        return Cancel()
    return UnplannedRequest(edit, parsed.config, parsed, now)
