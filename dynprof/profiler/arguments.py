"""From the arguments of a profile to the config that an operator would have written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from dynprof.config import ProfilerConfig
from dynprof.profiler.experimental_config import _ExperimentalConfig
from dynprof.requests.plan import Script

_ALLOWED = {
    "activities": "a list of members of ProfilerActivity, or leave it out",
    "backend": "'auto', 'torch', 'npu' or 'python'",
    "experimental_config": "an _ExperimentalConfig, ours or torch's, or leave it out",
}
"""What the arguments may be that are not True or False."""


def config_from(
    experimental_config: Any, *, activities: Iterable[Any] | None, **settings: Any
) -> ProfilerConfig:
    """Return the config.

    Raises:
        ValueError: An argument is not one of its values.
    """
    if activities is not None:
        settings["activities"] = names_of(activities)
    if isinstance(experimental_config, _ExperimentalConfig):
        settings["experimental_config"] = experimental_config.settings
    elif experimental_config is not None and not _is_torchs(experimental_config):
        raise ValueError(_refusal("experimental_config", experimental_config))
    try:
        return ProfilerConfig.model_validate(settings)
    except ValidationError as error:
        raise ValueError("; ".join(_sentence(problem) for problem in error.errors())) from None


def script_from(experimental_config: Any, **rest: Any) -> Script:
    """Return what no config could say."""
    is_ours = experimental_config is None or isinstance(experimental_config, _ExperimentalConfig)
    return Script(experimental_config=None if is_ours else experimental_config, **rest)


def _is_torchs(experimental_config: Any) -> bool:
    """Return whether it is what torch calls so; torch may not be loaded."""
    return type(experimental_config).__name__ == _ExperimentalConfig.__name__


def names_of(activities: Any) -> Any:
    """Return the names of some activities; what is no list of any stays, to be refused."""
    if isinstance(activities, str) or not isinstance(activities, Iterable):
        return activities
    return [_name(activity) for activity in activities]


def _name(activity: Any) -> Any:
    """Return the name of an activity, of ours, torch's or torch_npu's."""
    name = getattr(activity, "name", activity)
    return "NPU" if name == "PrivateUse1" else name


def _sentence(problem: Any) -> str:
    return _refusal(str(problem["loc"][0]), problem["input"])


def _refusal(argument: str, value: object) -> str:
    wanted = _ALLOWED.get(argument, "True or False")
    return f"{argument}={value!r} is not allowed; write {wanted}"
