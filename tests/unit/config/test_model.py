"""The settings: every document gives a config that writes as itself, or a problem."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from dynprof.config import ProfilerConfig, RankSet, config_schema, parse_config, template_text
from dynprof.config.sections import ExperimentalConfig, Limits
from dynprof.errors import ConfigError

SEED_KEYS = [
    "activities",
    "prof_dir",
    "analyse",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_flops",
    "with_modules",
    "active",
    "experimental_config",
]


NEWEST_VENDOR_TEMPLATE: dict[str, Any] = {
    "activities": ["CPU", "NPU"],
    "prof_dir": "./",
    "analyse": False,
    "async_mode": False,
    "record_shapes": False,
    "profile_memory": False,
    "with_stack": False,
    "with_flops": False,
    "with_modules": False,
    "active": 1,
    "warmup": 0,
    "start_step": 0,
    "is_rank": False,
    "rank_list": [],
    "experimental_config": {
        "profiler_level": "Level0",
        "aic_metrics": "AiCoreNone",
        "l2_cache": False,
        "op_attr": False,
        "gc_detect_threshold": None,
        "data_simplification": True,
        "record_op_args": False,
        "export_type": ["text"],
        "msprof_tx": False,
        "mstx": False,
        "host_sys": [],
        "mstx_domain_include": [],
        "mstx_domain_exclude": [],
        "sys_io": False,
        "sys_interconnection": False,
    },
}


def test_the_template_is_the_vendors_with_ours_after_it() -> None:
    """The template has the vendor's keys, order and defaults, and is a valid config."""
    text = template_text()
    template = json.loads(text)
    vendors = json.loads(json.dumps(NEWEST_VENDOR_TEMPLATE))
    vendors["experimental_config"]["export_type"] = "text"  # as the document and older versions
    assert list(template) == ["$schema", *vendors, "backend", "ranks", "cancel", "limits"]
    assert {key: template[key] for key in vendors} == vendors
    assert list(template["experimental_config"]) == list(vendors["experimental_config"])
    assert [key for key in template if key in SEED_KEYS] == SEED_KEYS
    assert parse_config(text.encode()).remarks == ()
    assert json.loads(template_text(("CPU", "CUDA")))["activities"] == ["CPU", "CUDA"]


def test_the_template_names_ranks_in_the_vendors_way_or_ours() -> None:
    """An operator may fill in rank_list or ranks, and need not remove the other."""
    for filled_in in ({"is_rank": True, "rank_list": [1]}, {"ranks": "1"}):
        document = {**json.loads(template_text()), **filled_in}
        asked = parse_config(json.dumps(document).encode()).config.selected_ranks
        assert [rank in asked for rank in range(3)] == [False, True, False]


def test_a_level_of_a_file_brings_no_metrics_of_ai_cores() -> None:
    """In the config file ``Level1`` leaves ``aic_metrics`` at ``AiCoreNone``, as in torch_npu."""
    config = parse_config(b'{"experimental_config": {"profiler_level": "Level1"}}').config
    assert config.experimental.aic_metrics == "AiCoreNone"


@pytest.mark.parametrize("host_sys", [["cpu", "mem", "osrt"], ["CPU", "NUMA"], None])
@pytest.mark.parametrize("export_type", ["text", "db", ["text", "db"]])
def test_vendor_files_are_accepted(host_sys: Any, export_type: Any) -> None:
    """Configs of old and new torch_npu are accepted unchanged."""
    document = json.loads(json.dumps(NEWEST_VENDOR_TEMPLATE))
    document["experimental_config"].update(host_sys=host_sys, export_type=export_type)
    config = parse_config(json.dumps(document, indent=4).encode()).config
    assert config.experimental.host_sys == host_sys
    old = {key: NEWEST_VENDOR_TEMPLATE[key] for key in SEED_KEYS}
    assert parse_config(json.dumps(old).encode()).config.active == 1


@pytest.mark.parametrize(
    ("document", "inside", "outside"),
    [
        ({}, [0, 9999], []),
        ({"ranks": "all"}, [0, 9999], []),
        ({"ranks": "0-3, 8"}, [0, 3, 8], [4, 9]),
        ({"ranks": [2, 5]}, [2, 5], [0, 3]),
        ({"is_rank": True, "rank_list": [1]}, [1], [0]),
        ({"is_rank": False, "rank_list": [1]}, [0, 1], []),
        ({"ranks": "every 64th"}, [0, 64, 6400], [1, 63, 65]),
        ({"ranks": "1, every 3rd and 10-11"}, [0, 1, 3, 9, 10, 11], [2, 4, 8]),
        ({"ranks": "0-9999999"}, [0, 9_999_999], [10_000_000]),
    ],
)
def test_ranks(document: dict[str, Any], inside: list[int], outside: list[int]) -> None:
    """Each spelling gives the written ranks."""
    asked = parse_config(json.dumps(document).encode()).config.selected_ranks
    assert all(rank in asked for rank in inside)
    assert not any(rank in asked for rank in outside)


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return values for a setting: mostly allowed ones, sometimes others."""
    anything: st.SearchStrategy[Any] = st.sampled_from(
        [None, True, 0, 1, -1, 1.0, 2.5, "", "text", [], ["CPU"], {}]
    )
    allowed = st.sampled_from(schema.get("enum", [None]))
    by_type: dict[str, st.SearchStrategy[Any]] = {
        "boolean": st.booleans(),
        "integer": st.integers(-2, 100),
        "number": st.integers(-1, 100) | st.floats(-1, 1e6),
        "string": allowed
        if "enum" in schema
        else st.sampled_from(["./", "a/b", "all", "0-3", "x"]),
        "array": st.lists(st.sampled_from(["CPU", "text", "db", "cpu", 0, 3]), max_size=3),
    }
    options = [schema, *schema.get("anyOf", [])]
    likely = [by_type[o["type"]] for o in options if o.get("type") in by_type]
    return st.one_of(*likely, *likely, anything)


def documents(section: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return configs and things much like configs."""
    keys = {key: values(schema) for key, schema in section["properties"].items()}
    return st.fixed_dictionaries({}, optional={**keys, "unknown": st.none()})


SCHEMA = config_schema()
EXPORT_TYPE = SCHEMA["$defs"]["ExperimentalConfig"]["properties"]["export_type"]


CONFIGS = documents(SCHEMA).flatmap(
    lambda top: st.builds(
        lambda experimental, limits: {**top, **experimental, **limits},
        st.just({}) | documents(SCHEMA["$defs"]["ExperimentalConfig"]).map(
            lambda e: {"experimental_config": e}),
        st.just({}) | documents(SCHEMA["$defs"]["Limits"]).map(lambda e: {"limits": e}),
    )
)  # fmt: skip


def without_what_is_no_export_type(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document as it is accepted: an invalid export type counts as missing."""
    settings = document.get("experimental_config") or {}
    right = jsonschema.Draft202012Validator(EXPORT_TYPE)
    is_one = right.is_valid(settings.get("export_type", "text"))
    kept = {key: value for key, value in settings.items() if is_one or key != "export_type"}
    return {**document, "experimental_config": kept} if settings else document


@given(CONFIGS)
@example({"experimental_config": {"export_type": "./"}})
def test_a_document_gives_a_config_that_round_trips_or_a_problem(document: dict[str, Any]) -> None:
    """Every document gives either a config, which writes and reads as itself, or a problem."""
    try:
        config = parse_config(json.dumps(document).encode()).config
    except ConfigError as error:
        assert error.problems
        return
    again = parse_config(json.dumps(config.to_json()).encode()).config
    assert again == config
    assert config.to_json() == without_what_is_no_export_type(document)


@given(CONFIGS)
def test_the_model_accepts_only_what_the_schema_accepts(document: dict[str, Any]) -> None:
    """The published schema accepts everything that pydantic accepts."""
    try:
        ProfilerConfig.model_validate(document)
    except ValidationError:
        return
    jsonschema.validate(document, SCHEMA)


@pytest.mark.parametrize("section", [ProfilerConfig, ExperimentalConfig, Limits])
def test_every_key_has_a_description_and_an_effect(section: Any) -> None:
    """No key lacks a description for editors, or its effect on each backend."""
    from dynprof.requests.plan import effects

    name = section.__name__
    schema = SCHEMA if section is ProfilerConfig else SCHEMA["$defs"][name]
    assert all(member["description"] for member in schema["properties"].values())
    assert set(effects(section)) == set(section.model_fields)


@pytest.mark.parametrize(
    ("ranks", "chosen", "shown"),
    [
        ("one per host", ("one per host",), "one per host"),
        ("slowest and median", ("slowest", "median"), "slowest,median"),
        ("0-3, every 22nd,median", ("median",), "0-3,every 22nd,median"),
        ("every 12th", (), "every 12th"),
    ],
)
def test_ranks_that_only_the_agreement_can_choose(
    ranks: str, chosen: tuple[str, ...], shown: str
) -> None:
    """Each of these ranks may record; the shown text can be written again."""
    asked = parse_config(json.dumps({"ranks": ranks}).encode()).config.selected_ranks
    assert (asked.chosen, str(asked)) == (chosen, shown)
    assert asked.may_include(5) == bool(chosen)
    assert RankSet.parse(shown) == asked


@pytest.mark.parametrize(
    ("start_step", "named", "multiple"),
    [(0, None, 1), (-1, None, 1), (7, 7, 1), ("next multiple of 100", None, 100)],
)
def test_where_a_window_starts(start_step: int | str, named: int | None, multiple: int) -> None:
    """A window starts at a step number, or at a multiple of a number."""
    config = parse_config(json.dumps({"start_step": start_step}).encode()).config
    assert (config.named_step, config.multiple) == (named, multiple)
