"""From the arguments of a profile to the config that an operator would have written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dynprof.config import ProfilerConfig
from dynprof.profiler.experimental import _ExperimentalConfig
from dynprof.requests.plan import Script

if TYPE_CHECKING:
    from collections.abc import Iterable


def config_from(
    experimental_config: Any, *, activities: Iterable[Any] | None, **settings: Any
) -> ProfilerConfig:
    """Return the config.

    Raises:
        ValueError: An argument is not one of its values.
    """
    if activities is not None:
        settings["activities"] = [_name(activity) for activity in activities]
    if isinstance(experimental_config, _ExperimentalConfig):
        settings["experimental_config"] = experimental_config.settings
    try:
        return ProfilerConfig.model_validate(settings)
    except ValidationError as error:
        raise ValueError("; ".join(_sentence(problem) for problem in error.errors())) from None


def script_from(experimental_config: Any, **rest: Any) -> Script:
    """Return what no config could say."""
    is_ours = experimental_config is None or isinstance(experimental_config, _ExperimentalConfig)
    return Script(experimental_config=None if is_ours else experimental_config, **rest)


def _name(activity: Any) -> Any:
    """Return the name of an activity, of ours, torch's or torch_npu's."""
    name = getattr(activity, "name", activity)
    return "NPU" if name == "PrivateUse1" else name


def _sentence(problem: Any) -> str:
    where = "=".join([str(problem["loc"][0]), repr(problem["input"])]) if problem["loc"] else ""
    return f"{where}: {problem['msg']}"
