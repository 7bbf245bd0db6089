"""Interpreters that dynprof starts run no code from the working directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

import dynprof
from dynprof.analysis.rank_comparison.parquet import connection
from dynprof.runtime import fresh_interpreter
from dynprof.runtime.fresh_interpreter import environment, trusted
from tests import processes
from tests.integration.running import LOOP, PYTHON, TORCH_JOB, RunningJob, wait_for
from tests.rank_traces import write
from tests.users import ALICE, MALLORY, as_root

NAMES = (
    "ctypes", "json", "runpy", "pickle", "multiprocessing", "concurrent", "msgspec", "numpy",
    "isal", "duckdb", "pydantic", "torch", "typing_extensions", "pandas", "triton", "sitecustomize",
    "usercustomize", "dynprof",
)  # fmt: skip
"""Modules that such an interpreter imports, or tries to import."""
COMMAND = Path(sys.executable).with_name("dynprof")
FROM_HOSTILE = ("sh", "-c", 'cd hostile && exec "$@"', "sh", *PYTHON)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder with modules that write a file when they are loaded."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in NAMES:
        text = f"import sys; open({str(tmp_path / 'planted')!r}, 'a').write({name!r})\n"
        (folder / f"{name}.py").write_text(text)
    (folder / "planted.pth").write_text("import json\n")
    return folder


def test_the_analysis_of_a_job(tmp_path: Path, hostile: Path) -> None:
    """A job in such a folder analyses its capture and loads no module of it."""
    script = LOOP.replace('"prof_config"', '"../prof_config"')
    with RunningJob(tmp_path, script, through=FROM_HOSTILE) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(active=1, analyse=True)
        wait_for("the analysis", lambda: "analysed step_" in job.log() or None)
    assert not (tmp_path / "planted").exists()


def test_a_relative_entry_of_pythonpath(tmp_path: Path, hostile: Path) -> None:
    """The relative entry would lead to the job's present directory; no interpreter uses it."""
    started = fresh_interpreter.command("dynprof.runtime.plural")
    env = environment(PYTHONPATH=".")
    done = processes.run(started, cwd=hostile, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "planted").exists()


def test_the_self_test_of_a_job(tmp_path: Path, hostile: Path) -> None:
    """The self-test runs there as elsewhere."""
    pytest.importorskip("torch", reason="torch is not installed")
    script = TORCH_JOB + (
        'dp.init("../prof_config")\n'
        "from dynprof.backends.torch.detached_close_selftest import SELF_TEST\n"
        "while SELF_TEST.answer is None:\n"
        "    time.sleep(0.01)\n"
        'print("said:", SELF_TEST.answer)\n'
    )
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}  # no process has asked yet
    with RunningJob(tmp_path, script, through=FROM_HOSTILE, **cache) as job:
        assert job.end() == "said: \n"
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("command", ["analyse", "report"])
def test_the_commands(tmp_path: Path, hostile: Path, command: str) -> None:
    """This includes several traces, which several processes read."""
    for rank in (0, 1):
        write(hostile, rank)
    more = ("--processes", "2") if command == "analyse" else ()
    done = processes.run([COMMAND, command, ".", *more], cwd=hostile)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "planted").exists()


def test_a_script_that_analyses(tmp_path: Path, hostile: Path) -> None:
    """Worker processes do not run the script again, so it needs no guard."""
    for rank in (0, 1):
        write(hostile, rank)
    script = tmp_path / "script.py"
    script.write_text("print('once'); from dynprof.profiler import analyse; analyse('.', 2)")
    command = [sys.executable, str(script)]
    done = processes.run(command, cwd=hostile)
    assert (done.stdout, done.stderr) == ("once\n", "")
    assert len(list(hostile.rglob("operator_details.csv"))) == 2
    assert not (tmp_path / "planted").exists()


def test_the_demo(tmp_path: Path, hostile: Path) -> None:
    """The demo's job is dynprof's own."""
    command = [str(COMMAND), "demo", "--backend", "python"]
    done = processes.run(command, cwd=hostile)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "planted").exists()


def test_data_larger_than_memory_goes_to_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database uses a private temporary folder, not the working directory."""
    (tmp_path / "work").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with connection() as database:
        database.execute("SET memory_limit = '40MB'")
        database.execute("CREATE TABLE t AS SELECT n, hash(n) AS h FROM range(6_000_000) r(n)")
        assert database.execute("SELECT count(*) FROM t").fetchone() == (6_000_000,)
        (private,) = (tmp_path / "temporary").iterdir()
        assert list(private.iterdir())
        assert private.stat().st_mode & 0o777 == 0o700
    del database
    assert list((tmp_path / "work").iterdir()) == []
    assert list((tmp_path / "temporary").iterdir()) == []


PROBE = """
import json, sys, dynprof
print(json.dumps([dynprof.__file__, sys.flags.isolated, sys.argv[1:], sys.path]))
"""
PARENT = """
import subprocess, sys, dynprof
from dynprof.runtime.fresh_interpreter import environment
from dynprof.runtime.fresh_interpreter import command
subprocess.run(command("dynprof.probe", "a b"), env=environment(), check=True)
"""


@pytest.mark.parametrize(
    ("version", "way"),
    [
        ("this", "beside the script"),
        ("this", "PYTHONPATH"),
        ("this", "sys.path"),
        ("3.13", "PYTHONPATH"),
    ],
)
def test_child_interpreters_use_the_dynprof_of_their_parent(
    tmp_path: Path, version: str, way: str
) -> None:
    """The parent's dynprof is used even if another one is installed."""
    python = sys.executable if version == "this" else _found(version)
    if not python:
        pytest.skip(f"there is no Python {version} here")
    place = tmp_path / "place"
    shutil.copytree(Path(dynprof.__file__).parent, place / "dynprof")
    (place / "dynprof" / "probe.py").write_text(PROBE)
    script = (place if way == "beside the script" else tmp_path) / "parent.py"
    added = f"import sys; sys.path.insert(0, {str(place)!r})\n" if way == "sys.path" else ""
    script.write_text(added + PARENT)
    env = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONSTARTUP": "x.py"}
    env.pop("PYTHONPATH", None)
    if way == "PYTHONPATH":
        env["PYTHONPATH"] = str(place)
    done = processes.run([python, script], cwd=tmp_path, env=env)
    assert f'["{place}/dynprof/__init__.py", 1, ["a b"]' in done.stdout, done.stderr


def _found(version: str) -> str:
    """Return a Python of this version; empty if there is none."""
    there: list[str] = []
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    with contextlib.suppress(PermissionError):  # another user's process
        there = [str(path) for path in pyenv.glob(f"versions/{version}.*/bin/python")]
    found = [python for python in (shutil.which(f"python{version}"), *there) if python]
    return next((python for python in found if _runs(python)), "")  # a shim of pyenv may not run


def _runs(python: str) -> bool:
    done = processes.run([python, "-c", ""])
    return done.returncode == 0


def test_only_safe_entries_of_a_path_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative entries, the working directory and unsafe folders are not trusted."""
    modes = {"own": 0o755, "group": 0o775, "all": 0o777, "sticky": 0o1777, "here": 0o755}
    for name, mode in modes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    os.chown(tmp_path / "group", -1, 12345) if os.geteuid() == 0 else None
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "alias").symlink_to("here")
    path = [str(tmp_path / name) for name in (*modes, "alias", "gone")]
    found = trusted(["", ".", "../own", *path], "/nowhere")
    names = [Path(entry).name for entry in found]
    assert [name for name in names if name != "group"] == ["own"]
    assert os.geteuid() != 0 or "group" not in names
    assert str(tmp_path / "here") in trusted(path, str(tmp_path / "here"))  # dynprof is there


@as_root
@pytest.mark.parametrize("how", ["its own", "below its own", "below a folder of all", "renamed"])
def test_a_path_that_another_user_can_put_a_module_on(shared_tmp: Path, how: str) -> None:
    """The owner of an entry can, and the owner of its parent folder, by a rename."""
    entry = shared_tmp / "above" / "entry"
    entry.mkdir(parents=True)
    for place in (entry, entry.parent):
        place.chmod(0o755)
    ALICE.own(entry, entry.parent)
    with ALICE.acting():
        assert trusted([str(entry)], "/nowhere") == [str(entry)]
    if how == "its own":
        MALLORY.own(entry)
    elif how == "below its own":
        MALLORY.own(entry.parent)
    elif how == "below a folder of all":
        entry.parent.chmod(0o777)
    else:
        entry.parent.chmod(0o775)
        os.chown(entry.parent, -1, MALLORY.uid)
    with ALICE.acting():
        assert trusted([str(entry)], "/nowhere") == []


def test_a_working_directory_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No module can be planted there; self-test and analysis start all the same."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert trusted([str(tmp_path)], "/nowhere") == [str(tmp_path)]


def test_the_system_kills_dynprofs_processes_before_the_job() -> None:
    """If memory is short, the system kills these processes before the job."""
    said = "print(open('/proc/self/oom_score_adj').read())"
    done = processes.run(fresh_interpreter.command("timeit", "-n", "1", "-r", "1", said))
    assert done.stdout.split()[0] == "1000", done.stderr
