"""Draws what agreements take, by the number of ranks, both by powers of ten."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WIDTH, HEIGHT, EDGE = 640, 260, 60
RANKS = [1, 10, 100, 1000, 10_000, 100_000]
BLUE = "#1f6feb"


class Panel(NamedTuple):
    """What is drawn in one of the drawings, which stand below each other.

    Attributes:
        name: In what was measured.
        title: Above it.
        unit: Of its values.
        values: Those at its left, powers of ten; less is drawn as the least.
        top: Where it begins.
    """

    name: str
    title: str
    unit: str
    values: list[float]
    top: int

    def place(self, ranks: float, value: float) -> tuple[float, float]:
        """Return where a value stands."""
        least, most = self.values[0], self.values[-1]
        across = math.log10(ranks) / math.log10(RANKS[-1])
        up = math.log10(max(value, least) / least) / math.log10(most / least)
        return EDGE + across * (WIDTH - 2 * EDGE), self.top + HEIGHT - EDGE - up * (
            HEIGHT - 2 * EDGE
        )

    def places(self, measured: Sequence[dict[str, float]]) -> list[tuple[float, float]]:
        """Return where what was measured stands."""
        return [self.place(one["ranks"], one[self.name]) for one in measured]

    def frame(self) -> Iterator[str]:
        """Draw all but the values."""
        for ranks in RANKS:
            x, y = self.place(ranks, self.values[0])
            yield f'<path d="M{x:.0f} {y:.0f}V{self.top + EDGE}" stroke="#ddd"/>'
            yield f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="middle">{ranks:,}</text>'
        for value in self.values:
            x, y = self.place(1, value)
            text = f"{value:g} {self.unit}"
            yield f'<path d="M{x:.0f} {y:.0f}H{WIDTH - EDGE}" stroke="#ddd"/>'
            yield f'<text x="{x - 8:.0f}" y="{y + 4:.0f}" text-anchor="end">{text}</text>'
        y = self.top + 40
        yield f'<text x="{WIDTH / 2}" y="{y}" text-anchor="middle">{self.title}</text>'


PANELS = (
    Panel("seconds", "from the proposal until all know the step", "s", [0.01, 0.1, 1, 10, 100], 0),
    Panel(
        "calls",
        "calls of the store, of each rank, for one agreement",
        "",
        [0.1, 1, 10, 100],
        HEIGHT,
    ),
    Panel("leader_mb", "memory of the leader", "MB", [0.1, 1, 10, 100, 1000], 2 * HEIGHT),
)


def plot(
    path: str,
    measured: Sequence[dict[str, float]],
    foretold: Mapping[int, float],
    crowded: Sequence[dict[str, float]] = (),
) -> None:
    """Write the drawings, as one SVG.

    Args:
        path: Where to.
        measured: What was measured of each number of ranks.
        foretold: Seconds that others would take.
        crowded: What was measured of others with more ranks on a machine than there would be.
    """
    height = len(PANELS) * HEIGHT + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for panel in PANELS:
        parts += panel.frame()
        points = panel.places(measured)
        parts.append(_line(points, 'stroke-width="2"'))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{BLUE}"/>' for x, y in points]
        parts += [f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="{BLUE}"/>'
                  for x, y in panel.places(crowded)]  # fmt: skip
    seconds = PANELS[0]
    guessed = [seconds.place(count, took_s) for count, took_s in foretold.items()]
    parts.append(_line([seconds.places(measured)[-1], *guessed], 'stroke-dasharray="4 4"'))
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="white" stroke="{BLUE}"/>'
              for x, y in guessed]  # fmt: skip
    title = "ranks; dashed: foretold; diamonds: on 200 machines"
    parts.append(
        f'<text x="{WIDTH / 2}" y="{height - 8}" text-anchor="middle">{title}</text></svg>'
    )
    Path(path).write_text("\n".join(parts) + "\n")


def _line(points: Sequence[tuple[float, float]], how: str) -> str:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{line}" fill="none" stroke="{BLUE}" {how}/>'
