"""The tests keep their own rules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import dynprof
from tests.conftest import long_first

PACKAGE = Path(dynprof.__file__).parent
TESTS = Path(__file__).parents[1]
ALLOWED = {
    "processes.py": "is the place",
    "pace.py": "measures for it how long to wait",
    "forkserver.py": "forks scripts; it is started by processes.py, and dies with pytest",
    "audit.py": "is no test: make audit runs it",
    "distributions.py": "is no test: make dist runs it",
    "users.py": "runs a command as another user, to its end",
    "integration/runtime/test_hostile_neighbours.py": "attacks a command, and ends the attack",
    "npu/fetch.py": "is no test: make npu runs it",
    "storm/children.py": "forks for a job that is a process of the test",
    "storm/job.py": "is a job that forks, and a process of the test",
    "unit/runtime/test_thread_switching.py": "forks a child that looks at one number and ends",
}
OF_SUBPROCESS = {"run", "Popen", "call", "check_call", "check_output", "getoutput"}
ANYWHERE = {
    *("Popen", "fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp", "spawnv"),
    *(
        "create_subprocess_exec",
        "create_subprocess_shell",
        "ProcessPoolExecutor",
        "start_processes",
    ),
}


def starters(text: str) -> list[str]:
    """Return a module's calls and imports that start processes."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "subprocess":
            found += [alias.name for alias in node.names if alias.name in OF_SUBPROCESS]
        if isinstance(node, ast.Call):
            *module, name = ast.unparse(node.func).split(".")
            if name in ANYWHERE or (module == ["subprocess"] and name in OF_SUBPROCESS):
                found.append(ast.unparse(node.func))
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import subprocess\nsubprocess.run(['true'])", ["subprocess.run"]),
        ("from subprocess import check_output", ["check_output"]),
        ("import os\nif os.fork() == 0: pass", ["os.fork"]),
        ("from tests.processes import run\nrun(['true'])", []),
    ],
)
def test_starting_a_process_is_noticed(text: str, found: list[str]) -> None:
    """All ways that tests have used are found."""
    assert starters(text) == found


def test_processes_are_started_in_one_place() -> None:
    """``tests/processes.py`` ends them; other places that start one are listed with a reason."""
    found = {
        str(path.relative_to(TESTS)): names
        for path in TESTS.rglob("*.py")
        if (names := starters(path.read_text()))
    }
    assert set(found) <= set(ALLOWED), found


@pytest.mark.parametrize("kind", ["unit", "integration"])
def test_tests_are_in_the_folders_of_the_packages(kind: str) -> None:
    """The tests of a package are under its name."""
    for path in (TESTS / kind).rglob("test_*.py"):
        package = PACKAGE / path.parent.relative_to(TESTS / kind)
        assert package.is_dir(), path


def test_each_package_has_tests_of_its_own() -> None:
    """The tests are in a folder of its name."""
    packages = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py")}
    tested = {
        home
        for kind in (TESTS / "unit", TESTS / "integration")
        for path in kind.rglob("test_*.py")
        for home in (path.parent.relative_to(kind), *path.parent.relative_to(kind).parents)
    }
    assert packages - tested == set()


def test_no_test_file_is_imported_by_another() -> None:
    """Shared code is in its own module: a test file may be split or moved."""
    for path in TESTS.rglob("*.py"):
        taken = re.findall(r"^ *from tests\.[\w.]+\.test_\w+ import", path.read_text(), re.M)
        assert taken == [], path


def test_a_third_of_the_workers_begin_with_long_tests() -> None:
    """Each worker gets a share of the list, in order; no test is lost."""
    long, others = ["a", "b", "c", "d"], [f"{number}" for number in range(56)]
    for workers in range(1, 9):
        order = long_first(long, others, workers)
        assert sorted(order) == sorted([*long, *others])
        first, left = list[int](), len(order)
        for worker in range(workers):  # as xdist divides them
            first.append(len(order) - left)
            left -= left // (workers - worker)
        few = max(1, workers // 3)
        assert [order[at] for at in first[:few]] == long[:few]
        assert not {order[at] for at in first[few:]} & {*long}
