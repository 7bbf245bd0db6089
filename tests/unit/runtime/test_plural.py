"""Numbers and their nouns agree in all messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import dynprof
from dynprof.runtime.plural import all_of, counted, listed, spanned

PACKAGE = Path(dynprof.__file__).parent
BESIDE = re.compile(r"\{[^{}]*\b(len\(|count|total\b|number\()[^{}]*\} [a-z]+s\b")
"""A number that varies, followed by a plural noun."""


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (1200, "1,200 steps"), (0.5, "0.5 steps")],
)
def test_a_number_and_its_noun_agree(count: float, words: str) -> None:
    """Only 1 is singular; others have a thousands separator."""
    assert counted(count, "step") == words


def test_a_plural_of_its_own_and_a_verb() -> None:
    """Irregular nouns, and nouns with their verb, are given in both forms."""
    assert counted(1, "copy", "copies") == "1 copy"
    assert counted(3, "rank is asked", "ranks are asked") == "3 ranks are asked"


def test_a_list() -> None:
    """Lists of one and of several items are joined."""
    assert (listed("rank", [7]), listed("rank", [0, 7])) == ("rank 7", "ranks 0, 7")


def test_the_last_of_several_follows_an_and() -> None:
    """The others are separated by commas."""
    said = ["", "a", "a and b", "a, b and c"]
    assert [all_of(["a", "b", "c"][:number]) for number in range(4)] == said


def test_first_and_last() -> None:
    """A span of one step is one step."""
    assert (spanned(7, 7), spanned(7, 9), spanned(7, 9, between="-")) == (
        "step 7",
        "steps 7 to 9",
        "steps 7-9",
    )


def test_no_message_has_an_optional_plural() -> None:
    """Messages have no ``step(s)``, and no plural noun after a number that may be one."""
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if BESIDE.search(line)
    ]
    found += [
        f"{path.relative_to(PACKAGE)}: {node.value}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "(s)" in node.value
    ]
    assert found == []
