"""The rules of the architecture hold: imports run one way, and ``import dynprof`` is light."""

from __future__ import annotations

import ast
import functools
import re
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import dynprof
from tests.processes import run

PACKAGE = Path(dynprof.__file__).parent
PACKAGES = """
errors version
runtime
extras
marks.native
marks
mstx npu
phases
plugin
config
requests
backends.collectors
backends.base backends.call_tracing
backends.torch
backends
journal
watch
captures
analysis.reading
analysis.measures.timeline
analysis.measures
analysis.vendor_files
analysis.rank_comparison
analysis.findings
analysis.sql_views
analysis.report
analysis.runs
analysis
windows
steps
ranks
session
dynamic_profile
launch
profiler
acl
integrations
testing
__init__
fleet
cli
cli.demo
__main__
"""
"""The packages in order: each imports only from those above it in this list.

A name is a module of the package's root, or a folder with its content.
"""

ANALYSIS_SEES = {"analysis", "captures.broken_names", "captures.manifest", "captures.window_record"}
ANALYSIS_SEES |= {"captures.baselines", "errors", "extras", "runtime", "version"}
CLI_SEES = {"analysis", "captures", "cli", "config", "errors", "fleet", "journal", "marks"}
CLI_SEES |= {
    "extras",
    "launch",
    "runtime",
    "requests",
    "steps",
    "version",
}

TORCH_MODULES = {
    f"backends.torch.{name}"
    for name in (
        "backend",
        "collectors",
        "detached_close",
        "detached_close_selftest",
        "features",
        "kineto",
        "open_annotations",
        "operator_stream",
        "torch_recording",
    )
}
TORCH_MODULES |= {"backends.npu", "cli.demo.torch_job"}

RUNS_TEXT = {"eval", "exec", "compile", "__import__", "import_module", "system", "popen"}
RUNS_TEXT |= {"getoutput", "getstatusoutput", "Unpickler", "execfile"}
RUNS_TEXT_OF = {"pickle", "marshal", "shelve", "dill", "yaml"}
"""Modules whose ``load`` makes objects from bytes."""


@functools.cache
def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name below ``dynprof``."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts)] = path
    return found


@functools.cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> set[str]:
    """Return the modules of dynprof that a file imports, including those for type checking."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = (_folder_of(path, node.level), node.module)
            names.update(".".join(filter(None, (*home, alias.name))) for alias in node.names)
    return set(filter(None, map(_module, names)))


def _folder_of(path: Path, level: int) -> str:
    """Return the dotted name of a relative import's base; empty for none."""
    return ".".join(("dynprof", *path.relative_to(PACKAGE).parts)[:-level]) if level else ""


def _module(name: str) -> str:
    """Return the module of dynprof to which an imported name belongs; otherwise empty."""
    if name.partition(".")[0] != "dynprof":
        return ""
    known, name = modules(), name.removeprefix("dynprof").removeprefix(".") or "__init__"
    while name not in known and f"{name}.__init__" not in known:
        name = name.rpartition(".")[0] or "__init__"
    return name if name in known else f"{name}.__init__"


def floor(module: str, packages: str = PACKAGES) -> int:
    """Return the line of a module's package: its own, or that of its folder."""
    name = module.removesuffix(".__init__")
    while name:
        for number, names in enumerate(packages.split("\n")):
            if name in names.split():
                return number
        name = name.rpartition(".")[0]
    raise AssertionError(f"{module} is in no package")


def upward(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Return the imports from a package that is lower in the list."""
    return {(a, b) for a, below in graph.items() for b in below if floor(b) > floor(a)}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other in a circle; empty if there are none."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def graph() -> dict[str, set[str]]:
    """Return the imports of each module."""
    return {module: imports(path) - {module} for module, path in modules().items()}


def test_rooms_import_from_lower_rooms_only() -> None:
    """No module imports from a package above its own, not even for type checking."""
    assert upward(graph()) == set()


def test_no_modules_import_each_other() -> None:
    """There is no circle between files, not even for type checking."""
    assert circle(graph()) == []


def test_a_planted_wrong_import_and_a_planted_circle_are_found() -> None:
    """The checks find a planted wrong import and a planted circle."""
    real = graph()
    up = {**real, "runtime.layout": real["runtime.layout"] | {"windows.loop"}}
    assert upward(up) == {("runtime.layout", "windows.loop")}
    around = {**real, "windows.window": real["windows.window"] | {"windows.loop"}}
    assert {"windows.window", "windows.loop"} <= set(circle(around))


def packages() -> dict[str, set[str]]:
    """Return for each folder its modules that others import."""
    used: dict[str, set[str]] = {}
    for module, names in graph().items():
        for name in names:
            folder, _, last = name.rpartition(".")
            if last != "__init__" and not f"{module}.".startswith(f"{folder}."):
                used.setdefault(folder, set()).add(last)
    return {folder: names for folder, names in used.items() if folder}


def test_each_package_lists_its_public_modules() -> None:
    """Every folder's ``__init__`` has its purpose, and exactly the modules that others use."""
    used = packages()
    for module, path in modules().items():
        if module.endswith(".__init__"):
            said = ast.get_docstring(tree(path)) or ""
            folder = module.removesuffix(".__init__")
            assert len(said.split()) >= 15, path
            assert used.get(folder, set()) - set(re.findall(r"``(\w+)``", said)) == set(), path
            _, _, others_use = said.partition("Others use ")
            named = set(re.findall(r"``(\w+)``", re.split(r"\.\s|;", others_use)[0]))
            assert named <= used.get(folder, set()), path


def test_the_architecture_page_lists_all_packages() -> None:
    """It has every package, the outer ones in this order, and all files that it names exist."""
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    shown = re.findall(r"`(\w+)/`", "".join(re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)))
    packages = [name for name in PACKAGES.split() if (PACKAGE / _folder(name)).is_dir()]
    outer = [name for name in packages if "." not in name]
    assert shown[: len(outer)] == outer
    assert sorted(shown) == sorted(name.rpartition(".")[2] for name in packages)
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.*")}
    files |= {name.rpartition("/")[2] for name in files} | {"hatch_build.py"}
    named = set(re.findall(r"[\w/]+\.py\b", page)) - {
        "tests/unit/test_layers.py",
        "tests/unit/runtime/test_output_paths.py",
    }
    assert named <= files


def _folder(package: str) -> str:
    return package.replace(".", "/")


def test_the_command_line_changes_files_and_nothing_else() -> None:
    """``cli/`` never imports session or backends; the demo's jobs import ``dynprof`` itself."""
    for module, names in graph().items():
        if module.startswith("cli."):
            job = {"__init__"} if module.startswith("cli.demo.") else set()
            assert {name.split(".")[0] for name in names} - job <= CLI_SEES, module


def test_analysis_needs_no_live_process() -> None:
    """``analysis/`` imports manifests and traces: it runs on another machine, without torch."""
    for module, names in graph().items():
        if module.startswith("analysis."):
            seen = {name if name in ANALYSIS_SEES else name.split(".")[0] for name in names}
            assert seen <= ANALYSIS_SEES, module


def test_the_import_is_light() -> None:
    """``import dynprof`` loads none of the heavy packages."""
    heavy = {"torch", "pydantic", "jsonschema", "watchdog", "psutil", "numpy", "msgspec"}
    done = run([sys.executable, "-c", "import sys, dynprof; print(*sys.modules)"])
    assert "dynprof" in done.stdout
    assert heavy & set(done.stdout.split()) == set()


def test_only_torchs_backends_import_torch() -> None:
    """Only the backends import torch, inside functions; the demo's job is a user's script."""
    found = set()
    for module, path in modules().items():
        for node in ast.walk(tree(path)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(n.split(".")[0] == "torch" for n in names):
                found.add(module)
    assert found == TORCH_MODULES


def runs_text(tree: ast.AST) -> list[str]:
    """Return the calls that run a text as code or command, or make objects from bytes."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            home, _, last = name.rpartition(".")
            loads = home in RUNS_TEXT_OF and last.startswith(("load", "open"))
            if loads or (last in RUNS_TEXT and home != "re"):
                found.append(name)
            found += ["shell" for word in node.keywords if word.arg == "shell"]
    return found


def test_data_is_never_executed() -> None:
    """Entry points import by fixed names; only dynprof's own pipes are unpickled."""
    pipes = {"analysis.reading.trace", "analysis.runs.executors"}
    for module, path in modules().items():
        by_name = module.endswith("__init__") or module == "cli.app"
        allowed = {"importlib.import_module"} if by_name else set()
        allowed |= {"pickle.load", "pickle.loads"} if module in pipes else set()
        assert set(runs_text(tree(path))) <= allowed, module
    planted = "eval(a); pickle.loads(b); os.system(c); run(d, shell=True); __import__(e)"
    assert len(runs_text(ast.parse(planted))) == 5


def test_there_is_one_broad_except() -> None:
    """Broad excepts are in the boundary, before it exists, and for a waiting thread."""
    broad = []
    for module, path in modules().items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ExceptHandler):
                kind = ast.unparse(node.type) if node.type else "everything"
                if kind in ("everything", "Exception", "BaseException"):
                    broad.append(module)
    places = ["backends.torch.closing", "launch.injected", "runtime.error_boundary"]
    assert sorted(broad) == places


def test_reading_a_status_loads_no_backend() -> None:
    """Commands start quickly, and a script's own ``queue.py`` does not get in their way."""
    code = (
        "import sys, dynprof.cli.status, dynprof.cli.run, dynprof.cli.history\n"
        "print([name for name in sys.modules if name.startswith('dynprof.backends')])"
    )
    done = run([sys.executable, "-c", code])
    assert done.stdout == "[]\n"
