"""``dynprof run`` and its variables: jobs whose scripts do not use dynprof."""

from __future__ import annotations

import json
import os
import signal
import sys
import zipapp
from typing import TYPE_CHECKING

import psutil
import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.cli.run import environment
from dynprof.launch.environment import CONFIG
from tests import processes
from tests.integration.commands import dynprof
from tests.integration.launch.unprepared import (
    LOOP,
    begun,
    ended,
    is_stepping,
    logs,
    process_of_another_user,
)
from tests.integration.launching import statuses, when
from tests.integration.running import wait_for
from tests.integration.troubled import small_disk
from tests.processes import DYNPROF
from tests.users import MALLORY, as_root

if TYPE_CHECKING:
    from pathlib import Path


def test_a_script_without_dynprof_is_captured(tmp_path: Path) -> None:
    """The script is watched, its function ends the steps, and the requested ones are captured."""
    with begun(tmp_path, LOOP, "--step-on", ":work") as process:
        is_stepping(tmp_path)
        code, output, errors = dynprof("arm", process.pid, "--active", 3, "--wait")
        assert code == 0, errors
        manifest = load_manifest(tmp_path / output.strip())
        assert (manifest.pid, manifest.complete) == (process.pid, True)
        assert manifest.steps.recorded == 3
        assert manifest.steps.source == "returns of :work"
        code, output, errors = dynprof("top", process.pid)
        assert code == 0, errors
        assert manifest.trace is not None
        assert manifest.trace in output
        assert ended(tmp_path, process) == ""


SELF = """
import atexit, sys
print(sys.argv, __name__, __file__, sys.path[0], sys.stdin.read(), flush=True)
print(sorted(vars(sys.modules["__main__"])), __spec__ and __spec__.name)
atexit.register(print, "the end")
def fail():
    raise LookupError("of the script's own")
if len(sys.argv) > 1:
    sys.exit(len(sys.argv))
fail()
"""


@pytest.mark.parametrize(
    ("way", "arguments"),
    [(["job.py"], ["--config", "other", "-m", "--help"]), (["-m", "job"], [])],
)
def test_the_script_behaves_as_under_plain_python(
    tmp_path: Path, way: list[str], arguments: list[str]
) -> None:
    """Arguments, module, path, input, exit code and traceback equal those under plain Python."""
    (tmp_path / "job.py").write_text(SELF)

    def outcome(*beginning: str) -> tuple[int, str, str]:
        process = processes.start([*beginning, *way, *arguments], cwd=tmp_path, stdin=-1)
        output, errors = process.communicate("typed")
        return process.returncode, output, errors

    plain = outcome(sys.executable)
    assert outcome(*DYNPROF, "run") == plain
    assert plain[0] == (5 if arguments else 1)
    assert len(logs(tmp_path)) == 1


def test_signals_reach_the_script(tmp_path: Path) -> None:
    """The script runs in the started process itself; a signal ends it as usual."""
    script = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n" + LOOP
    with begun(tmp_path, script, "--step-on", ":work") as process:
        is_stepping(tmp_path)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors


def test_children_of_a_watched_script_are_left_alone(tmp_path: Path) -> None:
    """Tools, scripts, pools and forks of a watched process neither watch nor write."""
    children = """
import multiprocessing, os, subprocess
if __name__ == "__main__":
    subprocess.run([sys.executable, "-m", "venv", "--help"], check=True, stdout=-3)
    Path("other.py").write_text("import sys; assert 'dynprof.session.session' not in sys.modules")
    subprocess.run([sys.executable, "other.py"], check=True)
    for way in ("fork", "spawn"):
        with multiprocessing.get_context(way).Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
    if os.fork() == 0:
        time.sleep(1.5)
        os._exit("dynprof-journal" in [t.name for t in __import__("threading").enumerate()])
    assert os.wait()[1] == 0
    Path("done").touch()
"""
    script = LOOP.replace("while", children.replace("\n", "\n") + "\nwhile", 1)
    guarded = script.replace(
        "while not", 'while __name__ == "__main__" and not'
    )  # a spawned process imports it
    with begun(tmp_path, guarded, "--step-on", ":work") as process:
        wait_for("its children", lambda: (tmp_path / "done").exists() or process.poll())
        is_stepping(tmp_path)
        assert [status.pid for status in statuses(tmp_path).values()] == [process.pid]
        ended(tmp_path, process)
    assert len(logs(tmp_path)) == 1


def test_a_script_with_its_own_init_uses_the_directory_of_run(tmp_path: Path) -> None:
    """The script's steps count. If it names another directory, a line says which is watched."""
    script = LOOP.replace("import sys, time", "import sys, time, dynprof as dp\ndp.init('mine')")
    with begun(tmp_path, script.replace("    work()", "    work(); dp.step()")) as process:
        is_stepping(tmp_path)
        (status,) = statuses(tmp_path).values()
        assert status.steps_from == "dp.step()"
        errors = ended(tmp_path, process)
    assert not (tmp_path / "mine").exists()
    asked = f"as {CONFIG} asks"
    assert errors == f"dynprof: the script's init('mine') watches {tmp_path}/prof_config, {asked}\n"


def test_a_script_with_modules_named_as_pythons_own(tmp_path: Path) -> None:
    """``import secrets`` gives the script's ``secrets.py``, though dynprof has loaded Python's."""
    for name in ("secrets", "queue", "csv"):
        (tmp_path / f"{name}.py").write_text(f"WHOSE = '{name} of the script'")
    script = (
        LOOP
        + """
import csv, queue, secrets
Path("whose").write_text(repr([csv.WHOSE, queue.WHOSE, secrets.WHOSE]))
"""
    )
    with begun(tmp_path, script, "--step-on", ":work") as process:
        is_stepping(tmp_path)
        code, _, errors = dynprof("arm", tmp_path / "prof_config", "--active", 2, "--wait")
        assert code == 0, errors
        assert ended(tmp_path, process) == ""
    assert (tmp_path / "whose").read_text().count("of the script") == 3


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_folder_or_archive_with_modules_named_as_pythons_own(tmp_path: Path, kind: str) -> None:
    """Python runs its ``__main__.py``, and its own modules can be imported."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app/secrets.py").write_text("WHOSE = 'mine'")
    (tmp_path / "app/__main__.py").write_text("import secrets\nprint(secrets.WHOSE)")
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
    program = "app" if kind == "folder" else "app.pyz"
    done = processes.run([*DYNPROF, "run", program], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mine\n", "")


def test_a_watched_script_may_run_another_that_is_watched(tmp_path: Path) -> None:
    """Children of a watched process are left alone, unless they start by ``dynprof run``."""
    (tmp_path / "job.py").write_text("import dynprof as dp\nprint(dp.status().state)")
    command = [*DYNPROF, "run", "--config", "inner", "job.py"]
    script = f"import subprocess\nprint(subprocess.run({command!r}, stdout=-1, text=True).stdout)"
    (tmp_path / "driver.py").write_text(script)
    done = processes.run([*DYNPROF, "run", "driver.py"], cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "idle"), done.stderr


def test_a_script_that_changes_directory(tmp_path: Path) -> None:
    """A relative directory is resolved where the command was typed."""
    script = LOOP.replace("while not Path(", "import os; os.chdir('/')\nwhile not Path(HOME + ")
    script = script.replace("import sys", f"HOME = {str(tmp_path)!r} + '/'\nimport sys")
    with begun(tmp_path, script, "--step-on", ":work") as process:
        is_stepping(tmp_path)
        ended(tmp_path, process)


def test_a_script_that_becomes_a_daemon(tmp_path: Path) -> None:
    """The remaining process is watched, whatever its parent."""
    daemon = """
import os
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
while"""
    with begun(tmp_path, LOOP.replace("while", daemon), "--step-on", ":work") as process:
        process.wait()

        def left() -> bool:
            now = [s for s in statuses(tmp_path).values() if s.pid != process.pid]
            return any(s.step > 2 for s in now)

        wait_for("the daemon's steps", lambda: left() or None)
        (tmp_path / "enough").touch()
        wait_for("its end", lambda: any("the process ended" in text for text in logs(tmp_path)))


def test_a_script_that_executes_another(tmp_path: Path) -> None:
    """The process executes another program, and is watched as before."""
    (tmp_path / "real.py").write_text(LOOP)
    script = "import os, sys\nos.execv(sys.executable, [sys.executable, 'real.py'])\n"
    with begun(tmp_path, script, "--step-on", ":work") as process:
        is_stepping(tmp_path)
        assert [status.pid for status in statuses(tmp_path).values()] == [process.pid]
        ended(tmp_path, process)


def test_another_customization_of_the_site_is_kept(tmp_path: Path) -> None:
    """A ``sitecustomize`` on the path is still imported."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.customized = __file__")
    script = "import sys, sitecustomize; print(sys.customized, sitecustomize.__file__)"
    with begun(tmp_path, script, PYTHONPATH=str(own)) as process:
        output, errors = process.communicate()
    place = str(own / "sitecustomize.py")
    assert (output.split(), errors) == ([place, place], "")


@pytest.mark.parametrize(
    ("typed", "code", "says"),
    [
        (["run"], 2, "Missing argument"),
        (["run", "missing.py"], 2, "missing.py: there is no such script"),
        (["run", "no-such-program"], 2, "no such script, and no program on PATH"),
        (["run", "-m"], 2, "-m needs the name of a module"),
        (["run", "--step-on", "what?", "job.py"], 1, "--step-on 'what?' names no source of steps"),
        (["run", "--role", "a b", "job.py"], 1, "--role 'a b' is no role; use up to 32 letters"),
        (["run", "--config", "job.py", "job.py"], 2, "job.py cannot be used"),
    ],
)
def test_a_script_that_cannot_be_run_is_named(
    tmp_path: Path, typed: list[str], code: int, says: str
) -> None:
    """The output is one line, and nothing is started."""
    (tmp_path / "job.py").write_text("print('it ran')")
    found = processes.run([*DYNPROF, *typed], cwd=tmp_path, env={**os.environ, "COLUMNS": "200"})
    assert (found.returncode, found.stdout) == (code, "")
    assert says in found.stderr


def test_a_directory_that_cannot_be_written_starts_nothing(tmp_path: Path) -> None:
    """The script would run unwatched; a read-only disk tests this for root as well."""
    (tmp_path / "job.py").write_text("print('it ran')")
    with small_disk(tmp_path / "disk", "1m"):
        assert processes.run(["mount", "-o", "remount,ro", tmp_path / "disk"]).returncode == 0
        found = processes.run([*DYNPROF, "run", "--config", "disk", "job.py"], cwd=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert "disk is on a read-only file system; nothing was started" in found.stderr


@pytest.mark.parametrize(("typed", "watched"), [([], "named"), (["--config", "typed"], "typed")])
def test_run_without_config_uses_the_variables_directory(
    tmp_path: Path, typed: list[str], watched: str
) -> None:
    """Without --config, run watches the directory that the variable names."""
    (tmp_path / "job.py").write_text("print('it ran')")
    env = {**os.environ, CONFIG: "named"}
    found = processes.run([*DYNPROF, "run", *typed, "job.py"], cwd=tmp_path, env=env)
    assert (found.returncode, found.stdout, found.stderr) == (0, "it ran\n", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["job.py", watched])


def test_the_script_runs_if_the_directory_is_unusable(tmp_path: Path) -> None:
    """A directory that became unusable costs one line."""
    script = tmp_path / "job.py"
    script.write_text("print('it ran')")
    found = processes.run([sys.executable, script], env=environment(os.environ, script, None))
    assert (found.returncode, found.stdout) == (0, "it ran\n")
    said = f"dynprof: watching as {CONFIG} asks failed: {script} is not a directory"
    assert found.stderr.splitlines()[0].startswith(said)
    assert "; this process runs unwatched" in found.stderr
    env = environment(os.environ, tmp_path / "prof_config", "nonsense")
    found = processes.run([sys.executable, script], env=env)
    assert (found.returncode, found.stdout) == (0, "it ran\n")
    assert "DYNPROF_STEPS: steps='nonsense' names no source of steps" in found.stderr
    assert "Traceback" not in found.stderr


@as_root
def test_a_directory_of_another_user_is_not_watched(tmp_path: Path) -> None:
    """``dynprof run`` starts nothing; if the variable names the directory, the script runs."""
    root = tmp_path / "prof_config"
    root.mkdir()
    MALLORY.own(root)
    (tmp_path / "job.py").write_text("print('it ran')")
    found = processes.run([*DYNPROF, "run", "job.py"], cwd=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert "nothing was started" in found.stderr
    env = environment(os.environ, root, None)
    found = processes.run([sys.executable, "job.py"], cwd=tmp_path, env=env)
    assert (found.returncode, found.stdout) == (0, "it ran\n")
    assert f"{root} belongs to uid 61002" in found.stderr
    assert list(root.iterdir()) == []


def unwatched(pid: int) -> str:
    """Return the output of commands for a process that watches nothing."""
    return f"process {pid} watches no config; dynprof attach {pid} makes it watch one\n"


def test_the_list_of_watched_jobs(tmp_path: Path) -> None:
    """Without a directory ``status`` lists the processes that watch, as text and as JSON."""
    with begun(tmp_path, LOOP, "--step-on", ":work") as process:
        is_stepping(tmp_path)
        code, output, _ = dynprof("status")
        assert code in (0, 7)  # a job of another test may be stuck
        line = next(line for line in output.splitlines() if line.split()[0] == str(process.pid))
        assert "alive" in line
        code, output, _ = dynprof("status", "--json")
        (found,) = [p for p in json.loads(output)["processes"] if p["pid"] == process.pid]
        assert found["directory"] == str(tmp_path / "prof_config")
        assert found["command"].endswith("job.py")
        assert found["status"]["steps_from"] == "returns of :work"
        code, output, _ = dynprof("status", process.pid)
        assert (code, "alive" in output) == (0, True)
        ended(tmp_path, process)
    code, _, errors = dynprof("status", process.pid)
    assert (code, errors) == (
        2,
        f"there is no directory {process.pid}, and no process {process.pid}\n",
    )
    code, _, errors = dynprof("arm", os.getpid())
    assert (code, errors) == (3, unwatched(os.getpid()))


def test_a_role_is_that_of_the_watched_script(tmp_path: Path) -> None:
    """``run --role`` sets the script's role, and ``status`` finds it by its pid too."""
    with begun(tmp_path, LOOP, "--step-on", ":work", "--role", "rollout") as process:
        when(tmp_path, "the role", lambda found: "rollout_rank_0.json" in found)

        def listed() -> dict[str, object] | None:
            _, output, _ = dynprof("status", "--json")
            found = json.loads(output)["processes"]
            return next((one["status"] for one in found if one["pid"] == process.pid), None)

        status = wait_for("its log, by which it is found", listed)
        assert (status["role"], status["rank"]) == ("rollout", 0)
        ended(tmp_path, process)


def test_a_fork_is_no_watched_job(tmp_path: Path) -> None:
    """Forks of a watched process, such as loader workers, have its log open and are not listed."""
    forks = "    if Path('now').exists():\n        Path('now').unlink()\n        "
    forks += "os.fork() or time.sleep(600)\n"
    script = "import os\n" + LOOP.replace("    work()\n", f"    work()\n{forks}")
    with begun(tmp_path, script, "--step-on", ":work") as process:
        is_stepping(tmp_path)
        (tmp_path / "now").touch()
        job = psutil.Process(process.pid)
        (child,) = wait_for("a fork", lambda: job.children() or None)
        _, output, _ = dynprof("status", "--json")
        listed = {each["pid"] for each in json.loads(output)["processes"]}
        assert listed & {process.pid, child.pid} == {process.pid}
        code, _, errors = dynprof("arm", child.pid)
        assert (code, errors) == (3, unwatched(child.pid))


def test_another_users_process_names_no_directory() -> None:
    """A process that has a file named as a log open does not decide where others write."""
    other = process_of_another_user()
    if other is None:
        pytest.skip("all processes here are of one user")
    code, _, errors = dynprof("arm", other)
    assert code == 2
    assert "belongs to another user; give the directory" in errors
