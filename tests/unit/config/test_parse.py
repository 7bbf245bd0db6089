"""Bytes -> config, or every problem in them."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dynprof.config import ProfilerConfig, config_schema, parse_config, template_text
from dynprof.config.experimental import ExperimentalConfig
from dynprof.config.model import Limits
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
SEED_EXPERIMENTAL = {
    "profiler_level": "Level0",
    "aic_metrics": "AiCoreNone",
    "l2_cache": False,
    "op_attr": False,
    "data_simplification": True,
    "record_op_args": False,
    "export_type": "text",
    "msprof_tx": False,
}
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
        **SEED_EXPERIMENTAL,
        "gc_detect_threshold": None,
        "export_type": ["text"],
        "mstx": False,
        "host_sys": [],
        "mstx_domain_include": [],
        "mstx_domain_exclude": [],
        "sys_io": False,
        "sys_interconnection": False,
    },
}


def problems_of(document: Any) -> list[str]:
    """Return the problems of a config, given as JSON or as text."""
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(ConfigError) as caught:
        parse_config(text.encode())
    return [str(problem) for problem in caught.value.problems]


def test_the_template_is_the_vendors_with_ours_after_it() -> None:
    """The template has the seed's keys in its order with its defaults, and is valid itself."""
    template = json.loads(template_text(("CPU", "CUDA")))
    keys = list(template)
    assert keys[0] == "$schema"
    assert keys[1 : len(SEED_KEYS) + 1] == SEED_KEYS
    assert template["activities"] == ["CPU", "CUDA"]
    assert template["prof_dir"] == "./"
    assert template["active"] == 1
    assert template["experimental_config"] == SEED_EXPERIMENTAL
    assert list(template["experimental_config"]) == list(SEED_EXPERIMENTAL)
    assert parse_config(template_text(("CPU",)).encode()).remarks == ()


@pytest.mark.parametrize("host_sys", [["cpu", "mem", "osrt"], ["CPU", "NUMA"], None])
@pytest.mark.parametrize("export_type", ["text", "db", ["text", "db"]])
def test_vendor_files_are_accepted(host_sys: Any, export_type: Any) -> None:
    """Files of old and new torch_npu are accepted unchanged."""
    document = json.loads(json.dumps(NEWEST_VENDOR_TEMPLATE))
    document["experimental_config"].update(host_sys=host_sys, export_type=export_type)
    config = parse_config(json.dumps(document, indent=4).encode()).config
    assert config.experimental.host_sys == host_sys
    old = {key: NEWEST_VENDOR_TEMPLATE[key] for key in SEED_KEYS}
    assert parse_config(json.dumps(old).encode()).config.active == 1


@pytest.mark.parametrize("document", ['{"active": 5.0}', '{"ranks": [5.0]}'])
def test_a_whole_number_with_a_point_is_said_what_to_write(document: str) -> None:
    """JSON Schema lets 5.0 pass for a whole number; the job does not, and says 5."""
    with pytest.raises(ConfigError) as caught:
        parse_config(document.encode())
    (problem,) = caught.value.problems
    assert problem.text == "5.0 is not allowed; write 5, without a decimal point."


def test_all_problems_are_reported_at_once() -> None:
    """Slips, unknown keys, wrong values and wrong types come in one report, in file order."""
    problems = problems_of(
        '{\n"activties": ["CPU"],\n"active": 0, // five\n"warmup": "2",\n'
        '"experimental_config": {"profiler_level": "level1", "l2_cache": True},\n'
        '"limits": {"max_seconds": -1}}'
    )
    assert problems == [
        'line 2, column 1, /activties: there is no setting "activties"; did you mean "activities"?',
        "line 3, column 1, /active: 0 is not allowed; write a whole number of at least 1.",
        "line 3, column 14: JSON knows no comments; remove it.",
        'line 4, column 1, /warmup: "2" is not allowed; write a whole number of at least 0.',
        'line 5, column 25, /experimental_config/profiler_level: "level1" is not allowed; write '
        'one of "Level_none", "Level0", "Level1", "Level2". Did you mean "Level1"?',
        "line 5, column 65, /experimental_config/l2_cache: JSON spells this true, not True.",
        "line 6, column 12, /limits/max_seconds: -1 is not allowed; write a number greater than 0.",
    ]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([1], "write an object in braces"),
        ({"active": 1.0}, "/active: 1.0 is not allowed"),
        ({"active": True}, "write a whole number"),
        ({"active": 10**30}, "of at most 9007199254740991"),
        ({"activities": []}, "non-empty list"),
        ({"activities": "CPU"}, "non-empty list"),
        ({"activities": ["GPU"]}, 'write one of "CPU", "CUDA", "XPU", "NPU"'),
        ({"ranks": "0-3;8"}, 'such as "all" or "0-3,8"'),
        ({"ranks": "8-3"}, 'the interval "8-3" runs backwards; write "3-8"'),
        ({"ranks": [0], "is_rank": True, "rank_list": [1]}, "named twice"),
        ({"is_rank": True}, "names no rank"),
        ({"prof_dir": "~/captures"}, "the ~ of a shell means nothing here"),
        ({"prof_dir": "a\x1b[2J"}, '"a\\u001b[2J" is not allowed'),
        ({"experimental_config": {"export_type": ["text", "Db"]}}, 'Did you mean "db"?'),
        ({"experimental_config": 3}, "write an object in braces or null"),
        ({"start_step": -2}, "at least -1"),
        ('{"x": ' + "9" * 5000 + "}", "too many digits"),
    ],
)
def test_each_wrong_value_says_what_is_right(document: Any, words: str) -> None:
    """A wrong value is named with its place and what to write instead."""
    assert any(words in problem for problem in problems_of(document))


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ('{"active": NaN}', "/active: NaN is not a number that JSON knows; write digits"),
        ('{"limits": {"max_seconds": -Infinity}}', "/limits/max_seconds: -Infinity is not a"),
        ('{"active": 1e400}', "/active: 1e400 is larger than any number kept here"),
        ('{"ranks": [-1e400]}', "/ranks/0: -1e400 is larger than any number kept here"),
        ('{"limits": {"max_seconds": 0.1e-400}}', "0.1e-400 is too small to be told from 0"),
        ('{"metadata": {"a": 1e999}}', "/metadata/a: 1e999 is larger than any number kept here"),
        ("NaN", "NaN is not a number that JSON knows; write digits"),
    ],
)
def test_a_number_that_cannot_be_kept_is_answered_once(document: str, problem: str) -> None:
    """One sentence, with the number as it was written, and none about what stands in for it."""
    (found,) = problems_of(document)
    assert problem in found


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\xff\xfe{\x00}\x00", "UTF-16"),
        (b'{\n"a": "\xe9"}', "line 2, column 7: byte 0xe9 is not UTF-8"),
        (b" " * (1 << 20) + b"{}", "larger than 1 MiB"),
    ],
)
def test_bytes_that_are_no_text_are_refused(raw: bytes, words: str) -> None:
    """Bytes that are not UTF-8, or too many, are refused in words."""
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    assert words in str(caught.value)


def test_a_byte_order_mark_is_skipped_with_a_remark() -> None:
    """A file of an editor that writes a byte order mark works, and that is said."""
    parsed = parse_config(b'\xef\xbb\xbf{"active": 3}')
    assert parsed.config.active == 3
    assert "byte order mark" in parsed.remarks[0].text


@pytest.mark.parametrize(
    "document",
    [
        {f"activitie{number}": 1 for number in range(20_000)},
        {"ranks": ["x"] * 20_000},
        {"metadata": {"list": list(range(20_000))}},
    ],
    ids=["keys", "elements", "metadata"],
)
def test_what_would_take_seconds_is_not_looked_into(document: dict[str, object]) -> None:
    """A file of more values than any config has is refused for that alone."""
    with pytest.raises(ConfigError) as caught:
        parse_config(json.dumps(document).encode())
    (problem,) = caught.value.problems
    assert problem.text == "there are more than 10,000 values; no config has so many."


def test_after_fifty_slips_nobody_reads_on() -> None:
    """Comments and the like are listed up to a number."""
    with pytest.raises(ConfigError) as caught:
        parse_config(b"{" + b"// x\n" * 1000 + b"}")
    assert len(caught.value.problems) == 50


def test_many_problems_are_counted() -> None:
    """A file with thousands of problems does not fill the log."""
    problems = problems_of({f"key{n}": 1 for n in range(2000)})
    assert len(problems) == 51
    assert problems[-1] == "and at least 450 more problems."


@pytest.mark.parametrize(
    ("experimental", "pointer", "words"),
    [
        ({"op_attr": True}, "op_attr", '"export_type": "db"'),
        ({"aic_metrics": "Memory"}, "aic_metrics", '"Level1" or "Level2"'),
        ({"profiler_level": "Level_none"}, "profiler_level", '"mstx": true'),
        ({"mstx_domain_include": ["a"]}, "mstx_domain_include", '"mstx": true'),
        (
            {"mstx": True, "mstx_domain_include": ["a"], "mstx_domain_exclude": ["b"]},
            "mstx_domain_exclude",
            "wins",
        ),
    ],
)
def test_a_setting_without_effect_is_remarked(
    experimental: dict[str, Any], pointer: str, words: str
) -> None:
    """What another setting switches off is said at its place, and the config is still used."""
    parsed = parse_config(json.dumps({"experimental_config": experimental}).encode())
    (remark,) = parsed.remarks
    assert remark.pointer == f"/experimental_config/{pointer}"
    assert words in remark.text
    assert remark.line == 1


def test_settings_that_go_together_are_not_remarked() -> None:
    """What another setting allows passes without a word."""
    experimental = {
        "op_attr": True,
        "export_type": ["text", "db"],
        "aic_metrics": "Memory",
        "profiler_level": "Level1",
    }
    assert parse_config(json.dumps({"experimental_config": experimental}).encode()).remarks == ()


@pytest.mark.parametrize(
    ("document", "inside", "outside"),
    [
        ({}, [0, 9999], []),
        ({"ranks": "all"}, [0, 9999], []),
        ({"ranks": "0-3, 8"}, [0, 3, 8], [4, 9]),
        ({"ranks": [2, 5]}, [2, 5], [0, 3]),
        ({"is_rank": True, "rank_list": [1]}, [1], [0]),
        ({"is_rank": False, "rank_list": [1]}, [0, 1], []),
        ({"ranks": "0-9999999"}, [0, 9_999_999], [10_000_000]),
    ],
)
def test_ranks(document: dict[str, Any], inside: list[int], outside: list[int]) -> None:
    """The ranks asked for are those written, in each of the spellings."""
    asked = parse_config(json.dumps(document).encode()).config.asked_ranks
    assert all(rank in asked for rank in inside)
    assert not any(rank in asked for rank in outside)


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return values for a setting: mostly allowed ones, sometimes not."""
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
CONFIGS = documents(SCHEMA).flatmap(
    lambda top: st.builds(
        lambda experimental, limits: {**top, **experimental, **limits},
        st.just({}) | documents(SCHEMA["$defs"]["ExperimentalConfig"]).map(
            lambda e: {"experimental_config": e}),
        st.just({}) | documents(SCHEMA["$defs"]["Limits"]).map(lambda e: {"limits": e}),
    )
)  # fmt: skip


@given(CONFIGS)
def test_a_document_gives_a_config_that_round_trips_or_a_problem(document: dict[str, Any]) -> None:
    """Every document gives either a config, which writes and reads as itself, or a problem."""
    try:
        config = parse_config(json.dumps(document).encode()).config
    except ConfigError as error:
        assert error.problems
        return
    again = parse_config(json.dumps(config.to_json()).encode()).config
    assert again == config
    assert config.to_json() == document


@given(CONFIGS)
def test_the_model_accepts_only_what_the_schema_accepts(document: dict[str, Any]) -> None:
    """Whatever pydantic lets through, the published schema lets through as well."""
    try:
        ProfilerConfig.model_validate(document)
    except ValidationError:
        return
    jsonschema.validate(document, SCHEMA)


@pytest.mark.parametrize("section", [ProfilerConfig, ExperimentalConfig, Limits])
def test_every_key_is_described_and_has_an_effect(section: Any) -> None:
    """No key lacks a description for editors, or a word on what each backend makes of it."""
    from dynprof.requests.plan import effects

    name = section.__name__
    schema = SCHEMA if section is ProfilerConfig else SCHEMA["$defs"][name]
    assert all(member["description"] for member in schema["properties"].values())
    assert set(effects(section)) == set(section.model_fields)
