"""Log, ``arm``, ``status`` and manifest say when a window is recorded or closed in a fallback."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

import dynprof
from dynprof.backends.torch import detached_close, forks, torch_recording
from tests.integration.commands import dynprof as command
from tests.integration.running import TORCH_JOB, RunningJob, operators, steps_in

torch = pytest.importorskip("torch", reason="torch is not installed")

EMPTY = Path(torch.__file__).parent / "lib" / "libc10.so"
"""A torch library that exports none of the functions."""
SYMBOLS = (
    *detached_close._SYMBOLS.values(),
    *(symbol for symbol, *_ in detached_close._STATE_OF_ALL),
    forks._INSTANCE,
    forks._STOP_THREAD,
    torch_recording._BLOCKS,
)
"""All symbols that dynprof looks up in libtorch.

:func:`test_no_other_file_looks_into_libtorch` checks that the list is complete.
"""
WITHOUT_SYMBOLS = f"""
from pathlib import Path
from dynprof.backends.torch import detached_close, detached_close_selftest, forks, torch_recording
for module in (detached_close, detached_close_selftest, forks, torch_recording):
    module.library = lambda: Path({str(EMPTY)!r})
"""
SELF_TEST = f"""
import sys
sys.path.insert(0, {str(Path(dynprof.__file__).parent.parent)!r})
{WITHOUT_SYMBOLS}
detached_close_selftest.main()
"""
JOB = (
    TORCH_JOB
    + WITHOUT_SYMBOLS
    + f"""
import os
line = [sys.executable, "-c", {SELF_TEST!r}]
detached_close_selftest.command = lambda _, *arguments, **__: [*line, *arguments]
dp.init("prof_config")
while True:
    train_one_step()
    time.sleep(0.02)
    if dp.status().step % 3 == 0 and not (child := os.fork()):
        train_one_step()
        os._exit(0)
    if dp.status().step % 3 == 0:
        assert os.waitpid(child, 0)[1] == 0
    dp.step()
"""
)
MISSING = (
    "the self-test of the detached close says: "
    "this build of torch lacks functions of the detached close: undefined symbol: "
)
INLINE = re.compile(
    rf"windows close inline: the training pauses for about 20 to 45 ms per 10,000 events; {MISSING}"
)
UNCOUNTED = "limits.max_events and the memory that saving takes are not watched: this build of"
ONE_THREAD = f"only the thread that opens the window is recorded: {MISSING}"


def test_no_other_file_looks_into_libtorch() -> None:
    """No file looks up symbols beyond those that the fallback test removes."""
    files = Path(dynprof.__file__).parent.rglob("*.py")
    found = {path.name for path in files if re.search(r"DLL\(str\(", path.read_text())}
    assert found == {
        "detached_close.py",
        "forks.py",
        "torch_recording.py",
        "library.py",
    }  # the last is dynprof's own


def test_windows_are_whole_and_name_their_cost_without_libtorch_symbols(
    tmp_path: Path,
) -> None:
    """Torch closes the windows; log, ``arm``, ``status`` and manifest say so from the start."""
    assert not any(hasattr(ctypes.CDLL(str(EMPTY)), symbol) for symbol in SYMBOLS)
    with RunningJob(tmp_path, JOB) as job:
        job.when("the self-test's answer", lambda status: MISSING in str(status.profilers))
        code, _, said = command("arm", job.root, "--active", 3, "--wait")
        assert code == 0, said
        assert_all_told(said)
        _, shown, _ = command("status", job.root)
        assert_all_told(shown)
        assert "\nrank 0: windows close inline" in shown
        windows = [job.capture()]
        assert_all_told("\n".join(windows[0][0].remarks))
        for number, asked in enumerate(({"with_stack": True}, {"profile_memory": True}), 2):
            job.edit(**{"with_stack": False, **asked})
            windows.append(job.capture(number))
        for manifest, trace in windows:
            assert manifest.complete
            assert len(steps_in(trace)) == 3
            assert len(operators(trace, "aten::addmm")) == 6
            assert manifest.closing.startswith("inline: ")
        accepted = job.log().partition("request 1: accepted")[2].partition("request 1: ")[0]
        assert_all_told(accepted)


def assert_all_told(text: str) -> None:
    """Fail unless a text says how windows close, which threads they have, and what is unlimited."""
    text = " ".join(text.split())
    assert INLINE.search(text), text
    assert ONE_THREAD in text
    assert UNCOUNTED in text
