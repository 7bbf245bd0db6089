"""Parts of dynprof without their packages name the command that installs them."""

from __future__ import annotations

import sys
import tomllib
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dynprof import extras
from dynprof.errors import MissingExtraError
from dynprof.extras import PACKAGES, missing, require
from tests.distributions import OLD
from tests.processes import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT = """
import sys
for name in {names!r}:
    sys.modules[name] = None
from dynprof.__main__ import main
main()
"""
IN_THE_JOB = {"isal", "jsonschema", "msgspec", "psutil", "pydantic", "typer", "watchdog"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {
    "elftools": "pyelftools",
    "opentelemetry": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
}


def test_job_needs_few_packages() -> None:
    """A plain installation has only the imports of a training job."""
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == IN_THE_JOB


def test_a_package_that_a_finder_blocks_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finders that block imports raise; ``init()`` does not."""

    def find_spec(name: str, *_: object) -> None:
        if name == "duckdb":
            raise ModuleNotFoundError(name)

    monkeypatch.delitem(sys.modules, "duckdb", raising=False)
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=find_spec), *sys.meta_path])
    extras._is_found.cache_clear()
    assert "pip install 'dynprof[analysis]'" in missing("analysis", "the analysis")
    extras._is_found.cache_clear()


@pytest.mark.parametrize("extra", PACKAGES)
def test_extra_installs_the_packages_that_its_messages_name(extra: str) -> None:
    """Each extra in a message installs the packages that the message reports."""
    extras, brought, waiting = PROJECT["optional-dependencies"], set(), [extra]
    for name in waiting:  # grows during the loop
        for one in map(Requirement, extras[name]):
            brought.add(one.name)
            waiting += one.extras if one.name == "dynprof" else ()
    assert {DISTRIBUTIONS.get(name, name) for name in PACKAGES[extra]} <= brought


def test_lowest_versions_are_those_of_an_old_environment() -> None:
    """Installing dynprof changes no package of a training environment of 2024."""
    extras = PROJECT["optional-dependencies"]
    needed = [*PROJECT["dependencies"], *(line for name in PACKAGES for line in extras[name])]
    old = {canonicalize_name(name): version for name, version in OLD.items()}
    checked = set()
    for one in map(Requirement, needed):
        if version := old.get(canonicalize_name(one.name)):
            assert version in one.specifier, one
            checked.add(one.name)
    assert {"jsonschema", "msgspec", "numpy", "psutil", "pydantic", "typer"} <= checked


def test_missing_package_is_named_with_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has exactly the missing packages, and the command."""
    require("analysis", "the analysis")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    text = "the analysis needs duckdb; install it with: pip install 'dynprof[analysis]'"
    assert missing("analysis", "the analysis") == text
    with pytest.raises(MissingExtraError, match="needs duckdb"):
        require("analysis", "the analysis")


@pytest.mark.parametrize(
    ("arguments", "absent", "command"),
    [
        (["report"], "duckdb", "dynprof[analysis]"),
        (["analyse"], "numpy", "dynprof[analysis]"),
        (["view"], "viztracer", "dynprof[viewer]"),
        (["demo", "--backend", "python", "--dir"], "viztracer", "dynprof[viewer]"),
        (["metrics"], "prometheus_client", "dynprof[serve]"),
    ],
)
def test_command_names_what_installs_its_packages(
    tmp_path: Path, arguments: list[str], absent: str, command: str
) -> None:
    """A command without its packages exits with the message and code 2, without a traceback."""
    code = WITHOUT.format(names=[absent])
    done = run([sys.executable, "-c", code, *arguments, str(tmp_path)])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"needs {absent}; install it with: pip install '{command}'\n")


def test_commands_of_operator_need_no_extra(tmp_path: Path) -> None:
    """The commands of an operator work without any extra."""
    code = WITHOUT.format(names=sorted({name for some in PACKAGES.values() for name in some}))
    for command in ("init", "arm", "validate", "cancel"):
        done = run([sys.executable, "-c", code, command, str(tmp_path)])
        assert done.returncode in (0, 3), done.stderr  # 3: no process watches
    assert (tmp_path / "profiler_config.json").exists()
