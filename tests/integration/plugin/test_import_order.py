"""The plugin in a script that imports torch after it, or never."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests import warm_interpreter
from tests.processes import run

if TYPE_CHECKING:
    from pathlib import Path

LATE = """
import dynprof as dp
dp.init("prof_config", plugin=True)

import dynprof.mstx as mstx
import torch
found = []
with mstx.subscribe(found.append):
    torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()
print(*(marker.message for marker in found))
"""


def output(script: str, folder: Path, needs: tuple[str, ...], **env: str) -> tuple[str, str]:
    """Run a script that must succeed; return its output and its errors."""
    pytest.importorskip("torch", reason="torch is not installed")
    done = warm_interpreter.run(script, folder, {**os.environ, **env}, needs=needs)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_torch_may_be_imported_later(tmp_path: Path) -> None:
    """A plugin imported before torch gives one warning, and marks later."""
    pytest.importorskip("torch", reason="torch is not installed")
    script = tmp_path / "job.py"
    script.write_text(LATE)
    done = run([sys.executable, str(script)], cwd=tmp_path)
    assert done.stdout.split() == ["forward", "backward"]
    (line,) = (line for line in done.stderr.splitlines() if "dynprof.plugin" in line)
    assert line.startswith(f"{script}:3: UserWarning: dynprof.plugin marks nothing before torch ")


VENDORS = """
import torch
import dynprof.plugin
dynprof.plugin.install()

import mstx_torch_plugin
print(mstx_torch_plugin.__name__)
"""


def test_the_vendors_import_of_the_plugin_works_after_an_install(tmp_path: Path) -> None:
    """``import mstx_torch_plugin`` finds dynprof's plugin; a real one stays."""
    assert output(VENDORS, tmp_path, warm_interpreter.WITH_TORCH)[0] == "dynprof.plugin\n"
    (tmp_path / "mstx_torch_plugin.py").write_text("")
    assert output(VENDORS, tmp_path, warm_interpreter.WITH_TORCH)[0] == "mstx_torch_plugin\n"


ASKED_BY_THE_ENVIRONMENT = """
import dynprof as dp
dp.init("prof_config")

import torch
import mstx_torch_plugin
import dynprof.mstx as mstx
optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)])
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
optimizer.step()
found = []
with mstx.subscribe(found.append):
    optimizer.step()
print(*(marker.message for marker in found), sep=", ")
"""


def test_the_vendors_import_after_torch_marks_if_the_variable_is_set(tmp_path: Path) -> None:
    """With DYNPROF_PLUGIN=1 ``import mstx_torch_plugin`` marks, without a warning."""
    needs = warm_interpreter.WITHOUT_TORCH
    marked, errors = output(ASKED_BY_THE_ENVIRONMENT, tmp_path, needs, DYNPROF_PLUGIN="1")
    assert marked == "optimizer.step, step 1\n", errors
    assert "dynprof.plugin" not in errors


FOUND_BY_THE_SESSION = """
import time
import dynprof as dp
dp.init("prof_config")

import torch
while not hasattr(torch.autograd.backward, "dynprof_put"):
    time.sleep(0.01)
"""


def test_a_session_finds_torch_for_the_plugin(tmp_path: Path) -> None:
    """A later import of torch is marked soon, also without a window."""
    output(FOUND_BY_THE_SESSION, tmp_path, warm_interpreter.WITHOUT_TORCH, DYNPROF_PLUGIN="1")


UNINSTALLED = """
import torch
import dynprof.plugin
dynprof.plugin.uninstall()
import mstx_torch_plugin
print(hasattr(torch.autograd.backward, "dynprof_put"))
"""


def test_the_vendors_import_installs_the_plugin_again(tmp_path: Path) -> None:
    """After an uninstall the first ``import mstx_torch_plugin`` installs it again."""
    assert output(UNINSTALLED, tmp_path, warm_interpreter.WITH_TORCH)[0] == "True\n"


def test_an_import_of_the_plugin_warns_at_its_own_line(tmp_path: Path) -> None:
    """Python's import machinery has no line that a user wrote, so it is skipped."""
    script = tmp_path / "job.py"
    script.write_text("\n\nimport dynprof.plugin\n")
    done = run([sys.executable, str(script)], cwd=tmp_path)
    assert done.stderr.startswith(f"{script}:3: UserWarning: dynprof.plugin marks nothing before")
