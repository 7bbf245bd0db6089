"""Environment and command line tell which directory to watch, and which processes are ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.launch.environment import (
    CONFIG,
    VENDORS_CONFIG,
    WATCHED,
    Program,
    rank_text,
    requested_directory,
    why_not_a_rank,
)

if TYPE_CHECKING:
    from pathlib import Path


def program(line: str) -> Program:
    """Return the program of an interpreter's command line; its arguments follow ``|``."""
    before, _, after = line.partition(" | ")
    called, rest = before.split(), after.split()
    kind = next((word[:2] for word in called[1:] if word[:2] in ("-m", "-c")), None)
    first = kind or (called[-1] if len(called) > 1 else "")
    return Program.of([*called, *rest], [first, *rest])


@pytest.mark.parametrize(
    ("line", "kind", "name"),
    [
        ("python train.py | --lr 0.1 -m", "script", "train.py"),
        ("python -u -W ignore -X dev train.py | -c", "script", "train.py"),
        ("python -m train | x", "module", "train"),
        ("python -mtrain | -m x", "module", "train"),
        ("python -u -m package.train | --m", "module", "package.train"),
        ("python -c code | -m x", "code", "code"),
        ("python", "terminal", ""),
    ],
)
def test_the_program_of_an_interpreter_is_found(line: str, kind: str, name: str) -> None:
    """The interpreter's options and the script's arguments are separated."""
    assert program(line) == Program(kind, name)


@pytest.mark.parametrize(
    "line",
    [
        "python /env/bin/torchrun | train.py",
        "python -m torch.distributed.run | train.py",
        "python -m torch.distributed.launch | train.py",
        "python /env/bin/accelerate | launch train.py",
        "python -m accelerate.commands.launch | train.py",
        "python /env/bin/deepspeed | train.py",
        "python -u -m deepspeed.launcher.launch | train.py",
        "python /env/bin/pip | install x",
        "python -m pip | install x",
        "python setup.py | install",
        "python /env/lib/python3.11/site-packages/pip/__main__.py | install x",
        "python /env/bin/dynprof | status",
        "python -m dynprof | status",
        "python -I -B /env/dynprof/runtime/fresh_interpreter.py | {} dynprof.captures.sender",
        "python -m torch._inductor.compile_worker | x",
        "python -c from_multiprocessing.spawn_import_spawn_main | x",
        "python -m joblib.externals.loky.backend.popen_loky_posix | x",
        "python",
    ],
)
def test_processes_that_are_not_ranks(line: str) -> None:
    """Launchers, tools, pool workers and a terminal are left alone, with a reason."""
    assert why_not_a_rank(program(line), {}, 1)


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "python -m package.train",
        "python -c train()",
        "python pipeline.py",
        "python ray.py",
        "python experiments/composer.py",
    ],
)
def test_a_script_is_a_rank(line: str) -> None:
    """Any other program that starts with the variable is a rank, whatever its name."""
    assert why_not_a_rank(program(line), {}, 1) == ""


def test_children_of_a_rank_are_not_ranks_of_a_launcher() -> None:
    """A child of a watched process is none, unless it has become another rank."""
    script = program("python other.py")
    first = {"RANK": "0", "LOCAL_RANK": "0"}
    left = {**first, WATCHED: f"7 {rank_text(first)}"}
    assert "process 7" in why_not_a_rank(script, left, 8)
    assert why_not_a_rank(script, left, 7) == ""  # it executes another program
    assert why_not_a_rank(script, {**left, "RANK": "1", "LOCAL_RANK": "1"}, 8) == ""
    assert why_not_a_rank(script, {WATCHED: "7 ", **first}, 8) == ""
    assert why_not_a_rank(script, {WATCHED: "7 "}, 8)


def test_the_vendors_variable_is_used_without_dynprof_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without DYNPROF_CONFIG, PROF_CONFIG_PATH is used unless torch_npu is installed."""
    both = {CONFIG: "ours", VENDORS_CONFIG: "vendors"}
    text = "PROF_CONFIG_PATH=vendors is not watched; DYNPROF_CONFIG takes precedence"
    assert requested_directory({VENDORS_CONFIG: "vendors"}) == ("vendors", "")
    assert requested_directory(both) == ("ours", text)
    assert requested_directory({**both, VENDORS_CONFIG: "ours"}) == ("ours", "")
    assert requested_directory({}) == ("", "")
    (tmp_path / "torch_npu.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    directory, why = requested_directory({VENDORS_CONFIG: "vendors"})
    assert (directory, "torch_npu is installed and reads it" in why) == ("", True)
