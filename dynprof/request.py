"""One edit, read and judged: a request that may wait for its step, or the reasons against it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dynprof.config import parse_config
from dynprof.errors import ConfigError, Problem
from dynprof.plan import Plan, Refusal, plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.config import ProfilerConfig
    from dynprof.edits import Edit
    from dynprof.plan import Standing


@dataclass(frozen=True)
class Request:
    """A window that was asked for and may be opened.

    Attributes:
        number: Counts the edits of this process, from 1.
        plan: What to do.
        edited_at_s: Time of the save, in seconds since the epoch.
        sha256: Digest of the config's bytes.
        remarks: What of the config has no effect or was downgraded.
        at_once: The script asks itself, for this very step.
    """

    number: int
    plan: Plan
    edited_at_s: float
    sha256: str
    remarks: tuple[Problem, ...]
    at_once: bool = False

    @property
    def config(self) -> ProfilerConfig:
        """The config asked for."""
        return self.plan.config


@dataclass(frozen=True)
class Cancel:
    """An edit that asks to close or disarm what there is."""

    number: int


def read_request(
    edit: Edit,
    number: int,
    standing_for: Callable[[ProfilerConfig], Standing],
    *,
    now: bool = False,
) -> Request | Cancel | Refusal:
    """Parse and plan an edit.

    Args:
        edit: What was saved.
        number: Its number.
        standing_for: Returns where the process stands with regard to a config.
        now: Ignore the config's start step.
    """
    if edit.problems:
        return Refusal(edit.problems)
    try:
        parsed = parse_config(edit.raw)
    except ConfigError as error:
        return Refusal(error.problems)
    config = parsed.config
    if config.cancel:
        return Cancel(number)
    if now:
        config = config.model_copy(update={"start_step": 0})
    outcome = plan(config, standing_for(config))
    if isinstance(outcome, Refusal):
        return replace(outcome, problems=parsed.locate(outcome.problems))
    remarks = (*parsed.remarks, *parsed.locate(outcome.remarks))
    digest = hashlib.sha256(edit.raw).hexdigest()
    return Request(number, outcome, edit.edited_at_s, digest, remarks, at_once=now)
