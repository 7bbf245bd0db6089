"""What the documents say is so."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import dynprof
from dynprof.config import parse_config
from dynprof.errors import ConfigError
from schemas.generate import generated
from tests.processes import run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def blocks(language: str) -> list[str]:
    """Return the code blocks of the README in a language."""
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return found


@pytest.mark.parametrize("path", generated(), ids=lambda path: path.name)
def test_generated_files_are_up_to_date(path: Path) -> None:
    """Schema and settings page are those of the model; ``make generate`` writes them."""
    assert path.read_text() == generated()[path]


def test_the_schema_is_a_schema() -> None:
    """The published schema is valid itself and describes every key for editors."""
    import jsonschema

    (path,) = (ROOT / "schemas").glob("*.json")
    schema: dict[str, Any] = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema")


def test_the_readmes_script_runs(tmp_path: Path) -> None:
    """The two lines work as they stand, around a loop of anybody's."""
    (script,) = blocks("python")
    before = "loader = range(3)\ndef train_one_step(batch): pass\n"
    command = [sys.executable, "-W", "error", "-c", before + script + "print(dp.status().step)"]
    done = run(command, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("3\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_the_scripts_of_the_profilers_page_run(tmp_path: Path, number: int) -> None:
    """They run as they stand, and leave traces where they say."""
    if number == 0:
        pytest.importorskip("torch", reason="torch is not installed")
    scripts = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "profiler.md").read_text(), re.S)
    command = [sys.executable, "-W", "error", "-c", scripts[number]]
    done = run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / ("result", "profiles")[number]).glob("*.trace.json*"))) == 1


def test_the_readmes_config_is_valid() -> None:
    """The config shown is accepted without a remark."""
    (text,) = blocks("json")
    assert parse_config(text.encode()).remarks == ()


def test_the_readmes_problems_are_those_that_are_reported() -> None:
    """The sentences shown are the ones that dynprof says."""
    with pytest.raises(ConfigError) as caught:
        parse_config(b'{\n"activties": ["CPU"],\n"active": 0}')
    assert f"```\n{caught.value}\n```" in README


def test_the_readmes_table_of_calls_is_complete() -> None:
    """Every public call is in the table, and nothing else."""
    section = README.split("## The calls")[1].split("\n## ")[0]
    shown = set(re.findall(r"^\| `(\w+)\(", section, re.MULTILINE))
    assert shown == {name for name in dynprof.__all__ if not name.startswith("_")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file that is there."""
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.slow
def test_examples_run(tmp_path: Path) -> None:
    """The plain example runs as it stands; the torch one is run where torch is installed."""
    for name in ("plain_loop", "torch_loop"):
        if name == "torch_loop":
            pytest.importorskip("torch", reason="torch is not installed")
        code = f"import runpy; runpy.run_path({str(ROOT / 'examples' / name)!r} + '.py')['main'](3)"
        done = run([sys.executable, "-c", code], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "prof_config" / "profiler_config.json").exists()


def test_the_failures_page_names_tests_that_are_there() -> None:
    """Every row of the page is a test, and every test of a failure is a row."""
    page = (ROOT / "docs" / "failures.md").read_text()
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", page))
    there: set[str] = set()
    for path in (ROOT / "tests" / "integration").rglob("test_*.py"):
        names = set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
        there |= names
        if path.name.startswith("test_failing"):
            assert names <= named
    assert named <= there
