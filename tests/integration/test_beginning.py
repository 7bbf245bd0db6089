"""``init()`` during another one on another thread, and during an end."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

from tests import warm_interpreter

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def run(folder: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder; every warning is printed."""
    text = "import warnings; warnings.simplefilter('always')\nimport dynprof as dp\n"
    text += textwrap.dedent(script)
    needs = warm_interpreter.WITHOUT_TORCH
    return warm_interpreter.run(text, folder, {**os.environ, **env}, needs=needs)


TWO_THREADS = """
    import threading
    from dynprof import dynamic_profile
    def at_once(*calls):
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads: thread.start()
        return threads
    """


def test_two_threads_that_begin_at_once(tmp_path: Path) -> None:
    """One session begins, and the other call behaves as any second one."""
    script = """
        begin = threading.Barrier(4)
        def init(name):
            begin.wait()
            dp.init(name)
        for thread in at_once(*(lambda name=name: init(name) for name in "abcd")): thread.join()
        dp.step()
        print(dp.status().step, sum(t.name == "dynprof-watch" for t in threading.enumerate()))
        """
    done = run(tmp_path, textwrap.dedent(TWO_THREADS) + textwrap.dedent(script))
    assert (done.returncode, done.stdout) == (0, "1 1\n"), done.stderr
    assert done.stderr.count("changes nothing") == 3
    assert len(list(tmp_path.iterdir())) == 1


def test_a_session_that_begins_while_another_ends(tmp_path: Path) -> None:
    """The new session counts steps, also after the other session has ended."""
    script = """
        dp.init("a")
        ending, go_on = threading.Event(), threading.Event()
        session = dynamic_profile.running()
        end = session.end
        def slowly(reason):
            ending.set()
            go_on.wait()
            end(reason)
        session.end = slowly
        (thread,) = at_once(dp.shutdown)
        ending.wait()
        dp.init("b")
        dp.step()
        go_on.set()
        thread.join()
        dp.step()
        print(dp.status().step, dp.status().state)
        """
    done = run(tmp_path, textwrap.dedent(TWO_THREADS) + textwrap.dedent(script))
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 idle\n", "")
