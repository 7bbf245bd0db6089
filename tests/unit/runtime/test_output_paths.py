"""Only one module opens output paths, renames, or changes modes by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "dynprof"
WRITING = {
    "chmod", "copy2", "copyfile", "copytree", "fdopen", "hardlink_to", "lchmod",
    "makedirs", "mkdir", "mkdtemp", "mkstemp", "rename", "renames", "symlink", "symlink_to",
    "touch", "truncate", "write_bytes", "write_text", "NamedTemporaryFile", "TemporaryDirectory",
}  # fmt: skip
"""Functions and methods that create, fill or rename a path."""
ALLOWED = {
    "__main__.py": "its own standard streams",
    "runtime/safe_write.py": "it is that module",
    "runtime/safe_open.py": "makes folders by descriptor",
    "analysis/rank_comparison/parquet.py": "a private temporary folder",
    "analysis/runs/query.py": "a private temporary folder",
    "analysis/runs/remote_files.py": "a private temporary folder, and folders behind fsspec",
    "analysis/runs/window_report.py": "a private temporary folder",
    "analysis/runs/executors.py": "its own standard streams",
    "launch/attaching.py": "a private temporary folder",
    "launch/injected.py": "the same, in a process that has not loaded dynprof yet",
    "backends/torch/detached_close_selftest.py": "a private folder; the mode of its cache",
    "captures/exporter.py": "cuts and renames in a private folder",
    "cli/view.py": "a private temporary folder",
    "cli/demo/command.py": "a private temporary folder",
    "cli/demo/idle_cost.py": "a private temporary folder",
    "fleet/agent_tools.py": "a private temporary folder",
    "fleet/commands.py": "appends to the log that is open",
    "fleet/page_results.py": "a private temporary folder",
    "journal/journal.py": "cuts the log that is open",
    "runtime/acting_user.py": "its own standard streams",
    "runtime/fresh_interpreter.py": "a setting of its own in /proc",
    "runtime/side_process.py": "a file in memory",
    "runtime/shared_polling.py": "a folder of /dev/shm that it makes and checks",
    "profiler/closed_window.py": "copies into a private folder",
    "backends/npu.py": "moves from one private folder into another",
    "backends/marks.py": "writes in a private folder",
    "backends/npu_exports.py": "has torch_npu write in a private folder",
    "testing.py": "writes in a private folder",
}
"""Modules that do so where no other user can write, with the place."""


def writes(path: Path) -> set[str]:
    """Return a module's calls that create, fill or rename files by path."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return {ast.unparse(call.func) for call in calls if _writes(call)}


def _writes(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    short = name.rpartition(".")[2]
    if name == "os.open":
        return any(flag in ast.unparse(call) for flag in ("O_WRONLY", "O_RDWR", "O_CREAT"))
    if short == "open":
        return _opens_to_write(call)
    if short == "replace":
        return _is_rename(name, call)
    return short in WRITING or name in ("os.link", "shutil.move")


def _opens_to_write(call: ast.Call) -> bool:
    modes = [*call.args[:2], *(k.value for k in call.keywords if k.arg == "mode")]
    texts = [str(mode.value) for mode in modes if isinstance(mode, ast.Constant)]
    return any(re.fullmatch("[rbt]*[wax+][wabtx+]*", text) for text in texts)


def _is_rename(name: str, call: ast.Call) -> bool:
    """Recognise ``Path.replace(path)``, not ``str.replace(old, new)`` or dataclasses."""
    return name == "os.replace" or (len(call.args) == 1 and not call.keywords)


def test_one_module_writes_files() -> None:
    """All other modules that do are listed, with the reason."""
    found = {
        str(path.relative_to(PACKAGE)): calls
        for path in sorted(PACKAGE.rglob("*.py"))
        if (calls := writes(path))
    }
    assert {name: calls for name, calls in found.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) <= set(found), "an exception that is needed no more"


def test_writing_calls_are_found(tmp_path: Path) -> None:
    """The check finds each planted call, and no harmless one."""
    planted = {
        "open(p, 'w')", "p.open('ab')", "io.open(p, mode='x')", "p.write_text('')", "p.chmod(1)",
        "os.replace(a, b)", "a.rename(b)", "a.replace(b)", "shutil.move(a, b)",
        "os.open(p, os.O_CREAT)",
    }  # fmt: skip
    harmless = {"open(p)", "p.open('rb')", "text.replace(a, b)", "os.open(p, os.O_RDONLY)"}
    for code in planted | harmless:
        (tmp_path / "a.py").write_text(code)
        assert bool(writes(tmp_path / "a.py")) == (code in planted), code
