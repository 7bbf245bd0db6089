"""A job whose threads are greenlets trains as without dynprof, and a message says why."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from dynprof.runtime.rank import why_no_threads
from tests.integration.running import RunningJob

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gevent") is None, reason="gevent is not installed"
)

PATCH = "from gevent import monkey; monkey.patch_all({})\n"
LEAVES = "thread=False, queue=False, select=False, subprocess=False"
INIT = 'import dynprof as dp\ndp.init("prof_config")\n'
STEPS = """
import time
for _ in range(300):
    time.sleep(0.001)
    dp.step()
print(dp.status().state, "trained", flush=True)
"""
LOOP = """
import time
while True:
    time.sleep(0.001)
    dp.step()
"""
WORDS = "gevent has replaced the threads that dynprof works with; gevent.monkey.patch_all("


@pytest.mark.parametrize("order", ["patched first", "imported first"])
def test_init_does_nothing_on_greenlets(tmp_path: Path, order: str) -> None:
    """A warning says what to do, and nothing is touched; training continues and ends."""
    patched = PATCH.format("")
    begin = patched + INIT if order == "patched first" else f"import dynprof\n{patched}{INIT}"
    with RunningJob(tmp_path, begin + STEPS, through=(sys.executable,)) as job:
        output, errors = job.process.communicate(timeout=60)
    assert output == "not initialised trained\n"
    assert f"UserWarning: dynprof.init() does nothing here: {WORDS}{LEAVES}) leaves" in errors
    assert not job.root.exists()


def test_requests_are_refused_after_threads_are_replaced(tmp_path: Path) -> None:
    """Each request is refused with the reason; the job trains and ends."""
    script = INIT + PATCH.format("") + LOOP.replace("while True", "while not os.path.exists('end')")
    with RunningJob(tmp_path, f"import os\n{script}", through=(sys.executable,)) as job:
        job.when("training", lambda status: status.step > 10)
        job.edit(active=1)
        status = job.when("a refusal", lambda status: bool(status.problems))
        assert status.problems[0].startswith(WORDS)
        (tmp_path / "end").touch()
        job.process.communicate(timeout=60)
    assert job.process.returncode == 0


def test_captures_work_with_greenlets_and_real_threads(tmp_path: Path) -> None:
    """Captures work as the warning says, and no thread of dynprof fails."""
    script = PATCH.format(LEAVES) + INIT + LOOP
    with RunningJob(tmp_path, script, through=(sys.executable,)) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(active=3, activities=["CPU"])
        manifest, _ = job.capture()
        job.process.terminate()
        _, errors = job.process.communicate()
    assert manifest.complete
    assert "Traceback" not in errors


def test_eventlet_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eventlet is recognised by its own flag."""
    patched = {"select": True}
    patcher = SimpleNamespace(is_monkey_patched=lambda name: patched.get(name, False))
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    assert "eventlet.monkey_patch(thread=False, select=False) leaves them alone" in why_no_threads()
    patched.clear()
    assert why_no_threads() == ""
