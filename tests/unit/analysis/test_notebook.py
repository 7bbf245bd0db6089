"""The notebook in ``examples/``, executed cell by cell in IPython as a kernel of Jupyter does."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from tests import rank_traces
from tests.processes import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

KERNEL = """
import json, sys
from traitlets.config import Config
from IPython.core.interactiveshell import InteractiveShell
sys.modules["ipywidgets"] = None  # as where it is not installed
shell = InteractiveShell.instance(config=Config(IPKernelApp={}))  # by which DuckDB knows Jupyter
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        shell.run_cell("".join(cell["source"])).raise_error()
"""
"""Runs a notebook. Its ``__main__`` has no file, like that of a kernel."""


def test_the_notebook_runs_in_jupyter(tmp_path: Path) -> None:
    """Every cell runs, also without ipywidgets and pandas, and shows the slowest operator."""
    (tmp_path / "prof_config").mkdir()
    rank_traces.write(tmp_path / "prof_config", 0)
    notebook = ROOT / "examples/notebook.ipynb"
    assert not any(cell.get("outputs") for cell in json.loads(notebook.read_text())["cells"])
    env = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")}
    done = run([sys.executable, "-c", KERNEL, notebook], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    length = sum(e["dur"] for e in rank_traces.events(0, 0, 0, 0) if e["name"] == "gloo:all_reduce")
    assert f"{length / 1000:.3f} ms {rank_traces.STEPS:6} x gloo:all_reduce" in done.stdout
    assert "prof_config" in done.stdout


def test_the_import_of_the_analysis_loads_no_database() -> None:
    """DuckDB and numpy are loaded by the first call, not by the import."""
    code = "import sys, dynprof.analysis; print({'duckdb', 'numpy'} & {*sys.modules})"
    assert run([sys.executable, "-c", code]).stdout.strip() == "set()"
