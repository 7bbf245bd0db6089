"""Marks in code that torch.compile compiles: it is shown that they do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")


def left_out(result: object) -> Callable[[Function], Function]:
    """Return a decorator: what is compiled has a result instead of the call.

    Traced, each time and each number of a range would be compiled anew, until torch gives up and
    compiles nothing; a graph that breaks inside a ``with`` block is not compiled either.

    Args:
        result: What the call returns where it is compiled.
    """

    def nothing(*_args: object, **_kwargs: object) -> object:
        return result

    def decorate(function: Function) -> Function:
        vars(function)["_torchdynamo_inline"] = nothing  # the name that torch's own wrappers have
        return function

    return decorate
