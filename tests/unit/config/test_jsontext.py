"""The JSON reader that keeps positions and continues after errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynprof.config.jsontext import MAX_DEPTH, read_json
from dynprof.errors import ConfigError

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(DOCUMENTS, st.sampled_from([None, 0, 2, "\t"]))
def test_json_documents_give_the_value_of_json_loads(value: Any, indent: int | str | None) -> None:
    """Any JSON document, compact or indented, gives the value of ``json.loads``."""
    text = json.dumps(value, indent=indent)
    document = read_json(text)
    assert document.value == json.loads(text)
    assert document.problems == ()


@given(st.text() | DOCUMENTS.map(json.dumps).flatmap(lambda t: st.integers(0, len(t)).map(
    lambda n: t[:n])))  # fmt: skip
def test_a_text_that_is_not_json_has_a_problem(text: str) -> None:
    """A text that is not JSON always gives at least one problem, and never an exception."""
    try:
        document = read_json(text)
    except ConfigError as error:
        assert error.problems
        return
    if not document.problems:
        assert document.value == json.loads(text)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "the file is empty"),
        ("{", 1, 2, "a closing } is missing"),
        ('{"a": 1', 1, 8, "a closing } is missing"),
        ('{\n  "a": 1,\n}', 2, 9, "remove the comma before the closing }"),
        ('{"a": [1,]}', 1, 9, "remove the comma before the closing ]"),
        ('{"a": 1,,\n "b": 2}', 1, 9, "two commas in a row; remove one"),
        ('{"a": [1,\n ,2]}', 2, 2, "two commas in a row; remove one"),
        ('{"a": 1 // one\n}', 1, 9, "no comments"),
        ('{"a": 1 # one\n}', 1, 9, "no comments"),
        ('{/* x */"a": 1}', 1, 2, "no comments"),
        ('{"a": 1, "a": 2}', 1, 10, "appears twice, first on line 1"),
        ('{"a": NaN}', 1, 7, "NaN is not a number"),
        ('{"a": -Infinity}', 1, 7, "-Infinity is not a number"),
        ('{"a": True}', 1, 7, "JSON spells this true"),
        ('{"a": None}', 1, 7, "JSON spells this null"),
        ('{"a": yes}', 1, 7, '"yes" has no quotes'),
        ("{'a': 1}", 1, 2, "a key in double quotes"),
        ("{\"a\": 'b'}", 1, 7, "double quotes around text"),
        ('{"a" 1}', 1, 6, "a colon is missing"),
        ('{"a": 1 "b": 2}', 1, 9, "a comma is missing"),
        ('{"a": 1}}', 1, 9, "text after the end"),
        ('{"a": 01}', 1, 7, "JSON spells this 1, not 01"),
        ('{"a": +5, "b": 1}', 1, 7, "JSON spells this 5, not +5"),
        ('{"a": 5_000}', 1, 7, "JSON spells this 5000, not 5_000"),
        ('{"a": -007}', 1, 7, "JSON spells this -7, not -007"),
        ('{"a": 0x1F}', 1, 7, "JSON spells this 31, not 0x1F"),
        ('{"a": 5.}', 1, 7, "JSON spells this 5, not 5."),
        ('{"a": [-.5]}', 1, 8, "JSON spells this -0.5, not -.5"),
        ('{"a": +1_0.5e3}', 1, 7, "JSON spells this 10.5e3, not +1_0.5e3"),
        ('{"a": 1,000}', 1, 9, "there are no commas within a number"),
        ('{"a": 5; "b": 1}', 1, 8, "a comma is missing; write it instead of this"),
        ("{“a”: 1}", 1, 2, "straight double quotes"),
        ('{"a": “b”}', 1, 7, "straight double quotes"),
        ('{"a": "\x01"}', 1, 8, "this is not JSON: Invalid control character."),
        ('{"a": "b}', 1, 7, "the string that begins here does not end"),
        ('{"a": "b,\n"c": 1}', 1, 10, "a string does not end on this line"),
        ('{"a": "\\ud800"}', 1, 15, "half of a surrogate pair"),
    ],
)
def test_each_error_has_its_message(text: str, line: int, column: int, words: str) -> None:
    """Each error is named at its line and column."""
    try:
        problems = read_json(text).problems
    except ConfigError as error:
        problems = error.problems
    assert [(p.line, p.column) for p in problems] == [(line, column)]
    assert words in problems[0].text


def test_reading_continues_after_a_misspelt_value() -> None:
    """One save then also shows problems of the value; a value that is too long ends the reading."""
    document = read_json("[0x10, 5., +.5, 0_0, -007, 1e2]")
    assert document.value == [16, 5, 0.5, 0, -7, 100.0]
    assert len(document.problems) == 5


@pytest.mark.parametrize("digits", ["9", "0x"])
def test_a_number_that_python_does_not_convert_is_a_problem(digits: str) -> None:
    """A number of more digits than Python converts is a problem, not a crash."""
    with pytest.raises(ConfigError, match="too many digits"):
        read_json(digits + "1" * 5000)


def test_nesting_is_bounded() -> None:
    """Deep nesting is a problem, not a crash."""
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert read_json(deepest).problems == ()
    with pytest.raises(ConfigError, match="levels deep"):
        read_json("[" * 100_000)


def test_errors_are_reported_together() -> None:
    """A text with several errors names each of them."""
    problems = read_json('{"a": True, // x\n"a": NaN,}').problems
    assert [p.line for p in problems] == [1, 1, 2, 2, 2]


def test_places_are_those_of_the_keys() -> None:
    """Each member is found at its key, each element at its value; pointers are escaped."""
    document = read_json('{"a/b": {\n "c~": [10, 20]}}')
    assert document.places["/a~1b"] == (1, 2)
    assert document.places["/a~1b/c~0"] == (2, 2)
    assert document.places["/a~1b/c~0/1"] == (2, 13)
