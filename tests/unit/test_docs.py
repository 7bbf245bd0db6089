"""The documentation agrees with the code, and its examples run."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

import dynprof
from dynprof.analysis.measures.flops import peak_of
from dynprof.captures.manifest import Cost
from dynprof.cli.app import app
from dynprof.config import parse_config
from dynprof.errors import ConfigError
from schemas.generate import ROWS, cited_tests, generated, names_in, split_row
from tests import warm_interpreter
from tests.processes import ROOT

if TYPE_CHECKING:
    import subprocess

PAGES = {page.name: page.read_text() for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]}
LOOP = "loader = range(3)\ndef train_one_step(batch): pass\n"
"""Code around the README's script."""
RESULTS = {("profiler.md", 0): "result", ("acl.md", 0): "profiles"}
"""The folders in which the pages' scripts write a trace."""
SHOWN_BY: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parent / "shown_by.json").read_text()
)
"""By page: the first cell of each row of its tables of behaviour, and the tests for it."""
FIRST_HEADINGS = {
    "threat-model.md": {"attempt"},
    "launching.md": {"in the environment", "the process", "a process", "the script"},
    "recipes.md": {"where"},
    "training-script.md": {"`steps`"},
    "frameworks.md": {"framework"},
}
"""The first heading of each of these tables."""
VARIABLE = re.compile(r"\bDYNPROF_[A-Z_]+")


def blocks(language: str) -> list[tuple[str, int, str]]:
    """Return the examples of all pages in a language: page, its number there, text."""
    return [
        (name, number, text)
        for name, page in PAGES.items()
        for number, text in enumerate(re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S))
    ]


def commands() -> list[list[str]]:
    """Return the commands of all pages that are shown without their output."""
    lines = [line for _, _, text in blocks("sh") for line in text.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("path", generated(), ids=lambda path: path.name)
def test_generated_files_are_up_to_date(path: Path) -> None:
    """Each generated file is equal to that of ``make generate``."""
    found, made = path.read_text(), generated()[path]
    if path.suffix == ".json":  # pydantic before 2.11 writes 0.0, newer versions 0
        found, made = json.loads(found), json.loads(made)
    assert found == made


def test_each_cost_figure_of_a_manifest_is_defined() -> None:
    """The page on captures defines each figure of a manifest, and when it is null."""
    rows = re.findall(r"^\|(.*?)\|", PAGES["captures.md"], re.M)
    assert set(Cost.model_fields) == set(re.findall(r"`(\w+_ms|events)`", "".join(rows)))


def test_the_schema_is_a_schema() -> None:
    """The published schema is valid itself and describes every key for editors."""
    import jsonschema

    (path,) = (ROOT / "schemas").glob("*.json")
    schema: dict[str, Any] = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema")


def test_every_example_has_a_test() -> None:
    """Each kind of example has a test for all pages.

    ``test_documented_commands.py`` runs those of ``console``, and checks the tree of files.
    """
    kinds = {
        name: set(re.findall(r"^```(.*)\n(?:.*\n)*?```$", page, re.M))
        for name, page in PAGES.items()
    }
    assert set().union(*kinds.values()) <= {
        "python",
        "json",
        "sh",
        "console",
        "sql",
        "bash",
        "yaml",
        "",
    }
    plain = {name for name, found in kinds.items() if "" in found}
    assert plain - {"architecture.md"} == {"config-file.md", "captures.md"}  # there: drawings
    assert {name for name, found in kinds.items() if "sql" in found} == {"analysis.md", "query.md"}


def strictly(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in its own process, where each warning is an error."""
    if "torch" in script:
        pytest.importorskip("torch", reason="torch is not installed")
    needs = warm_interpreter.WITH_TORCH if "torch" in script else warm_interpreter.WITHOUT_TORCH
    text = f"import warnings\nwarnings.simplefilter('error')\n{script}"
    return warm_interpreter.run(text, folder, os.environ, needs=needs)


@pytest.mark.parametrize(
    ("page", "number", "script"), blocks("python"), ids=[f"{p} {n}" for p, n, _ in blocks("python")]
)
def test_the_scripts_of_the_pages_run(tmp_path: Path, page: str, number: int, script: str) -> None:
    """Scripts run unchanged without a warning, and write traces to the named folders."""
    if "import ray" in script:
        pytest.skip("tests/integrations/test_ray_recipe.py runs it, with workers")
    done = strictly(LOOP + script, tmp_path)
    assert done.returncode == 0, done.stderr
    if folder := RESULTS.get((page, number)):
        assert len(list((tmp_path / folder).glob("*.trace.json*"))) == 1


def test_the_two_lines_count_the_steps(tmp_path: Path) -> None:
    """The README's script works around any loop, and prints nothing."""
    (script,) = [text for page, _, text in blocks("python") if page == "README.md"]
    done = strictly(LOOP + script + "print(dp.status().step)", tmp_path)
    assert (done.stdout, done.stderr) == ("3\n", "")


@pytest.mark.parametrize("example", blocks("json"), ids=lambda example: example[0])
def test_the_configs_of_the_pages_are_valid(
    example: tuple[str, int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configs are accepted without a remark; a list is a file of devices' peaks."""
    page, _, text = example
    if page != "analysis.md":
        assert parse_config(text.encode()).remarks == ()
        return
    table = tmp_path / "peaks.json"
    table.write_text(text)
    monkeypatch.setenv("DYNPROF_PEAKS", str(table))
    found = peak_of(json.loads(text)[0]["names"][0])
    assert found
    assert found.source == json.loads(text)[0]["source"]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_commands_of_the_pages_exist(words: list[str]) -> None:
    """Names, options and arguments exist in dynprof, the Makefile, the package or the tests."""
    tool, *rest = words
    if tool == "dynprof":
        group: Any = typer.main.get_command(app)
        if rest[0].startswith("-"):
            assert rest[0] in {name for option in group.params for name in option.opts}
        else:
            group.commands[rest[0]].make_context(rest[0], rest[1:])  # parses, runs nothing
    elif tool == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.M)
    elif tool.endswith("pytest"):
        assert all((ROOT / path).exists() for path in rest if "/" in path)
    elif tool == "python" and rest[0] != "-m":
        assert (ROOT / rest[0]).exists()
    elif tool == "docker":
        assert (ROOT / "Dockerfile").exists()
    elif words[:2] != ["pip", "freeze"]:
        assert words[:2] == ["pip", "install"]
        extra = re.fullmatch(r"\.(?:\[(\w+)\])?", rest[-1])
        assert extra
        assert not extra[1] or f"\n{extra[1]} = [" in (ROOT / "pyproject.toml").read_text()


def test_the_problems_shown_are_those_that_are_reported() -> None:
    """The messages shown are those of dynprof."""
    with pytest.raises(ConfigError) as caught:
        parse_config(b'{\n"activties": ["CPU"],\n"active": 0}')
    assert f"```\n{caught.value}\n```" in PAGES["config-file.md"]


def test_the_variables_of_the_environment_are_documented() -> None:
    """The table has exactly the variables of dynprof that the package reads."""
    section = PAGES["installing.md"].split("## Environment")[1].split("\n## ")[0]
    shown = set(re.findall(r"^\| `(DYNPROF_\w+)", section, re.MULTILINE))
    package = Path(dynprof.__file__).parent.rglob("*.py")
    assert shown == {name for path in package for name in VARIABLE.findall(path.read_text())}


def test_the_table_of_calls_is_complete() -> None:
    """The table has exactly the public calls, and every argument of ``init()``."""
    section = PAGES["training-script.md"].split("## The calls")[1].split("\n## ")[0]
    shown = set(re.findall(r"^\| `(\w+)\(", section, re.MULTILINE))
    assert shown == {name for name in dynprof.__all__ if not name.startswith("_")}
    (arguments,) = re.findall(r"^\| `init\((.*)\)` \|", section, re.MULTILINE)
    names = [word.split("=")[0] for word in arguments.split(", ")]
    assert set(names) - {"*"} == set(inspect.signature(dynprof.init).parameters)


def test_init_is_shown_with_all_its_arguments() -> None:
    """The page has their order and their defaults."""
    parameters = inspect.signature(dynprof.init).parameters.values()
    (keywords,) = re.findall(r"^\| `init\(path, \*, (.*)\)`", PAGES["training-script.md"], re.M)
    assert keywords.split(", ") == [f"{one.name}={one.default}" for one in parameters][1:]


@pytest.mark.slow
def test_examples_run(tmp_path: Path) -> None:
    """The plain example runs unchanged; the torch one runs if torch is installed."""
    for name in ("plain_loop", "torch_loop"):
        code = f"import runpy; runpy.run_path({str(ROOT / 'examples' / name)!r} + '.py')['main'](3)"
        done = strictly(code, tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "prof_config" / "profiler_config.json").exists()


def names_of_tests(path: Path) -> set[str]:
    """Return the names of the tests in a file, or in all files of a folder."""
    paths = path.rglob("test_*.py") if path.is_dir() else [path]
    found = (re.findall(r"^def (test_\w+)", one.read_text(), re.MULTILINE) for one in paths)
    return set().union(*found)


def named_tests(text: str) -> set[str]:
    """Return the tests that a page, or a part of one, names."""
    return set(re.findall(r"`(test_[a-z0-9_]+)`", text))


def test_a_test_that_a_page_names_exists_once() -> None:
    """Each quoted test exists exactly once, so that its name is enough to find it."""
    files = (ROOT / "tests").rglob("test_*.py")
    there = Counter(name for path in files for name in names_of_tests(path))
    named = set().union(*map(named_tests, PAGES.values()))
    named |= {name for rows in SHOWN_BY.values() for names in rows.values() for name in names}
    named = {name for name in named if not name.startswith("no test: ")}
    assert {name for name in named if there[name] != 1} == set()


def test_each_guarantee_names_a_test() -> None:
    """Each row of docs/guarantees.md names tests, and each test of a failure is in a row."""
    tables = re.findall(r"^\|.*\| test \|\n\|[-|]+\n((?:\|.*\|\n)+)", PAGES["guarantees.md"], re.M)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 80
    assert [row for row in rows if not named_tests(row.split("|")[-2])] == []
    named = named_tests(PAGES["guarantees.md"])
    assert named <= names_of_tests(ROOT / "tests")
    for path in (ROOT / "tests" / "integration").glob("test_failing*.py"):
        assert names_of_tests(path) - named == set()


@pytest.mark.parametrize("page", SHOWN_BY)
def test_each_row_of_behaviour_has_a_test(page: str) -> None:
    """Each row is in ``shown_by.json``, with tests that exist or the reason for none."""
    tables = re.findall(r"^\| ([^|\n]+) \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGES[page], re.MULTILINE)
    found = [
        row.split("|")[1].strip()
        for heading, rows in tables
        if heading in FIRST_HEADINGS[page]
        for row in rows.splitlines()
    ]
    assert found == list(SHOWN_BY[page])
    cited = [name for names in SHOWN_BY[page].values() for name in names]
    assert all(SHOWN_BY[page].values())
    tests = {name for name in cited if not name.startswith("no test: ")}
    assert tests <= names_of_tests(ROOT / "tests")


def test_tests_are_named_where_they_belong() -> None:
    """Only the pages on guarantees and on the vendor's promises name tests."""
    pages = {name for name, page in PAGES.items() if named_tests(page)}
    assert pages - {"CHANGELOG.md"} <= {"guarantees.md", "seeds.md", "CONTRIBUTING.md", "AGENTS.md"}


@pytest.mark.parametrize("name", ["llms.txt", "mkdocs.yml"])
def test_the_lists_of_pages_name_each_page_once(name: str) -> None:
    """The navigation of the site and ``llms.txt`` name every page, in the order of the index."""
    linked = re.compile(r"[(:] ?(?:docs/|\.\./)?([\w-]+\.md)\b")
    listed = linked.findall((ROOT / name).read_text())
    order = linked.findall(PAGES["index.md"].split("\n## ", 1)[1])
    assert [page for page in listed if page != "index.md"] == order
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"index.md"}
    assert sorted(order) == sorted(pages | {"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"})


SEED_ROWS = [
    split_row(row) for table in ROWS.findall(PAGES["seeds.md"]) for row in table.splitlines()
]


def test_every_promise_of_the_vendors_documents_has_a_test_or_a_reason() -> None:
    """Each row of docs/seeds.md names tests that exist, or says why it has none."""
    assert len(SEED_ROWS) > 100
    for cells, shown_by in SEED_ROWS:
        assert names_in(shown_by) or "no test: " in shown_by, cells
    named = set().union(*(names_in(shown_by) for _, shown_by in SEED_ROWS))
    assert named <= names_of_tests(ROOT / "tests")


def test_tests_use_the_names_in_their_row_of_the_vendors_promises() -> None:
    """Each name between backticks and each message in quotes is in the code of the row's tests."""
    tests, wrong = cited_tests(PAGES["seeds.md"]), []
    for cells, shown_by in SEED_ROWS:
        if "no test: " in shown_by:
            continue
        promise = " ".join(
            cells if len(cells) == 2 else cells[1:2]
        )  # of a difference, dynprof's side
        code = "\n".join(tests[name].code for name in names_in(shown_by))
        names = re.findall(r"[A-Za-z_]\w+", " ".join(re.findall(r"`([^`]+)`", promise)))
        missing = set(names) - set(re.findall(r"\w+", code))
        missing |= {text for text in re.findall(r'"([^"]+)"', promise) if text not in code}
        if missing:
            wrong.append(f"{cells}: its tests do not have {sorted(missing)}")
    assert not wrong, "\n".join(wrong)


def test_injected_faults_in_the_readme_are_those_of_the_benchmark() -> None:
    """Each fault, whether it is named, and when; those that are not named, too."""
    pages = [(ROOT / name).read_text() for name in ("README.md", "docs/benchmarks.md")]
    tables = [
        [[cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines()]
        for page in pages
    ]
    here = [tuple(row[:3]) for row in tables[0] if len(row) == 3 and row[1] in ("yes", "no")]
    there = [
        (row[0], row[1], row[5]) for row in tables[1] if len(row) == 7 and row[1] in ("yes", "no")
    ]
    assert here == there
    assert len(here) == 30
