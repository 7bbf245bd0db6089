"""Stacks of this process, and reasons why another process has none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.runtime import stacks
from dynprof.runtime.stacks import (
    is_of_a_library,
    place_in,
    stacks_here,
    stacks_of,
    uncaught_exception,
)
from tests.processes import start

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = "/env/lib/python3.11"


def test_the_stacks_of_this_process_have_the_main_thread_first() -> None:
    """Threads have their names; a stack begins with the innermost function."""
    begun, end = threading.Event(), threading.Event()

    def read_file() -> None:
        begun.set()
        end.wait()

    reader = threading.Thread(target=read_file, name="a reader")
    reader.start()
    begun.wait()
    found = stacks_here(os.getpid())
    end.set()
    reader.join()
    assert found.training is found.threads[0]
    assert found.training.frames[0].startswith("stacks_here (")
    (stack,) = (one.frames for one in found.threads if one.name == "a reader")
    assert [frame for frame in stack if ".read_file (" in frame and __file__ in frame]


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (["Model.load (/data/a.py:12)", "<module> (/data/a.py:40)"], "/data/a.py:12 in load"),
        (
            [f"Event.wait ({LIBRARY}/threading.py:324)", "load (/data/train.py:12)"],
            "wait (threading.py:324), called at /data/train.py:12 in load",
        ),
        ([f"wait ({LIBRARY}/threading.py:324)"], "wait (threading.py:324)"),
        (["... 30 frames are left out ..."], ""),
        ([], ""),
    ],
)
def test_a_place_is_the_function_and_the_line_of_the_script(frames: list[str], place: str) -> None:
    """Functions of Python and of packages are not the script's."""
    assert place_in(frames) == place


def test_without_py_spy_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Name and state of the process are known without it."""
    monkeypatch.setattr(stacks, "py_spy", lambda: None)
    found = stacks_of(os.getppid())
    assert (bool(found.name), bool(found.state), found.threads) == (True, True, ())
    assert found.why_none == "py-spy is not installed; pip install 'dynprof[stacks]' adds it"


def test_a_process_that_has_ended_is_named() -> None:
    """Child processes end while the others are read."""
    ended = start(["true"])
    ended.wait()
    assert stacks_of(ended.pid).why_none == "it has ended"


def test_the_setting_of_the_system_that_forbids_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reason is not the stack of py-spy itself."""
    (tmp_path / "scope").write_text("1\n")
    monkeypatch.setattr(stacks, "YAMA", tmp_path / "scope")
    denied = b"Error: Permission denied (os error 13)\n\nStack backtrace:\n   0: py_spy::run\n"
    _py_spy_prints(monkeypatch, b"", denied)
    why = stacks_of(os.getppid()).why_none
    assert why.startswith("py-spy may not read it: only its parent may; run this as root, or set ")
    _py_spy_prints(monkeypatch, b"", b"Error: no Python\n\nCaused by:\n    no symbols\n")
    assert stacks_of(os.getppid()).why_none == (
        "py-spy cannot read it: Error: no Python; no symbols"
    )


def test_an_unknown_output_of_py_spy_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is named, without stacks."""
    _py_spy_prints(monkeypatch, json.dumps([{"frames": []}]).encode(), b"")
    assert stacks_of(os.getppid()).why_none == "this version of py-spy has another output"


def _py_spy_prints(monkeypatch: pytest.MonkeyPatch, output: bytes, errors: bytes) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        assert "--nonblocking" in command
        return subprocess.CompletedProcess(command, 0, output, errors)

    monkeypatch.setattr(stacks, "py_spy", lambda: "py-spy")
    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize(
    ("file", "is_package"),
    [
        ("/usr/lib/python3.11/threading.py", True),
        ("/data/env/lib/python3.12/site-packages/mine/a.py", True),
        ("/workspace/vllm/vllm/worker.py", True),
        ("/workspace/sglang/python/sglang/srt/engine.py", True),
        ("/home/me/train.py", False),
        ("/home/me/vllm/train.py", False),
    ],
)
def test_packages_and_checkouts_of_frameworks_are_not_the_script(
    file: str, is_package: bool
) -> None:
    """The place in the script is what an operator looks for, as in the report."""
    assert is_of_a_library(file) == is_package


def uncaught(script: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what is known after an exception has left a script."""
    try:
        exec(compile(script, "/data/train.py", "exec"), {"__name__": "__main__"})  # noqa: S102
    except BaseException as error:
        trace = error.__traceback__ and error.__traceback__.tb_next
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        monkeypatch.setattr(sys, "last_traceback", trace, raising=False)
    return uncaught_exception()


def test_the_exception_that_ends_a_script_is_named_without_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message may have secrets; Ctrl-C and an interactive session are no failures."""
    assert uncaught("", monkeypatch) == ""
    script = "def load():\n    raise ValueError('S3CRET')\nload()"
    assert uncaught(script, monkeypatch) == "ValueError at /data/train.py:2 in load"
    script = "import json\njson.loads('{')"
    assert uncaught(script, monkeypatch).startswith(
        "json.decoder.JSONDecodeError at raw_decode (decoder.py:"
    )
    assert uncaught(script, monkeypatch).endswith("called at /data/train.py:2 in <module>")
    assert uncaught("class Bad(Exception): pass\nraise Bad", monkeypatch).startswith("Bad at ")
    assert uncaught("raise KeyboardInterrupt", monkeypatch) == ""
    uncaught("1 / 0", monkeypatch)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert uncaught_exception() == ""


def test_an_exception_that_c_code_has_printed_has_not_ended_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interpreter keeps that of a callback, too."""
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        monkeypatch.setattr(sys, "last_traceback", error.__traceback__, raising=False)
    assert uncaught_exception() == ""
