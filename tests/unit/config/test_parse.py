"""From bytes to a config, or to every problem in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dynprof.config import parse_config
from dynprof.errors import ConfigError


def problems_of(document: Any) -> list[str]:
    """Return the problems of a config, given as JSON or as text."""
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(ConfigError) as caught:
        parse_config(text.encode())
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("document", ['{"active": 5.0}', '{"ranks": [5.0]}'])
def test_a_whole_number_with_a_point_gets_a_correct_value(document: str) -> None:
    """JSON Schema accepts 5.0 as a whole number; the job does not, and suggests 5."""
    with pytest.raises(ConfigError) as caught:
        parse_config(document.encode())
    (problem,) = caught.value.problems
    assert problem.text == "5.0 is not allowed; write 5, without a decimal point."


def test_a_whole_number_with_a_point_is_reported_with_other_problems() -> None:
    """The problem comes with the others, not after their correction."""
    assert problems_of('{"active": 0, "warmup": 1.0, "analyse": "True"}') == [
        "line 1, column 2, /active: 0 is not allowed; write a whole number of at least 1.",
        "line 1, column 15, /warmup: 1.0 is not allowed; write 1, without a decimal point.",
        'line 1, column 30, /analyse: "True" is not allowed; write true or false.',
    ]
    (problem,) = problems_of('{"active": -1.0}')
    assert problem.endswith("-1.0 is not allowed; write a whole number of at least 1.")


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        ({"active": "3"}, '"3" is not allowed; write 3, without quotes.'),
        ({"active": "0"}, '"0" is not allowed; write a whole number of at least 1.'),
        ({"start_step": "5"}, '"5" is not allowed; write 5, without quotes.'),
        ({"profile_memory": "true"}, '"true" is not allowed; write true, without quotes.'),
        ({"limits": {"max_seconds": "3.5"}}, '"3.5" is not allowed; write 3.5, without quotes.'),
        ({"limits": {"max_seconds": "Infinity"}}, "write a number greater than 0 or null."),
        ({"limits": {"max_seconds": "1" + 400 * "0"}}, "write a number greater than 0 or null."),
        ({"ranks": 3}, '3 is not allowed; write "3", in quotes.'),
        ({"ranks": "0-"}, 'such as "all", "0-3,8", "every 64th", "one per host", "slowest" '
         'or "median".'),
    ],
)  # fmt: skip
def test_a_value_with_wrong_quotes_gets_a_correct_value(
    document: dict[str, object], wanted: str
) -> None:
    """A quoted number and an unquoted text get the right form; others get the allowed values."""
    (problem,) = problems_of(document)
    assert problem.endswith(wanted)


def test_all_problems_are_reported_at_once() -> None:
    """Errors, unknown keys, wrong values and wrong types are in one report, in file order."""
    problems = problems_of(
        '{\n"activties": ["CPU"],\n"active": 0, // five\n"warmup": "2",\n'
        '"experimental_config": {"profiler_level": "level1", "l2_cache": True},\n'
        '"limits": {"max_seconds": -1}}'
    )
    assert problems == [
        'line 2, column 1, /activties: there is no setting "activties"; did you mean "activities"?',
        "line 3, column 1, /active: 0 is not allowed; write a whole number of at least 1.",
        "line 3, column 14: JSON has no comments; remove it.",
        'line 4, column 1, /warmup: "2" is not allowed; write 2, without quotes.',
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
        ({"active": 0}, "of at least 1"),
        ({"active": 10**30}, "of at most 9007199254740991"),
        ({"activities": []}, "non-empty list"),
        ({"activities": "CPU"}, "non-empty list"),
        ({"activities": ["GPU"]}, 'write one of "CPU", "CUDA", "XPU", "NPU"'),
        ({"ranks": "0-3;8"}, 'write a string such as "all", "0-3,8"'),
        ({"ranks": "slowst"}, '"one per host", "slowest" or "median"'),
        ({"ranks": "every 64"}, 'such as "all", "0-3,8"'),
        (
            {"ranks": "0-10000000"},
            '/ranks: "0-10000000" has a number that is too large; write at most 7 digits.',
        ),
        ({"ranks": "10000000"}, '"10000000" has a number that is too large; write at most 7'),
        ({"ranks": "0,every 10000000th"}, "too large; write at most 7 digits"),
        ({"ranks": "0-10000000;8"}, 'such as "all", "0-3,8"'),
        ({"start_step": "next multiple of 1" + 15 * "0"}, "too large; write at most 15 digits"),
        (
            {"start_step": "soon"},
            'whole number of at least -1 or a string such as "next multiple of 100"',
        ),
        ({"start_step": "next multiple of 0"}, "next multiple of 100"),
        ({"start_step": "100"}, "write 100, without quotes"),
        ({"agreement": {"unable": "ignore"}}, 'one of "refuse", "downgrade"'),
        ({"ranks": "8-3"}, 'the interval "8-3" runs backwards; write "3-8"'),
        ({"ranks": [0], "is_rank": True, "rank_list": [1]}, "named twice"),
        ({"is_rank": True}, "names no rank"),
        ({"every": {}}, "/every: the interval is given in minutes or in steps; write one"),
        ({"every": {"minutes": 1, "steps": 1}}, "write one, such as"),
        ({"every": {"minutes": 0}}, "/every/minutes: 0 is not allowed"),
        ({"every": {"minutes": 1}, "start_step": 5}, "repeats has no start step; write 0"),
        ({"every": {"minutes": 1}, "prof_dir": "s3://b/c"}, "write a directory, or remove every"),
        ({"keep": 0}, "/keep: 0 is not allowed"),
        ({"prof_dir": "~/captures"}, "the ~ of a shell is not expanded"),
        ({"prof_dir": "a/" * 33}, "this path is 33 folders deep; the limit is 32"),
        ({"storage": {"scratch_dir": "a/" * 33}}, "this path is 33 folders deep"),
        (
            {"storage": {"scratch_dir": "s3://me:hush@runs"}},
            "on a local disk; write the path of a local dir",
        ),
        ({"prof_dir": "a\x1b[2J"}, '"a\\u001b[2J" is not allowed'),
        ({"experimental_config": 3}, "write an object in braces"),
        ({"experimental_config": None}, "null is not allowed; write an object in braces"),
        ({"activities": None}, "null is not allowed; write a non-empty list"),
        ({"prof_dir": None}, "null is not allowed; write a string"),
        ({"start_step": -2}, "at least -1"),
        (
            {"mstx": True},
            '"mstx" is in the wrong place; write it inside "experimental_config".',
        ),
        ({"max_seconds": 5}, 'write it inside "limits"'),
        ({"experimental_config": {"active": 5}}, "write it at the top level"),
        ('{"x": ' + "9" * 5000 + "}", "too many digits"),
    ],
)
def test_each_wrong_value_gets_a_correct_one(document: Any, words: str) -> None:
    """An error names the place of a wrong value and a correct one."""
    assert any(words in problem for problem in problems_of(document))


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ('{"active": NaN}', "/active: NaN is not a number that JSON knows; write digits"),
        ('{"limits": {"max_seconds": -Infinity}}', "/limits/max_seconds: -Infinity is not a"),
        ('{"active": 1e400}', "/active: 1e400 is above the largest number allowed"),
        ('{"ranks": [-1e400]}', "/ranks/0: -1e400 is above the largest number allowed"),
        ('{"limits": {"max_seconds": 0.1e-400}}', "0.1e-400 is too small to differ from 0"),
        ('{"metadata": {"a": 1e999}}', "/metadata/a: 1e999 is above the largest number allowed"),
        ("NaN", "NaN is not a number that JSON knows; write digits"),
    ],
)
def test_a_number_that_is_too_large_gives_one_problem(document: str, problem: str) -> None:
    """There is one message, with the number as written, and none on its replacement."""
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
def test_bytes_that_are_not_text_are_refused(raw: bytes, words: str) -> None:
    """Bytes that are not UTF-8, or too many, are refused with a reason."""
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    assert words in str(caught.value)


def test_a_byte_order_mark_is_skipped_with_a_remark() -> None:
    """A byte order mark of an editor works, with a remark."""
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
def test_a_file_with_too_many_values_is_not_checked(document: dict[str, object]) -> None:
    """A file with more values than any config has is refused for that alone."""
    with pytest.raises(ConfigError) as caught:
        parse_config(json.dumps(document).encode())
    (problem,) = caught.value.problems
    assert problem.text == "there are more than 10,000 values; no config needs that."


def test_only_fifty_errors_are_listed() -> None:
    """Comments and similar errors are listed up to a number."""
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
            "takes precedence",
        ),
    ],
)
def test_a_setting_without_effect_is_remarked(
    experimental: dict[str, Any], pointer: str, words: str
) -> None:
    """A setting that another one switches off gets a remark; the config stays valid."""
    parsed = parse_config(json.dumps({"experimental_config": experimental}).encode())
    (remark,) = parsed.remarks
    assert remark.pointer == f"/experimental_config/{pointer}"
    assert words in remark.text
    assert remark.line == 1


def test_analysis_in_a_process_of_its_own_needs_an_analysis() -> None:
    """``async_mode`` works with ``analyse``; alone it gets a remark."""
    (remark,) = parse_config(b'{"async_mode": true}').remarks
    assert (remark.pointer, '"analyse": true' in remark.text) == ("/async_mode", True)
    assert parse_config(b'{"async_mode": true, "analyse": true}').remarks == ()


def test_settings_that_go_together_are_not_remarked() -> None:
    """Allowed combinations give no remark."""
    experimental = {
        "op_attr": True,
        "export_type": ["text", "db"],
        "aic_metrics": "Memory",
        "profiler_level": "Level1",
    }
    assert parse_config(json.dumps({"experimental_config": experimental}).encode()).remarks == ()


@pytest.mark.parametrize("wrong", ["Db", 7, ["text", "Db"], [], None, {"a": 1}])
def test_an_invalid_export_type_becomes_text(wrong: Any) -> None:
    """A wrong ``export_type`` becomes text, with a remark at its place."""
    raw = json.dumps({"active": 3, "experimental_config": {"export_type": wrong, "mstx": True}})
    parsed = parse_config(raw.encode())
    assert parsed.config.active == 3
    assert parsed.config.experimental.mstx
    assert parsed.config.experimental.export_types == {"text"}
    assert parsed.remarks
    for remark in parsed.remarks:
        assert remark.pointer.startswith("/experimental_config/export_type")
        assert (remark.line, remark.text.endswith("Until then, text is used.")) == (1, True)


def test_a_wrong_export_type_is_reported_with_other_problems() -> None:
    """All problems are reported at once."""
    raw = b'{"active": 0, "experimental_config": {"export_type": "Db"}}'
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    assert len(caught.value.problems) == 2
