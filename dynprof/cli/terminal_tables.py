"""Tables that fit the terminal, and the progress of long work."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dynprof.journal.journal import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BAR_DELAY_S = 1.0
"""Time after which a progress bar appears; shorter work shows none."""
GAP = 2
"""Spaces between two columns."""
UNLIMITED = 100_000
"""Width in cells that no line exceeds, for output to a pipe or file."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        head: Its heading.
        drop_order: The column with the largest value is dropped first if there is no room.
        min_width: Cells to which its texts may be shortened; 0: texts are never shortened.
        left: Whether its texts are aligned left; numbers are aligned right.
    """

    head: str
    drop_order: int
    min_width: int = 0
    left: bool = False


def console() -> Console:
    """Return a console as wide as the terminal or ``COLUMNS``; unlimited for a pipe."""
    found = Console(highlight=False, emoji=False)
    if found.is_terminal or os.environ.get("COLUMNS"):
        return found
    return Console(highlight=False, emoji=False, width=UNLIMITED)


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int,
    styles: Sequence[str] = (),
) -> Table:
    """Return a table that is no wider than ``width`` cells, if possible.

    Args:
        columns: The columns.
        rows: A text for each column.
        width: Maximum width in cells.
        styles: Style of each row; default: no styles.
    """
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    texts = [[printable(text) for text in row] for row in rows]
    wanted = [
        max([cell_len(column.head), *(cell_len(row[place]) for row in texts)])
        for place, column in enumerate(columns)
    ]
    room = _room(columns, wanted, width)
    for place in room:
        made.add_column(
            columns[place].head, justify="left" if columns[place].left else "right", no_wrap=True
        )
    for row, style in zip(texts, styles or [""] * len(texts), strict=True):
        made.add_row(*(Text(shortened(row[place], room[place]), style=style) for place in room))
    return made


def _room(columns: Sequence[Column], wanted: Sequence[int], width: int) -> dict[int, int]:
    """Return the width of each column that is shown, by its index."""
    least = [min(c.min_width or want, want) for c, want in zip(columns, wanted, strict=True)]
    by_order = sorted(range(len(columns)), key=lambda place: columns[place].drop_order)
    while len(by_order) > 1 and sum(least[p] + GAP for p in by_order) - GAP > width:
        by_order.pop()
    left = width + GAP - sum(least[place] + GAP for place in by_order)
    room = {}
    for place in by_order:
        more = max(0, min(wanted[place] - least[place], left))
        room[place], left = least[place] + more, left - more
    return dict(sorted(room.items()))


def shortened(text: str, width: int) -> str:
    """Return a text cut in its middle so that it takes ``width`` cells."""
    if cell_len(text) <= width or width < 1:
        return text
    tail = (width - 1) // 2
    begin = chop_cells(text, width - 1 - tail)[0] if width > 1 else ""
    end = chop_cells(text[::-1], tail)[0][::-1] if tail else ""
    return f"{begin}\N{HORIZONTAL ELLIPSIS}{end}"


def wrapped(text: str, width: int, style: str = "") -> Text:
    """Return a text that breaks only between words; words that are too long are shortened."""
    words = (shortened(word, width) for word in printable(text).split(" "))
    return Text(" ".join(words), style=style)


@contextlib.contextmanager
def progress_bar(text: str, total: int | None = None) -> Iterator[Callable[[object], None]]:
    """Show a progress bar on stderr; yield the function to call when a part is done.

    Args:
        text: Description of the work.
        total: Number of parts; None if unknown.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(text, total=total, visible=False)
        show = threading.Timer(BAR_DELAY_S, lambda: progress.update(bar, visible=True))
        show.daemon = True
        show.start()
        try:
            yield lambda _: progress.advance(bar)
        finally:
            show.cancel()
