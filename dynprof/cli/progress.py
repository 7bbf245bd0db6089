"""A progress bar for what takes longer than a second."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUIET_S = 1.0
"""A bar comes after this long."""


@contextlib.contextmanager
def waiting(text: str, total: int | None = None) -> Iterator[Callable[[object], None]]:
    """Show a bar on stderr while the block runs, and give what is called when a part is done.

    Args:
        text: What is being done.
        total: Of how many parts; left out, nobody knows.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(text, total=total, visible=False)
        show = threading.Timer(QUIET_S, lambda: progress.update(bar, visible=True))
        show.daemon = True
        show.start()
        try:
            yield lambda _: progress.advance(bar)
        finally:
            show.cancel()
