"""What an edit asks for, once it is read: a request, a cancel, or the reasons against it."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dynprof.config import parse_config
from dynprof.errors import ConfigError, Problem
from dynprof.requests.plan import Plan, Refusal, plan

if TYPE_CHECKING:
    from dynprof.config import Parsed, ProfilerConfig
    from dynprof.requests.edits import Edit
    from dynprof.requests.plan import ProcessState

_CANCEL_KEPT = (
    "it stood in the save before too, so what this one changes is taken for a request; to cancel, "
    "save once more as it is, else set it to false."
)
_BY_SCRIPT = "has no effect: the script itself asks for this window."


@dataclass(frozen=True)
class Request:
    """What an edit asks for, where that can be done: a window, with its plan.

    Attributes:
        number: That of its edit, counted by this process from 1.
        plan: What to do.
        edited_at_s: Time of the save, in seconds since the epoch.
        sha256: Digest of the config's bytes.
        remarks: What of the config has no effect or was downgraded.
        at_once: The script asks itself, for this very step.
        agreed_in: In which numbering of the steps other ranks open at its start step, too; None
            where they do not.
    """

    number: int
    plan: Plan
    edited_at_s: float
    sha256: str
    remarks: tuple[Problem, ...]
    at_once: bool = False
    agreed_in: int | None = None

    @property
    def config(self) -> ProfilerConfig:
        """The config asked for."""
        return self.plan.config


@dataclass(frozen=True)
class Cancel:
    """What an edit asks for that cancels: to close or disarm what there is."""


class CancelDetector:
    """Tells a save that cancels from one in which a cancel of before only stands on.

    A save cancels if it sets ``cancel``, and if it has it and changes nothing: whoever saves it
    again means it again. One that leaves it there and changes another setting is a request.

    Args:
        at_start: What the file held when watching began; empty where it could not be read.
    """

    def __init__(self, at_start: bytes) -> None:
        self._at_start = at_start
        self._before: dict[str, Any] | None = None

    def is_cancel(self, config: ProfilerConfig) -> bool:
        """Take a save in; return whether it cancels."""
        before, self._before = self._last_saved(), config.to_json()
        stands_on = bool(before.get("cancel")) and before != self._before
        return config.cancel and not stands_on

    def _last_saved(self) -> dict[str, Any]:
        if self._before is None:
            with contextlib.suppress(ConfigError):
                return parse_config(self._at_start).config.to_json()
        return self._before or {}


@dataclass(frozen=True)
class UnplannedRequest:
    """What an edit asks for, before anybody looked whether it can be had.

    Attributes:
        edit: What was saved.
        config: What it says.
        parsed: How it was read, which knows where each key stands.
        now: The script asks, for this very step.
        agreed_in: In which numbering of the steps other ranks open at the step that the config
            names, too; None where they do not.
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
            state: Where the process stands.
        """
        outcome = plan(self.config, state, is_agreed=self.agreed_in is not None)
        if isinstance(outcome, Refusal):
            return replace(outcome, problems=self.parsed.locate(outcome.problems))
        text = _BY_SCRIPT if self.now else _CANCEL_KEPT
        standing_on = [Problem(text, "/cancel")] if self.config.cancel else []
        remarks = (*self.parsed.remarks, *self.parsed.locate((*standing_on, *outcome.remarks)))
        digest = hashlib.sha256(self.edit.raw).hexdigest()
        return Request(
            number,
            outcome,
            self.edit.edited_at_s,
            digest,
            remarks,
            at_once=self.now,
            agreed_in=self.agreed_in,
        )


def read_edit(
    edit: Edit, cancels: CancelDetector, *, now: bool = False
) -> UnplannedRequest | Cancel | Refusal:
    """Return what an edit asks for.

    Args:
        edit: What was saved.
        cancels: Knows the saves before.
        now: The script asks, for this very step: no start step counts, and no cancel.
    """
    if edit.problems:
        return Refusal(edit.problems)
    try:
        parsed = parse_config(edit.raw)
    except ConfigError as error:
        return Refusal(error.problems)
    if now:
        return UnplannedRequest(
            edit, parsed.config.model_copy(update={"start_step": 0}), parsed, now
        )
    if cancels.is_cancel(parsed.config):
        return Cancel()
    return UnplannedRequest(edit, parsed.config, parsed, now)
