"""Modules that an attach loads: from safe places, without effect on the job's own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.commands import dynprof
from tests.integration.launch.attached import attached, begun
from tests.integration.launch.reaching import needs_reaching
from tests.integration.launch.unprepared import LOOP, ended, is_stepping

if TYPE_CHECKING:
    from pathlib import Path

PLANTED = (
    "csv", "queue", "secrets", "json", "psutil", "platform", "calendar", "importlib", "__future__",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _reaching() -> None:
    needs_reaching()


def test_modules_where_the_job_works_are_not_run(tmp_path: Path) -> None:
    """A path with the working directory, as of ``python -c``, is not used."""
    place = tmp_path / "shared"
    place.mkdir()
    for name in PLANTED:
        (place / f"{name}.py").write_text(
            f"open({str(tmp_path / 'planted')!r}, 'a').write({name!r})"
        )
    there = f"import os\nsys.path[0] = ''\nos.chdir({str(place)!r})\n"
    there += f"Path({str(tmp_path / 'begun')!r}).touch()\n"
    script = LOOP.replace("while", f"{there}while").replace(
        '"enough"', repr(str(tmp_path / "enough"))
    )
    with begun(tmp_path, script, before="") as process:
        attached(process, "--config", tmp_path / "prof_config", "--step-on", ":work")
        is_stepping(tmp_path)
        code, _, errors = dynprof("arm", process.pid, "--active", 2, "--wait")
        assert code == 0, errors
        assert ended(tmp_path, process) == ""
    assert not (tmp_path / "planted").exists()


def test_a_refusal_runs_no_modules_in_the_scripts_folder(tmp_path: Path) -> None:
    """The refusal does not import them either, after dynprof has been removed."""
    (tmp_path / "file").touch()
    (tmp_path / "job").mkdir()
    for name in ("json", "__future__"):
        (tmp_path / f"job/{name}.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'w')")
    script = LOOP.replace("from pathlib import Path", "import os").replace(
        'not Path("enough").exists()', 'not os.path.exists("enough")'
    )
    script = script.replace("while", "open('begun', 'w').close()\nwhile")
    with begun(tmp_path / "job", script, before="") as process:
        code, _, errors = dynprof("attach", process.pid, "--config", tmp_path / "file")
        assert code == 4
        assert "is not a directory" in errors
        assert ended(tmp_path / "job", process) == ""
    assert not (tmp_path / "planted").exists()


def test_the_names_of_the_script_stay_its_own(tmp_path: Path) -> None:
    """The script may name a function ``compile`` or ``exec``, and another object ``sys``."""
    script = LOOP.replace("import sys, time", "import time\nfrom re import compile, match as exec")
    script = script.replace("while", "sys = before = {}\nnames = set(globals())\nwhile")
    script += "assert sys is before\nassert set(globals()) - names == {'names'}\n"
    with begun(tmp_path, script) as process:
        attached(process, "--step-on", ":work")
        is_stepping(tmp_path)
        assert ended(tmp_path, process) == ""


def test_the_jobs_own_modules_stay_its_own(tmp_path: Path) -> None:
    """``import secrets`` gives the job's ``secrets.py`` after attaching, as before."""
    (tmp_path / "secrets.py").write_text("API_KEY = 'k'")
    script = LOOP + "from secrets import API_KEY\nPath('key').write_text(API_KEY)\n"
    with begun(tmp_path, script) as process:
        attached(process, "--step-on", ":work")
        is_stepping(tmp_path)
        assert ended(tmp_path, process) == ""
    assert (tmp_path / "key").read_text() == "k"


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python knows the main thread by itself")
def test_threads_that_begin_later_are_waited_for(tmp_path: Path) -> None:
    """Python's ``threading`` takes its importing thread for the main one; it is the job's own."""
    script = LOOP.replace("from pathlib import Path", "from os import path").replace(
        'not Path("enough").exists()', 'not path.exists("enough")'
    )
    script += """
import threading
def save():
    time.sleep(0.5)
    open("result", "w").write("saved")
threading.Thread(target=save).start()
assert threading.current_thread() is threading.main_thread()
"""
    with begun(tmp_path, script) as process:
        attached(process, "--step-on", ":work")
        dynprof("detach", process.pid)
        assert ended(tmp_path, process) == ""
    assert (tmp_path / "result").read_text() == "saved"


def test_a_refusal_leaves_nothing(tmp_path: Path) -> None:
    """If the directory is unusable, neither a module nor a finder of dynprof stays."""
    (tmp_path / "file").touch()
    script = (
        LOOP
        + """
found = [name for name in sys.modules if name.partition(".")[0] == "dynprof"]
found += [type(finder).__name__ for finder in sys.meta_path]
Path("found").write_text(repr(found))
"""
    )
    with begun(tmp_path, script) as process:
        code, _, errors = dynprof("attach", process.pid, "--config", tmp_path / "file")
        assert code == 4
        assert "is not a directory" in errors or "cannot be watched" in errors
        assert ended(tmp_path, process) == ""
    found = (tmp_path / "found").read_text()
    assert "dynprof" not in found
    assert "Homes" not in found
    assert "Installed" not in found


def test_a_refusal_leaves_the_jobs_own_dynprof(tmp_path: Path) -> None:
    """The job's own dynprof, which watches nothing yet, is unchanged afterwards."""
    (tmp_path / "file").touch()
    script = "import dynprof as dp\nimport dynprof.dynamic_profile as loaded\n" + LOOP
    script += "assert sys.modules['dynprof'] is dp\n"
    script += "assert sys.modules['dynprof.dynamic_profile'] is loaded\n"
    with begun(tmp_path, script) as process:
        assert dynprof("attach", process.pid, "--config", tmp_path / "file")[0] == 4
        assert ended(tmp_path, process) == ""
