"""Numbers on the command line, with the error messages of the config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable


def number_or_text(given: str | float, kind: type[int | float]) -> float | str:
    """Return a text as a number, an int if it is whole; the text if it is not a number.

    A plus sign is none: a user who writes ``+50`` may mean 50 from now.
    """
    if isinstance(given, str) and given.lstrip().startswith("+"):
        return given
    try:
        number = kind(given)
    except ValueError:
        return given
    return int(number) if isinstance(number, float) and number.is_integer() else number


def at_least(least: float, most: float = float("inf")) -> Callable[[Any], Any]:
    """Return Typer's parser for a number in a range: a whole number if ``least`` is an int."""
    kind = type(least)

    def number(given: Any) -> Any:
        read = number_or_text(given, kind)
        if isinstance(read, str) or not least <= read <= most:
            from dynprof.config.parse import show

            noun = "a whole number" if kind is int else "a number"
            upto = "" if most == float("inf") else f" and of at most {most}"
            wanted = f"{noun} of at least {least:g}{upto}"
            raise typer.BadParameter(f"{show(given)} is not allowed; write {wanted}.")
        return read

    return number


def percentage(given: Any) -> Any:
    """Return a share of a text such as ``5%`` or ``5``; 0.05 without the sign could mean 5%."""
    text = str(given)
    read, signed = number_or_text(text.removesuffix("%"), float), text.endswith("%")
    unclear = not signed and read != 0
    if isinstance(read, str) or not (1 if unclear else 0) <= read < float("inf"):
        from dynprof.config.parse import show

        raise typer.BadParameter(f"{show(given)} is not allowed; write a percentage, such as 5%.")
    return read / 100
