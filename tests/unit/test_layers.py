"""The house stays a house: imports run one way, the walls stand, the face is light."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import dynprof
from tests.processes import run

PACKAGE = Path(dynprof.__file__).parent
LAYERS = [
    {
        "mstx",
        "caution",
        "npu",
        "errors",
        "layout",
        "clock",
        "rank",
        "version",
        "offer",
        "plural",
        "switching",
        "threads",
        "stderr",
        "interruptions",
        "docket",
        "leftovers",
        "regular",
        "interpreter",
        "greenlets",
    },
    {"config", "capture", "snapshot", "statusfile", "journal", "pace", "wall"},
    {"edits", "editing", "furnish", "watch", "plan", "request"},
    {"companions"},
    {"backends"},
    {"diskguard", "packing", "export", "aftermath", "profiler.schedule", "profiler.window"},
    {
        "bill",
        "inbox",
        "ledger",
        "turns",
        "limits",
        "stranded",
        "process",
        "loop",
        "reception",
        "ending",
        "session",
        "testing",
    },
    {"opening", "dynamic_profile", "profiler", "analysis", "acl"},
    {"__init__", "cli", "demo", "profiler.__init__"},
]
"""A module imports from its own layer and those before it; cycles are looked for besides."""

ANALYSIS_SEES = {"analysis", "capture", "errors", "interpreter", "layout", "regular", "version"}
ANALYSIS_SEES |= {"plural"}
CLI_SEES = {"capture", "cli", "config", "errors", "layout", "plan", "request", "snapshot"}
CLI_SEES |= {"analysis", "version", "journal", "clock", "docket", "editing", "furnish", "regular"}
CLI_SEES |= {"interpreter", "plural"}

TORCH_MODULES = {
    f"backends.{name}"
    for name in (
        "npu",
        "torch",
        "torch_features",
        "torch_recording",
        "forks",
        "moments",
        "kineto",
        "libtorch",
        "selftest",
        "annotations",
        "scripts_claim",
    )
}
TORCH_MODULES |= {
    "backends.memory",
    "backends.operators",
    "backends.operator_stream",
    "demo.torch_job",
}


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name below ``dynprof``."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts)] = path
    return found


def imports(path: Path, *, at_run_time: bool = False) -> set[str]:
    """Return the dynprof modules that a file imports, without those for type checking only."""
    tree = ast.parse(path.read_text())
    typing_only: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            typing_only.update(child for part in node.body for child in ast.walk(part))
    nodes = tree.body if at_run_time else ast.walk(tree)
    names: set[str] = set()
    for node in nodes:
        if node in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {n.removeprefix("dynprof").lstrip(".") or "__init__" for n in names if _ours(n)}


def _ours(name: str) -> bool:
    return name == "dynprof" or name.startswith("dynprof.")


def layer(module: str) -> int:
    """Return the layer of a module: its own line, or that of its package."""
    for key in (module, module.split(".", 1)[0]):
        for number, names in enumerate(LAYERS):
            if key in names:
                return number
    raise AssertionError(f"{module} stands in no layer")


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_run_towards_the_lower_layers(module: str) -> None:
    """No module imports, at its top, from a layer above its own."""
    above = {
        name
        for name in imports(modules()[module], at_run_time=True)
        if layer(name) > layer(module) and module != "profiler.__init__"
    }
    assert above == set()


def test_the_command_line_changes_files_and_nothing_else() -> None:
    """``cli/`` sees config, layout, plans and what was written, never session or backends."""
    for module, path in modules().items():
        if module.startswith("cli."):
            assert {name.split(".")[0] for name in imports(path)} <= CLI_SEES, module


def test_analysis_needs_no_live_process() -> None:
    """``analysis/`` sees manifests and traces: it runs on another machine, without torch."""
    for module, path in modules().items():
        if module.startswith("analysis."):
            assert {name.split(".")[0] for name in imports(path)} <= ANALYSIS_SEES, module


@pytest.mark.parametrize(
    "heavy", ["torch", "pydantic", "jsonschema", "watchdog", "psutil", "numpy", "msgspec"]
)
def test_the_import_is_light(heavy: str) -> None:
    """``import dynprof`` loads none of the heavy packages."""
    code = f"import sys, dynprof; sys.exit({heavy!r} in sys.modules)"
    assert run([sys.executable, "-c", code]).returncode == 0


def test_only_torchs_backends_import_torch() -> None:
    """Torch stands in its backends, inside functions; the demo's job is a user's script."""
    for module, path in modules().items():
        if module in TORCH_MODULES:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(n == "torch" or n.startswith("torch.") for n in names), module


def test_there_is_one_broad_except() -> None:
    """Failures are caught broadly in one place, the wall."""
    broad = []
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                kind = ast.unparse(node.type) if node.type else "everything"
                if kind in ("everything", "Exception", "BaseException"):
                    broad.append(module)
    assert broad == ["wall"]


def test_files_stay_small() -> None:
    """No module outgrows about 300 lines."""
    lines = {module: len(path.read_text().splitlines()) for module, path in modules().items()}
    assert {module: count for module, count in lines.items() if count > 310} == {}
