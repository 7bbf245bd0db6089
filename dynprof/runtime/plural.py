"""Numbers with their nouns, for messages that count."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def counted(count: float, noun: str, nouns: str = "") -> str:
    """Return ``1 step``, ``1,200 steps``, or ``0.5 steps`` for a mean.

    Args:
        count: The number.
        noun: The noun for one; may include the verb, as in ``rank is asked``.
        nouns: The noun for other numbers; by default ``noun`` and an s.
    """
    shown = number(count)
    return f"{shown} {noun if shown == '1' else nouns or f'{noun}s'}"


def listed(noun: str, which: Sequence[object]) -> str:
    """Return ``rank 7`` or ``ranks 0, 7``."""
    return f"{noun}{'' if len(which) == 1 else 's'} {', '.join(map(str, which))}"


def listed_ranks(ranks: Collection[int]) -> str:
    """Return ``rank 3``, or ``ranks 0 to 3, 7``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    said = ", ".join(" to ".join(map(str, span)) for span in spans)
    return f"rank{'' if len(ranks) == 1 else 's'} {said}"


def number(value: float) -> str:
    """Return a count, or the mean of counts, as text."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def spanned(first: int, last: int, noun: str = "step", between: str = " to ") -> str:
    """Return ``step 7`` or ``steps 7 to 9``."""
    return f"{noun}s {first}{between}{last}" if last > first else f"{noun} {first}"


def all_of(texts: Sequence[str]) -> str:
    """Return ``a``, ``a and b``, or ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def sentence(text: str) -> str:
    """Return a list's text as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def about(count: int) -> str:
    """Return an estimate rounded to two digits: ``14,000``."""
    return f"{round(count, 2 - len(str(count))):,}"
