"""A range around a block, a function, a coroutine or a generator."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from contextlib import AbstractContextManager
    from typing import Self

    Function = TypeVar("Function", bound=Callable[..., Any])
    Ranged = Callable[[], AbstractContextManager[object]]


def around(function: Function, ranged: Ranged) -> Function:
    """Return a wrapped function that makes each call a range.

    The range of a generator lasts from the request for its first item to its end.

    Args:
        function: The function to wrap; a generator or coroutine function too.
        ranged: Returns the range to enter.
    """
    if inspect.isasyncgenfunction(function):
        wrapped: Any = _around_async_generator(function, ranged)
    elif inspect.iscoroutinefunction(function):
        wrapped = _around_coroutine(function, ranged)
    elif inspect.isgeneratorfunction(function):
        wrapped = _around_generator(function, ranged)
    else:
        wrapped = _around_call(function, ranged)
    found: Any = functools.wraps(function)(wrapped)
    return cast("Function", found)


def _around_call(function: Callable[..., Any], ranged: Ranged) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with ranged():
            return function(*args, **kwargs)

    return call


def _around_coroutine(function: Callable[..., Any], ranged: Ranged) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with ranged():
            return await function(*args, **kwargs)

    return call


def _around_generator(function: Callable[..., Any], ranged: Ranged) -> Callable[..., Any]:
    def iterate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with ranged():
            return (yield from function(*args, **kwargs))

    return iterate


def _around_async_generator(function: Callable[..., Any], ranged: Ranged) -> Callable[..., Any]:
    async def iterate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        with ranged():
            try:
                pending = inner.asend(None)
                while True:
                    try:
                        item = await pending
                    except StopAsyncIteration:
                        return
                    sent = None
                    with _Thrown() as thrown:
                        sent = yield item
                    pending = inner.athrow(thrown.error) if thrown.error else inner.asend(sent)
            finally:
                await inner.aclose()

    return iterate


class _Thrown:
    """Catches an exception thrown into a generator, to pass it to the inner generator."""

    error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.error = None if isinstance(error, GeneratorExit) else error
        return self.error is not None
