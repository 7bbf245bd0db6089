"""Prose by the rules of AGENTS.md: short sentences, and none of the words to avoid."""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST = 35  # Words of a sentence. Non-native readers lose the subject of a longer one.
LONGEST_IN_TESTS = 25  # The limit of AGENTS.md; there is no vendor's text to quote there.
MEDIAN = 15
AVOIDED = re.compile(
    r"\b(beside|whoever|nobody|somebody|anew|amid|meanwhile|besides|of itself|so many|so long|"
    r"so often|is told|are told|is asked for|are asked for|what there is|in the midst of|"
    r"lets? go of|goes on|comes by|lies in|stands in)\b",
    re.IGNORECASE,
)
"""Words with a more common synonym. Style guides for non-native readers name most of them."""
SOURCES = sorted((ROOT / "dynprof").rglob("*.py"))
TESTS = sorted(
    path for name in ("tests", "benchmarks", "examples") for path in (ROOT / name).rglob("*.py")
)
"""Their strings are scripts, inputs and expected outputs, so only docstrings and comments count."""
PAGES = sorted({*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")} - {ROOT / "docs" / "seeds.md"})
"""All pages but the one that quotes the vendors' documents."""
_END = re.compile(
    r"(?<=[.!?])[\"')*]*\s+(?=[A-Z\"'(*`0-9{])"  # a full stop
    r"|\n\s*\n|:\n|\n\s*[-*|] |\s\|\s|[├└]"  # a paragraph, an item, a cell
    r"|\n +[\w, *]+: "  # an argument in a docstring
)
_CODE = re.compile(r"``.*?``|`[^`]*`|https?://\S+", re.DOTALL)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings, comments and messages, each with its line; no messages of tests."""
    source = path.read_text()
    if path.suffix == ".md":
        yield 1, re.sub(r"^```.*?^```$|<!--.*?-->", "\n\n", source, flags=re.M | re.S)
        return
    is_test = not path.is_relative_to(ROOT / "dynprof")
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {id(one.value) for one in nodes if isinstance(one, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr) and not is_test:
            parts = (one.value if isinstance(one, ast.Constant) else "X" for one in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_code = "\n" in node.value.strip() or is_test
            yield node.lineno, node.value if id(node) in docstrings or not is_code else ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text; code and links count as one word."""
    for sentence in _END.split(_CODE.sub("X", text)):
        yield " ".join(sentence.split())


def words(sentence: str) -> int:
    """Return the number of words in a sentence."""
    return len(re.findall(r"[^\s|]*\w[^\s|]*", sentence))


@cache
def written(path: Path) -> list[tuple[int, str]]:
    """Return the sentences of a file, each with the line where its text begins."""
    found = ((line, one) for line, text in texts(path) for one in sentences(text))
    return [(line, one) for line, one in found if words(one) > 1]


@pytest.mark.parametrize(
    ("files", "longest"),
    [(PAGES, LONGEST), (SOURCES, LONGEST), (TESTS, LONGEST_IN_TESTS)],
    ids=["pages", "sources", "tests"],
)
def test_sentences_are_short_and_plain(files: list[Path], longest: int) -> None:
    """The message names each line where such a text begins, and the sentence."""
    found = []
    for path, (line, sentence) in ((file, one) for file in files for one in written(file)):
        if avoided := AVOIDED.search(sentence):
            found.append(f"{path}:{line}: write a plain word for {avoided[0]!r}: {sentence}")
        if (count := words(sentence)) > longest:
            found.append(f"{path}:{line}: split {count} words: {sentence}")
    assert not found, "\n".join(found)


def test_half_of_the_sentences_have_at_most_15_words() -> None:
    """Of the pages, which have the longest."""
    lengths = [words(one) for path in PAGES for _, one in written(path)]
    assert statistics.median(lengths) <= MEDIAN
