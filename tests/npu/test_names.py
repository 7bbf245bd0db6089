"""The public names of the newest torch_npu next to those of dynprof.

dynprof accepts every call that the vendor accepts. This covers public modules, names, methods,
arguments, defaults and values of enumerations. Additional names of dynprof do not count.
docs/profiler.md lists the intended differences.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

import dynprof
from dynprof.profiler import _ExperimentalConfig, _KinetoProfile, profile, schedule
from tests.npu.fetch import WHEELS_DIR
from tests.npu.vendors_names import REQUIRED, Class, Expression, Function, VendorText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(
    not WHEELS_DIR.is_dir(), reason="the wheels of torch_npu are fetched by make npu"
)
PAGE = Path(__file__).parents[2] / "docs" / "profiler.md"
SECTION = "## Differences from torch_npu"
NO_MODULES = {
    "npu.mstx": SimpleNamespace(mstx=dynprof.npu.mstx, annotate=dynprof.mstx.annotate),
    "profiler.analysis": SimpleNamespace(),
}
"""Replacements for modules of the vendor that cannot be imported here."""
OBJECTS: dict[str, Callable[[], object]] = {
    "_ExperimentalConfig": _ExperimentalConfig,
    "_KinetoProfile": lambda: _KinetoProfile(backend="python"),
    "profile": lambda: profile(backend="python"),
    "Schedule": lambda: schedule(1, 1),
    "annotate": dynprof.mstx.annotate,
}
"""Functions that make objects of classes with public attributes."""


def newest() -> Path:
    """Return the package of the newest version that ``make npu`` fetched."""
    folders = [path for path in WHEELS_DIR.iterdir() if path.is_dir()]
    return max(folders, key=lambda path: Version(path.name)) / "torch_npu"


def differences(vendor: VendorText) -> Iterator[str]:
    """Yield public names of the vendor that are missing here or differ."""
    compared: set[tuple[str, str]] = set()
    for module in vendor.public_modules():
        try:
            ours: Any = importlib.import_module(f"dynprof.{module}")
        except ModuleNotFoundError:
            yield f"import {module}"
            ours = NO_MODULES.get(module, SimpleNamespace())
        for name in vendor.public_names(module):
            if not hasattr(ours, name):
                yield f"{module}.{name}"
                continue
            found = vendor.find(module, name)
            if found and (found.module, found.name) not in compared:
                compared.add((found.module, found.name))
                yield from _of_object(found.name, found.what, getattr(ours, name))


def _of_object(name: str, theirs: Function | Class, ours: Any) -> Iterator[str]:
    if isinstance(theirs, Function):
        yield from _of_arguments(name, theirs, ours)
        return
    for method, function in theirs.methods.items():
        if method == "__call__" and not callable(OBJECTS[ours.__name__]()):
            yield f"{name}.{method}"
        elif hasattr(ours, method):
            yield from _of_arguments(f"{name}.{method}", function, getattr(ours, method))
        else:
            yield f"{name}.{method}"
    for value_name, value in theirs.values.items():
        member = getattr(ours, value_name, None)
        if getattr(member, "value", member) != value:
            yield f"{name}.{value_name}={value!r}"
    if theirs.attributes:
        made = OBJECTS[ours.__name__]() if ours.__name__ in OBJECTS else ours
        yield from (f"{name}.{one}" for one in theirs.attributes if not hasattr(made, one))


def _of_arguments(name: str, theirs: Function, ours: Any) -> Iterator[str]:
    parameters = dict(inspect.signature(ours).parameters)
    if next(iter(parameters), "") == "self":
        del parameters["self"]
    for argument in theirs.arguments:
        here = parameters.get(argument.name)
        if here is None:
            yield f"{name}({argument.name})"
            continue
        by_place = here.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        place = list(parameters).index(argument.name) if by_place else None
        if argument.place is not None and argument.place != place:
            yield f"{name}({argument.name} at {argument.place})"
        value = argument.default
        if value is not REQUIRED and value != here.default:
            yield f"{name}({argument.name}={_shown(value)})"


def _shown(value: object) -> str:
    return value.text if isinstance(value, Expression) else repr(value)


def meant() -> list[str]:
    """Return the differences that docs/profiler.md lists."""
    table = PAGE.read_text().split(SECTION)[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_difference_from_the_newest_torch_npu_is_meant() -> None:
    """Names, arguments and defaults are the vendor's, except those that the page lists."""
    found, listed = set(differences(VendorText(newest()))), set(meant())
    assert (found - listed, listed - found) == (set(), set())


def test_activities_that_the_vendor_names_are_here() -> None:
    """The activities, which native code defines, have the members that the vendor's text uses."""
    text = "".join(path.read_text() for path in WHEELS_DIR.rglob("profiler/*.py"))
    named = set(re.findall(r"\bProfilerActivity\.([A-Z]\w*)\b", text))
    assert named <= {member.name for member in dynprof.profiler.ProfilerActivity}


@pytest.mark.parametrize(
    ("file", "old", "newer", "found"),
    [
        ("scheduler", "active: int,", "active: int,\n        pause: int = 0,", "(pause)"),
        ("scheduler", "repeat: int = 0", "repeat: int = 1", "(repeat=1)"),
        ("experimental_config", "AiCoreNone = Constant.AicMetricsNone", "New = 1", "New=1"),
        ("profiler", '"analyse",', '"analyse", "_default_schedule_fn",', "._default_schedule_fn"),
        ("profiler", "def set_custom_trace_id_callback", "def rename", "profile.rename"),
    ],
)
def test_a_change_of_the_vendor_is_a_difference(
    tmp_path: Path, file: str, old: str, newer: str, found: str
) -> None:
    """The comparison finds a new argument, default, member, name or method."""
    shutil.copytree(newest() / "profiler", tmp_path / "profiler")
    (tmp_path / "npu").mkdir()
    shutil.copy(newest() / "npu" / "mstx.py", tmp_path / "npu")
    changed = tmp_path / "profiler" / f"{file}.py"
    changed.write_text(changed.read_text().replace(old, newer))
    new = set(differences(VendorText(tmp_path))) - set(meant())
    assert any(found in difference for difference in new), new
