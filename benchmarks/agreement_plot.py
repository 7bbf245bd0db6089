"""Draws how long agreements take, by the number of ranks, both by powers of ten."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, EDGE = 640, 360, 60


def plot(
    path: str,
    measured: Sequence[dict[str, float]],
    foretold: Mapping[int, float],
    crowded: Sequence[dict[str, float]] = (),
) -> None:
    """Write a drawing, as SVG.

    Args:
        path: Where to.
        measured: What was measured of each number of ranks.
        foretold: Seconds that others would take.
        crowded: What was measured of others with more ranks on a machine than there would be.
    """
    ranks, seconds = [1, 10, 100, 1000, 10_000, 100_000], [0.01, 0.1, 1, 10, 100]

    def place(count: float, took_s: float) -> tuple[float, float]:
        across = math.log10(count) / math.log10(ranks[-1])
        up = math.log10(took_s / seconds[0]) / math.log10(seconds[-1] / seconds[0])
        return EDGE + across * (WIDTH - 2 * EDGE), HEIGHT - EDGE - up * (HEIGHT - 2 * EDGE)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for count in ranks:
        x, y = place(count, seconds[0])
        parts.append(f'<path d="M{x:.0f} {y:.0f}V{EDGE}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="middle">{count:,}</text>')
    for took_s in seconds:
        x, y = place(1, took_s)
        parts.append(f'<path d="M{x:.0f} {y:.0f}H{WIDTH - EDGE}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 8:.0f}" y="{y + 4:.0f}" text-anchor="end">{took_s:g} s</text>')
    points = [place(one["ranks"], one["seconds"]) for one in measured]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1f6feb" stroke-width="2"/>')
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#1f6feb"/>' for x, y in points]
    guessed = [points[-1], *(place(count, took_s) for count, took_s in foretold.items())]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in guessed)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1f6feb" stroke-dasharray="4 4"/>')
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="white" stroke="#1f6feb"/>'
              for x, y in guessed[1:]]  # fmt: skip
    points = [place(one["ranks"], one["seconds"]) for one in crowded]
    parts += [f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="#1f6feb"/>'
              for x, y in points]  # fmt: skip
    middle = WIDTH / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">ranks</text>')
    title = "from the proposal until all know the step; dashed: foretold; diamonds: on 200 machines"
    parts.append(f'<text x="{middle}" y="30" text-anchor="middle">{title}</text></svg>')
    Path(path).write_text("\n".join(parts) + "\n")
