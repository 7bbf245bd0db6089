"""Convert the arguments of a profile to the config that an operator would have written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

from dynprof.config import ProfilerConfig
from dynprof.profiler.enums import available_activities
from dynprof.profiler.experimental_config import _ExperimentalConfig
from dynprof.requests.plan import Script
from dynprof.runtime.warnings_to_script import warn_script

_ALLOWED = {
    "activities": ("a list of members of ProfilerActivity", "all that the machine has is used"),
    "backend": ("'auto', 'torch', 'npu' or 'python'", "'auto' is used"),
    "experimental_config": ("an _ExperimentalConfig, of dynprof or torch", "the default is used"),
}
"""Allowed values of the arguments that are not booleans, and what replaces a wrong value."""


def config_from(
    experimental_config: Any,
    reject: Callable[[str, str], None],
    *,
    activities: Iterable[Any] | None,
    use_cuda: object = None,
    **settings: Any,
) -> tuple[ProfilerConfig, Any]:
    """Return the config, and ``experimental_config`` or None if it is not usable.

    Args:
        experimental_config: An object of dynprof or torch, or None.
        reject: Called with what is wrong with an argument, and what is used instead.
        activities: What to record; None for all.
        use_cuda: Torch's deprecated argument: adds CUDA or removes it; None for neither.
        settings: The other arguments, named as in the config file.
    """
    activities = _with_cuda(activities, use_cuda, reject)
    if activities is not None:
        settings["activities"] = _names_of(activities)
    if isinstance(experimental_config, _ExperimentalConfig):
        settings["experimental_config"] = experimental_config.settings
    elif experimental_config is not None and not _is_torchs(experimental_config):
        _reject_argument("experimental_config", experimental_config, reject)
        experimental_config = None
    try:
        return ProfilerConfig.model_validate(settings), experimental_config
    except ValidationError as error:
        for name in dict.fromkeys(str(problem["loc"][0]) for problem in error.errors()):
            value = settings.pop(name)
            _reject_argument(name, activities if name == "activities" else value, reject)
    return ProfilerConfig.model_validate(settings), experimental_config


def script_from(experimental_config: Any, **rest: Any) -> Script:
    """Return the options that a config cannot have."""
    is_ours = experimental_config is None or isinstance(experimental_config, _ExperimentalConfig)
    return Script(experimental_config=None if is_ours else experimental_config, **rest)


def _is_torchs(experimental_config: Any) -> bool:
    """Return whether this is torch's ``_ExperimentalConfig``, without importing torch."""
    return type(experimental_config).__name__ == _ExperimentalConfig.__name__


def _names_of(activities: Any) -> Any:
    """Return the names of activities; a value that is not a list is returned for validation."""
    if isinstance(activities, str) or not isinstance(activities, Iterable):
        return activities
    return [_name(activity) for activity in activities]


def _with_cuda(activities: Any, use_cuda: object, reject: Callable[[str, str], None]) -> Any:
    """Return the activities with or without CUDA; None means all of this machine."""
    if use_cuda is None:
        return activities
    if not isinstance(use_cuda, bool):
        reject(f"use_cuda={use_cuda!r:.80} is not True or False", "it is left out")
        return activities
    warn_script("use_cuda is deprecated; name CUDA among the activities, or leave it out")
    named = available_activities() if activities is None else _names_of(activities)
    if not named or not isinstance(named, list):
        return activities
    others = [name for name in named if name != "CUDA"]
    return [*others, "CUDA"] if use_cuda else others


def _name(activity: Any) -> Any:
    """Return the name of an activity of dynprof, torch or torch_npu."""
    name = getattr(activity, "name", activity)
    return "NPU" if name == "PrivateUse1" else name


def _reject_argument(argument: str, value: object, reject: Callable[[str, str], None]) -> None:
    wanted, taken = _ALLOWED.get(argument, ("True or False", "False is used"))
    reject(f"{argument}={value!r:.80} is not {wanted}", taken)
