"""The meaning of the arguments of pyACL's ``create_config``."""

from __future__ import annotations

import re
import warnings

import pytest

from dynprof.acl.prof import create_config, create_subscribe_config

ALL = 0x0001 | 0x0002 | 0x0004 | 0x0010 | 0x0020 | 0x0080 | 0x0100 | 0x0800 | 0x1000
"""Every bit of ``aclproftype`` that some machine supports."""


@pytest.mark.parametrize(
    ("metrics", "data_types", "settings"),
    [
        (0, 0, {}),
        (0, 0x0001 | 0x0080 | 0x0800, {}),
        (0, 0x0002, {"profiler_level": "Level1"}),
        (0, 0x0004, {"profiler_level": "Level1", "aic_metrics": "ArithmeticUtilization"}),
        (5, 0x0004, {"profiler_level": "Level1", "aic_metrics": "MemoryUB"}),
        (0xFF, 0x0020 | 0x0010, {"profiler_level": "Level1", "l2_cache": True}),
        (0xFF, 0x1000, {"profile_memory": True}),
        (
            8,
            ALL,
            {
                "profiler_level": "Level2",
                "aic_metrics": "MemoryAccess",
                "l2_cache": True,
                "profile_memory": True,
            },
        ),
    ],
)
def test_create_config_maps_metrics_and_data_types(
    metrics: int, data_types: int, settings: dict[str, object]
) -> None:
    """Numbers of metrics and bits of data types become settings, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = create_config([0], metrics, 0, data_types)
    assert config.model_dump(exclude_defaults=True) == settings


@pytest.mark.parametrize(
    ("metrics", "events", "data_types", "words"),
    [
        (7, 0, 0x0004, "aicore_metrics=7 is not known; no metrics are sampled"),
        (1, 0, 0x0002, "aicore_metrics=1 has no effect: PipeUtilization needs ACL_PROF_AICORE"),
        (0, 3, 0, "aicore_events=3 has no effect"),
        (0, 0, 0x0040, "ACL_PROF_TRAINING_TRACE has no effect"),
        (0, 0, 0x4000, "ACL_PROF_OP_ATTR has no effect"),
        (0, 0, 0x0008, "ACL_PROF_AICPU has no effect: only an Ascend NPU"),
        (0, 0, 0x8000, "unknown bits, which have no effect: 0x8000"),
    ],
)
def test_create_config_names_arguments_without_effect(
    metrics: int, events: int, data_types: int, words: str
) -> None:
    """One warning names an argument without effect, and a config is returned."""
    with pytest.warns(UserWarning, match=re.escape(words)) as caught:
        config = create_config([0], metrics, events, data_types)
    assert len(caught) == 1
    assert config.aic_metrics == "AiCoreNone"


def test_a_subscription_names_metrics_that_it_does_not_deliver() -> None:
    """A warning names metrics other than 0 and 0xFF."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        create_subscribe_config(1, 0, 5)
        create_subscribe_config(1, 0xFF, 5)
    with pytest.warns(UserWarning, match="aicore_metrics=1 has no effect"):
        create_subscribe_config(1, 1, 5)
