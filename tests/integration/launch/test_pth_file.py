"""``dynprof env --install``: interpreters of an environment check a variable at their start."""

from __future__ import annotations

import os
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynprof.launch.environment import CONFIG, LINE, VENDORS_CONFIG
from tests import processes
from tests.integration.launch.unprepared import LOOP, ended, is_stepping, logs
from tests.processes import ROOT

if TYPE_CHECKING:
    from subprocess import CompletedProcess


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return the Python of a new environment that has this one's packages."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    entries = [entry for entry in sys.path if Path(entry).is_absolute()]
    (site / "these.pth").write_text("\n".join([str(ROOT), *entries]) + "\n")
    return tmp_path / "env/bin/python"


def env(python: Path, *options: str) -> CompletedProcess[str]:
    """Run ``dynprof env`` in that environment."""
    return processes.run([python, "-m", "dynprof", "env", *options])


def test_the_variable_makes_jobs_of_the_environment_watched(tmp_path: Path, python: Path) -> None:
    """After an install the variable alone makes jobs watched; after removal it does not."""
    assert "is installed: jobs with" in env(python, "--install").stdout
    (tmp_path / "job.py").write_text(LOOP)
    asked = {**os.environ, VENDORS_CONFIG: "prof_config", "DYNPROF_STEPS": ":work"}
    with processes.start([python, "job.py"], cwd=tmp_path, env=asked) as process:
        is_stepping(tmp_path)
        ended(tmp_path, process)
    assert len(logs(tmp_path)) == 1
    assert "is removed" in env(python, "--uninstall").stdout
    processes.run([python, "job.py"], cwd=tmp_path, env=asked)
    assert len(logs(tmp_path)) == 1


@pytest.mark.parametrize("variable", [CONFIG, VENDORS_CONFIG])
def test_messages_name_the_variable_that_was_set(
    tmp_path: Path, python: Path, variable: str
) -> None:
    """Messages name the variable that was set, and children inherit only that one.

    The path that children find in it is absolute, as they may start elsewhere.
    """
    assert (
        f"jobs with {CONFIG}=DIR or {VENDORS_CONFIG}=DIR watch DIR"
        in env(python, "--install").stdout
    )
    code = "import os, dynprof; dynprof.init('mine'); "
    code += f"print([os.environ.get(name) for name in {[CONFIG, VENDORS_CONFIG]}])"
    asked = {**os.environ, variable: "prof_config"}
    done = processes.run([python, "-c", code], cwd=tmp_path, env=asked)
    assert f"watches {tmp_path}/prof_config, as {variable} asks" in done.stderr
    there = f"{tmp_path}/prof_config"
    assert done.stdout == f"{[there, None] if variable == CONFIG else [None, there]}\n"
    (tmp_path / "file").touch()
    asked[variable] = "file"
    done = processes.run([python, "-c", "pass"], cwd=tmp_path, env=asked)
    assert f"watching as {variable} asks failed" in done.stderr


def test_dynprof_config_overrides_prof_config_path(tmp_path: Path, python: Path) -> None:
    """DYNPROF_CONFIG is used, and the log says that PROF_CONFIG_PATH is not."""
    env(python, "--install")
    (tmp_path / "job.py").write_text(LOOP)
    named = {CONFIG: "prof_config", VENDORS_CONFIG: "vendors", "DYNPROF_STEPS": ":work"}
    with processes.start([python, "job.py"], cwd=tmp_path, env={**os.environ, **named}) as process:
        is_stepping(tmp_path)
        ended(tmp_path, process)
    (log,) = logs(tmp_path)
    assert "PROF_CONFIG_PATH=vendors is not watched; DYNPROF_CONFIG takes precedence" in log
    assert not (tmp_path / "vendors").exists()


def test_without_the_variable_nothing_is_loaded(tmp_path: Path, python: Path) -> None:
    """Nothing of dynprof is imported, and after dynprof itself is gone nothing is missed."""
    env(python, "--install")
    code = "import sys; print([name for name in sys.modules if name.startswith('dynprof')])"
    assert processes.run([python, "-c", code]).stdout == "[]\n"
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "these.pth").unlink()
    found = processes.run([python, "-c", code], env={**os.environ, CONFIG: "prof_config"})
    assert (found.stdout, found.stderr) == ("[]\n", "")


def test_env_prints_file_and_variables(python: Path) -> None:
    """The output has the file's place, whether it exists, and the variables."""
    assert "is not installed" in env(python).stdout
    assert "was not installed" in env(python, "--uninstall").stdout
    env(python, "--install")
    found = env(python).stdout.splitlines()
    assert found[0].endswith("zz_dynprof.pth is installed")
    assert found[1] == f"{CONFIG}: not set"
    assert env(python, "--install", "--uninstall").returncode == 2
    both = {**os.environ, CONFIG: "ours", VENDORS_CONFIG: "vendors"}
    told = processes.run([python, "-m", "dynprof", "env"], env=both).stdout.splitlines()
    assert told[-1] == "PROF_CONFIG_PATH=vendors is not watched; DYNPROF_CONFIG takes precedence"


def test_an_unwritable_folder_is_an_error(tmp_path: Path, python: Path) -> None:
    """A user without the right to write there gets an error."""
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "zz_dynprof.pth").mkdir()
    found = env(python, "--install")
    assert (found.returncode, found.stdout) == (2, "")
    assert "zz_dynprof.pth cannot be changed: " in found.stderr


def test_the_file_is_one_line_that_begins_with_an_import() -> None:
    """Python executes only such lines of the file."""
    assert LINE.startswith("import ")
    assert LINE.count("\n") == 1
