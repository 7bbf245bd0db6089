"""The public calls of a training script, each in its own process."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from tests import processes, warm_interpreter
from tests.users import ALICE, others_run_python

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def run(folder: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder; every warning is printed."""
    text = "import warnings; warnings.simplefilter('always')\nimport dynprof as dp\n"
    text += textwrap.dedent(script)
    needs = warm_interpreter.WITHOUT_TORCH
    return warm_interpreter.run(text, folder, {**os.environ, **env}, needs=needs)


def test_init_creates_config_schema_log_and_status(tmp_path: Path) -> None:
    """``init()`` creates config, schema, log and status, closed to all but user and group."""
    done = run(tmp_path, 'dp.init("deep/prof_config"); dp.step(); print(dp.status().step)')
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    root = tmp_path / "deep" / "prof_config"
    names = sorted({p.relative_to(root).parts[0] for p in root.rglob("*") if p.is_file()})
    assert names == ["log", "profiler_config.json", "profiler_config.schema.json", "status"]
    assert all(path.stat().st_mode & 0o007 == 0 for path in root.rglob("*"))


def test_the_vendors_import_works(tmp_path: Path) -> None:
    """``from dynprof.profiler import dynamic_profile`` gives the same calls."""
    script = """
        from dynprof.profiler import dynamic_profile
        dynamic_profile.init("prof_config")
        dynamic_profile.step()
        assert dp.status().step == 1
        """
    done = run(tmp_path, script)
    assert (done.returncode, done.stderr) == (0, "")


def test_init_follows_a_link_to_its_directory(tmp_path: Path) -> None:
    """``init()`` follows a link; the files are in its target."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    done = run(tmp_path, 'dp.init("link"); dp.step()')
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "real" / "profiler_config.json").is_file()


def test_an_existing_config_is_left_alone(tmp_path: Path) -> None:
    """``init()`` neither overwrites an existing config nor treats it as a request."""
    (tmp_path / "profiler_config.json").write_text("{rubbish")
    done = run(tmp_path, 'dp.init("."); dp.step(); print(dp.status().problems)')
    assert (done.stdout, done.stderr) == ("()\n", "")
    assert (tmp_path / "profiler_config.json").read_text() == "{rubbish"


def test_step_before_init_warns_once(tmp_path: Path) -> None:
    """A forgotten ``init()`` gives one warning and has no other effect."""
    script = "import dynprof as dp\nfor _ in range(5): dp.step()"  # a forked child prints nothing
    done = processes.run([sys.executable, "-c", script], cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("dynprof.step() was called before dynprof.init()") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["start()", "stop()", 'set_state({"cur_step": 1})'])
def test_other_calls_before_init_warn(tmp_path: Path, call: str) -> None:
    """No call before ``init()`` is an error, and each warns that it has no effect."""
    done = run(tmp_path, f"dp.{call}; dp.shutdown()")
    assert done.returncode == 0
    assert f"dynprof.{call.split('(')[0]}() was called before" in done.stderr


def test_a_second_init_warns_and_changes_nothing(tmp_path: Path) -> None:
    """The first directory stays watched; the warning names both, and the remedy."""
    done = run(tmp_path, 'dp.init("a"); dp.init("b"); dp.step()')
    assert f"dynprof.init('b') changes nothing: {tmp_path / 'a'} is watched" in done.stderr
    assert "call dynprof.shutdown() in between" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_init_after_shutdown_starts_a_new_session(tmp_path: Path) -> None:
    """After ``shutdown()`` steps print nothing, and another ``init()`` starts a new session."""
    script = (
        'dp.init("a"); dp.step(); dp.shutdown(); dp.step(); dp.init("b"); print(dp.status().step)'
    )
    done = run(tmp_path, script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_switched_off_dynprof_does_nothing(tmp_path: Path) -> None:
    """With ``DYNPROF_DISABLE=1`` every call does nothing and prints nothing."""
    script = """
        dp.init("a", watch="poll"); dp.step(); dp.start(); dp.stop()
        dp.set_state({"cur_step": 5}); print(dp.status().state); dp.shutdown()
        """
    done = run(tmp_path, script, DYNPROF_DISABLE="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "disabled\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("state", ["{}", '{"cur_step": -1}', '{"cur_step": "7"}', "7"])
def test_a_wrong_state_warns_and_changes_nothing(tmp_path: Path, state: str) -> None:
    """The warning names the accepted values."""
    done = run(tmp_path, f'dp.init("a"); dp.step(); dp.set_state({state}); print(dp.status().step)')
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "it takes {" in done.stderr


@pytest.mark.parametrize(
    ("prepare", "call", "words"),
    [
        ("", 'dp.init("f")', "is not a directory"),
        ("", 'dp.init("f/below")', "cannot be used"),
        ("", 'dp.init("d/profiler_config.json")', "is the config; give init() its directory"),
        ("", "dp.init(None)", 'init(None) names no directory; write init("prof_config")'),
        ("", 'dp.init("d", watch="inotify")', 'watch="inotify" is none of'),
        ("", 'dp.init("d", rank=-1)', "rank=-1 is not a whole number"),
        ("", 'dp.init("a\\0b")', "cannot be used"),
        (
            "",
            'dp.init("s3://a:b@c/d")',
            ": a URL (s3://...) is no directory of this machine; captures",
        ),
        ("(Path('d') / 'log').touch()", 'dp.init("d")', "cannot work in"),
    ],
)
def test_init_raises_on_an_unusable_argument(
    tmp_path: Path, prepare: str, call: str, words: str
) -> None:
    """Before training starts, an unusable argument raises an error with a message."""
    script = f"from pathlib import Path\nPath('f').touch(); Path('d').mkdir(); {prepare}\n{call}"
    done = run(tmp_path, script)
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
def test_init_without_threads_leaves_nothing_behind(tmp_path: Path, threads: int) -> None:
    """If too few threads can start, no process seems to watch; a later call may succeed."""
    script = f"""
        import threading
        from dynprof.errors import UnusablePathError
        starting, left = threading.Thread.start, list(range({threads}))
        def start(thread):
            if not left:
                raise RuntimeError("can't start new thread")
            left.pop()
            starting(thread)
        threading.Thread.start = start
        try:
            dp.init("d")
        except UnusablePathError as error:
            print(error)
        threading.Thread.start = starting
        print(threading.active_count(), {{p.name for p in threading.enumerate()}})
        dp.init("d")
        print(dp.status().state)
        """
    done = run(tmp_path, script)
    said, left, state = done.stdout.splitlines()
    assert said == f"dynprof cannot work in {tmp_path / 'd'}: can't start new thread"
    assert (left, state) == ("1 {'MainThread'}", "idle")


@others_run_python
def test_a_directory_that_may_not_be_written(shared_tmp: Path) -> None:
    """``init()`` raises for a user without the right to write; root may write everywhere."""
    folder = shared_tmp / "d"
    folder.mkdir(mode=0o555)
    if os.geteuid() == 0:
        ALICE.own(folder)
        done = ALICE.python("import sys, dynprof as dp; dp.init(sys.argv[1])", folder)
    else:
        done = run(shared_tmp, 'dp.init("d")')
    assert done.returncode == 1
    assert "cannot be read and written by this user" in done.stderr


@pytest.mark.parametrize("call", ["start(7)", 'start("no such file")', 'start("a\\0b")', "stop()"])
def test_a_wrong_argument_after_init_is_logged(tmp_path: Path, call: str) -> None:
    """A wrong argument is logged; training continues."""
    done = run(tmp_path, f'dp.init("a"); dp.{call}; dp.step(); print(dp.status().step)')
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_file_that_start_cannot_find_is_named(tmp_path: Path) -> None:
    """The log does not say that the watched config is gone if another file is missing."""
    done = run(tmp_path, 'dp.init("a"); dp.start("no such"); print(*dp.status().problems)')
    said = f"there is no file {tmp_path / 'no such'}, so start() opens nothing; "
    assert done.stdout == f"{said}give it the path of a config.\n"


def test_a_forked_child_is_left_alone(tmp_path: Path) -> None:
    """A child made by fork neither profiles nor writes, and the parent continues."""
    script = """
        import os, warnings
        warnings.simplefilter("ignore")
        dp.init("a")
        child = os.fork()
        if child == 0:
            dp.step(); dp.start()
            os._exit(0 if dp.status().state == "not initialised" else 1)
        assert os.waitpid(child, 0)[1] == 0
        dp.step(); print(dp.status().step)
        """
    done = run(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert len(list((tmp_path / "a" / "log").iterdir())) == 1


@pytest.mark.parametrize("value", ["-1", "soon", "nan"])
def test_an_invalid_wait_is_named(tmp_path: Path, value: str) -> None:
    """The argument and the variable are checked before training starts."""
    done = run(tmp_path, f'dp.init("prof_config", exit_wait_s=float("{value}"))')
    assert "ValueError" in done.stderr
    done = run(tmp_path, 'dp.init("prof_config")', DYNPROF_EXIT_WAIT_S=value)
    assert f"DYNPROF_EXIT_WAIT_S='{value}' is not a number of seconds, 0 or more" in done.stderr


CHILDREN = """
import json, multiprocessing, sys, time
from pathlib import Path
import dynprof as dp
from dynprof import profiler

def of_an_operator():
    dp.init("prof_config")
    Path("asked.json").write_text(json.dumps({"backend": "python", "active": 10**6}))
    dp.start("asked.json")
    for _ in range(5):
        dp.step()

def of_the_script():
    profiler.profile(
        backend="python", on_trace_ready=profiler.tensorboard_trace_handler("own", async_mode=True)
    ).start()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for work in of_an_operator, of_the_script:
        child = context.Process(target=work)
        child.start()
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize("way", ["fork", "forkserver", "spawn"])
def test_a_child_of_multiprocessing_that_ends_in_a_window(tmp_path: Path, way: str) -> None:
    """The recording is saved, although Python runs no ``atexit`` functions."""
    (tmp_path / "job.py").write_text(CHILDREN)
    done = processes.run([sys.executable, "job.py", way], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = load_manifest(next((tmp_path / "prof_config").rglob("*.info.json")))
    assert manifest.reason == "the process ended"
    traces = [path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.trace.json*")]
    assert sorted(traces) == ["own", "prof_config"]
