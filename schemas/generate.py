"""Write what is made from the config's model, from the views of captures and from the tests.

The JSON Schema here and docs/settings.md come from the model, docs/query.md from the views. In
docs/seeds.md each row cites its tests; the first line of a test's docstring follows its first name
in each table.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from dynprof.config import schema_text
from dynprof.runtime.layout import SCHEMA_NAME
from schemas.pages import query_markdown, settings_markdown

ROOT = Path(__file__).parent.parent
SEEDS = ROOT / "docs" / "seeds.md"
ROWS = re.compile(r"(?<=\n)\| .*\| test \|\n\|[-|]+\n((?:\|.*\|\n)+)")
"""The rows of a table with the column "test"."""


@dataclass(frozen=True)
class CitedTest:
    """A test that a row of docs/seeds.md cites.

    Attributes:
        behaviour: The first line of its docstring, in Markdown.
        code: Its own lines without the docstring, and those of its module that are in no test.
    """

    behaviour: str
    code: str


def generated() -> dict[Path, str]:
    """Return the content of each generated file."""
    return {
        ROOT / "schemas" / SCHEMA_NAME: schema_text(),
        ROOT / "docs" / "settings.md": settings_markdown(),
        ROOT / "docs" / "query.md": query_markdown(),
        SEEDS: with_behaviours(SEEDS.read_text(encoding="utf-8")),
    }


def with_behaviours(page: str) -> str:
    """Return docs/seeds.md with the behaviour of each test after its first name in a table.

    An author writes names alone: `test_one`, or tests/unit/test_one.py::test_one.
    """
    tests = cited_tests(page)
    for table in ROWS.findall(page):
        explained: set[str] = set()
        for row in table.splitlines():
            cells, cited = split_row(row)
            names = names_in(cited)
            if not names or "no test: " in cited:
                continue
            behaviours = [
                f"`{name}`: {tests[name].behaviour}"
                if name in tests and name not in explained
                else f"`{name}`"
                for name in names
            ]
            explained.update(names)
            page = page.replace(row, f"| {' | '.join([*cells, '<br>'.join(behaviours)])} |")
    return page


def split_row(row: str) -> tuple[list[str], str]:
    """Return the cells of a table's row: those before the last, and the last."""
    *cells, shown_by = (cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip())[1:-1])
    return cells, shown_by


def names_in(shown_by: str) -> list[str]:
    """Return the tests that a cell cites."""
    return list(dict.fromkeys(re.findall(r"(?:`|::)(test_\w+)", shown_by)))


def cited_tests(page: str) -> dict[str, CitedTest]:
    """Return the tests that the page cites and that are there."""
    cited, found = set(names_in(page)), {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if cited.isdisjoint(re.findall(r"^def (test_\w+)", text, re.MULTILINE)):
            continue
        tests, shared = [], text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)]) - 1
                lines = shared[first : node.end_lineno]
                shared[first : node.end_lineno] = [""] * len(lines)
                tests.append((node, lines))
        for node, lines in tests:
            docstring = ast.get_docstring(node, clean=False) or ""
            code = "\n".join([*shared, *lines]).replace(docstring, "")
            behaviour = docstring.partition("\n")[0].replace("``", "`").replace("|", "\\|")
            if node.name in cited:
                found[node.name] = CitedTest(behaviour, code)
    return found


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
