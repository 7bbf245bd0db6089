"""Tables for the terminal in Markdown, so that README can quote them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def print_table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table with columns as wide as their content."""
    lines = [head, tuple("---" for _ in head), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    print(f"\n{title}\n")
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(f"| {' | '.join(cells)} |")


def percentile(values: list[float], percent: float) -> float:
    """Return the value below which ``percent`` of ``values`` lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
