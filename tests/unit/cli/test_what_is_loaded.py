"""The imports of each command, which are most of a short command's time."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

from dynprof.journal.status import Status
from dynprof.requests.capabilities import Capabilities
from dynprof.runtime.layout import CONFIG_NAME, STATUS_DIR, host_name, pid_namespace
from tests.processes import run

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
import atexit, sys, typer
typers = {*sys.modules}
from dynprof.__main__ import main
atexit.register(lambda: print("\\nloaded", *{*sys.modules} - typers))
main()
"""
ANALYSIS = {"duckdb", "isal", "numpy"}
CONFIG = {"jsonschema", "pydantic", "pydantic_core", "dynprof.config.model"}
SCREEN = {"rich.live", "rich.progress", "rich.table"}
JOB = {"torch", "viztracer", "watchdog", "dynprof.session", "dynprof.launch.attaching"}


def loaded(*arguments: str | Path) -> set[str]:
    """Return the imports of a command that succeeds, without those of Typer."""
    done = run([sys.executable, "-c", CODE, *arguments])
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("\nloaded ")[2].split())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a config's directory with the status and the log of a live rank of this machine."""
    here = Status(
        "idle", host=host_name(), pid=os.getpid(), pid_namespace=pid_namespace(),
        heartbeat=time.time(), profilers=(Capabilities("torch", ("CPU",)),),
    )  # fmt: skip
    for name, content in (
        (f"{STATUS_DIR}/rank_0.json", json.dumps(dataclasses.asdict(here))),
        ("log/dp_host_1_rank_0.log", "2026-01-01 00:00:00.000 INFO rank 0 a line\n"),
        (CONFIG_NAME, '{"active": 1}'),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_list_of_commands_load_no_command(option: str) -> None:
    """Neither a command's module nor its dependencies are imported."""
    found = loaded(option)
    assert option == "--help" or not found & SCREEN
    assert not found & {"psutil", "msgspec", "dynprof.journal", *ANALYSIS, *CONFIG, *JOB}
    assert {name for name in found if name.startswith("dynprof.cli.")} == {"dynprof.cli.app"}


@pytest.mark.parametrize("command", ["status", "log"])
def test_command_that_only_reads_loads_no_config(command: str, directory: Path) -> None:
    """A status file is decoded without pydantic; Typer does not need it for the directory."""
    found = loaded(command, directory)
    assert not found & {"rich.live", "rich.progress", *ANALYSIS, *CONFIG, *JOB}
    assert f"dynprof.cli.{command}" in found


@pytest.mark.parametrize("command", ["validate", "arm"])
def test_command_for_the_config_loads_no_screen(command: str, directory: Path) -> None:
    """Only commands that show tables and bars load them; these commands read no traces."""
    assert not loaded(command, directory) & {*SCREEN, *ANALYSIS, *JOB}
