"""A reader of torch_npu's public names from its source text; it imports nothing of it."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


IN_DOCUMENTS = {"profiler": ["_KinetoProfile"]}
"""Names that the vendor documents but ``__all__`` omits."""
REQUIRED = object()
"""The default of a required argument."""


@dataclass(frozen=True)
class Expression:
    """A value that only the vendor's code can compute."""

    text: str


@dataclass(frozen=True)
class Argument:
    """An argument of a function.

    Attributes:
        place: Its place, from 0, without ``self``; None if it is keyword-only.
        default: Its default value, or REQUIRED.
    """

    name: str
    place: int | None
    default: object


@dataclass(frozen=True)
class Function:
    """A function or method."""

    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Class:
    """A class.

    Attributes:
        methods: Public methods, with ``__init__`` and ``__call__``.
        values: Public attributes of the class, as members of an enumeration are.
        attributes: Public properties, and attributes that ``__init__`` sets.
    """

    methods: dict[str, Function]
    values: dict[str, object]
    attributes: set[str]


@dataclass(frozen=True)
class Definition:
    """A function or class, with its module and its name there."""

    module: str
    name: str
    what: Function | Class


class VendorText:
    """The modules of one version.

    Args:
        root: The folder ``torch_npu``.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def public_modules(self) -> list[str]:
        """Return the modules that scripts can import, as in ``profiler.scheduler``."""
        found = [path.stem for path in (self._root / "profiler").glob("*.py")]
        found += [path.parent.name for path in (self._root / "profiler").glob("*/__init__.py")]
        below = [f"profiler.{name}" for name in sorted(found) if not name.startswith("_")]
        return ["profiler", *below, "npu.mstx"]

    def public_names(self, module: str) -> list[str]:
        """Return the names in ``__all__`` of a module, and the documented ones."""
        for node in self._tree(module).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return [*ast.literal_eval(node.value), *IN_DOCUMENTS.get(module, [])]
        raise ValueError(f"{module} has no __all__")

    def find(self, module: str, name: str) -> Definition | None:
        """Return the definition of a name; None for native code."""
        for node in self._tree(module).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return Definition(module, name, self._class(module, node))
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return Definition(module, name, self._function(module, node, skip=0))
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        home = self._home(module, node)
                        return self.find(home, alias.name) if self._path(home) else None
        raise LookupError(f"{module} has no {name}")

    @functools.cache  # noqa: B019 - lives as long as the tests
    def _tree(self, module: str) -> ast.Module:
        path = self._path(module)
        assert path, module
        return ast.parse(path.read_text())

    def _path(self, module: str) -> Path | None:
        path = self._root.joinpath(*module.split("."))
        return next(filter(Path.is_file, (path.with_suffix(".py"), path / "__init__.py")), None)

    def _home(self, module: str, node: ast.ImportFrom) -> str:
        """Return the module of an import, below ``torch_npu``."""
        if not node.level:
            return str(node.module).removeprefix("torch_npu.")
        path = self._path(module)
        assert path
        package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])

    def _class(self, module: str, node: ast.ClassDef) -> Class:
        methods, attributes = {}, set()
        for method in node.body:
            if not isinstance(method, ast.FunctionDef):
                continue
            decorators = {ast.unparse(one) for one in method.decorator_list}
            if method.name == "__init__":
                attributes |= set(_set_on_self(method))
            if method.name.startswith("_") and method.name not in ("__init__", "__call__"):
                continue
            if "property" in decorators:
                attributes.add(method.name)
            else:
                skip = 0 if "staticmethod" in decorators else 1
                methods[method.name] = self._function(module, method, skip)
        values = {
            target.id: self._value(module, value)
            for target, value in _assigned(node.body)
            if isinstance(target, ast.Name) and not target.id.startswith("_")
        }
        later = {  # as in ``mstx.annotate = annotate``
            target.attr
            for target, _ in _assigned(self._tree(module).body)
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == node.name
        }
        return Class(methods, values, attributes | later)

    def _function(self, module: str, node: ast.FunctionDef, skip: int) -> Function:
        by_place, by_name = node.args.args[skip:], node.args.kwonlyargs
        missing = [None] * (len(by_place) - len(node.args.defaults))
        defaults = [*missing, *node.args.defaults, *node.args.kw_defaults]
        places = [*range(len(by_place)), *[None] * len(by_name)]
        return Function(
            tuple(
                Argument(argument.arg, place, self._value(module, default) if default else REQUIRED)
                for argument, place, default in zip(
                    [*by_place, *by_name], places, defaults, strict=True
                )
            )
        )

    def _value(self, module: str, node: ast.expr) -> object:
        try:
            return ast.literal_eval(node)
        except ValueError:
            pass
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = self.find(module, node.value.id)
            if found and isinstance(found.what, Class) and node.attr in found.what.values:
                return found.what.values[node.attr]
        return Expression(ast.unparse(node))


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in body:
        if isinstance(node, ast.Assign):
            yield node.targets[0], node.value


def _set_on_self(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
            continue
        if ast.unparse(node.value) == "self" and not node.attr.startswith("_"):
            yield node.attr
