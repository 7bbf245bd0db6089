"""The plugin in a script that imports torch after it, or never."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

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


def test_torch_may_be_imported_later(tmp_path: Path) -> None:
    """A plugin that is imported before torch marks later, and one warning says so."""
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
    """``import mstx_torch_plugin`` finds dynprof's plugin; a real one of that name stays."""
    pytest.importorskip("torch", reason="torch is not installed")
    done = run([sys.executable, "-c", VENDORS], cwd=tmp_path)
    assert done.stdout == "dynprof.plugin\n", done.stderr
    (tmp_path / "mstx_torch_plugin.py").write_text("")
    done = run([sys.executable, "-c", VENDORS], cwd=tmp_path)
    assert done.stdout == "mstx_torch_plugin\n", done.stderr


def test_an_import_of_the_plugin_warns_at_its_own_line(tmp_path: Path) -> None:
    """Python's import machinery lies between; it is nobody's line."""
    script = tmp_path / "job.py"
    script.write_text("\n\nimport dynprof.plugin\n")
    done = run([sys.executable, str(script)], cwd=tmp_path)
    assert done.stderr.startswith(f"{script}:3: UserWarning: dynprof.plugin marks nothing before")
