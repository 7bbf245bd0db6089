"""The requested source of steps."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import Literal

VARIABLE = "DYNPROF_STEPS"
KNOWN = (
    '"script", "optimizer", "auto", "package.module:function", "package.module:Class.method" '
    'or a period in seconds, as 5 or "5s"'
)
_FUNCTION = re.compile(r"(?P<module>[\w.]*):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")
_PERIOD = re.compile(r"(?P<seconds>\d+(\.\d*)?|\.\d+) ?s?")
LEAST_S, MOST_S = 0.01, 86_400.0


@dataclass(frozen=True)
class StepOption:
    """The requested source of steps.

    Attributes:
        kind: ``script``: its calls of ``step()``; ``optimizer``; ``auto``: the script, or the
            optimizer if the script calls none; ``function``; ``period``.
        module: The module of the function; empty for the script itself.
        function: Its name, with that of its class.
        seconds: The period.
    """

    kind: Literal["script", "optimizer", "auto", "function", "period"]
    module: str = ""
    function: str = ""
    seconds: float = 0.0


def step_option_of(argument: object, *, otherwise: StepOption) -> StepOption:
    """Return the source that an argument, or else the variable, requests.

    Args:
        argument: The argument; None if there is none.
        otherwise: The result if neither requests a source.

    Raises:
        ValueError: It names no source.
    """
    name = VARIABLE if argument is None else "steps"
    value = os.environ.get(VARIABLE) or None if argument is None else argument
    if value is None:
        return otherwise
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _period(name, value)
    if value in ("script", "optimizer", "auto"):
        return StepOption(value)
    if isinstance(value, str) and (found := _PERIOD.fullmatch(value.strip())):
        return _period(name, float(found["seconds"]))
    if isinstance(value, str) and (found := _FUNCTION.fullmatch(value.strip())):
        return StepOption("function", module=found["module"], function=found["name"])
    raise ValueError(f"{name}={value!r} names no source of steps; write {KNOWN}")


def _period(name: str, seconds: float) -> StepOption:
    if not math.isfinite(seconds) or not LEAST_S <= seconds <= MOST_S:
        raise ValueError(
            f"{name}={seconds!r}: a period is {LEAST_S} to {MOST_S:.0f} seconds; write one of those"
        )
    return StepOption("period", seconds=float(seconds))
