"""Opens a page in the browser of the person who typed the command."""

from __future__ import annotations

import contextlib
import html
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.cli.outcome import say
from dynprof.runtime.output import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator

_REDIRECT_PAGE = (
    '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
    '<meta http-equiv="refresh" content="0;url={address}"><a href="{address}">dynprof view</a>\n'
)


def open_page(address: str) -> None:
    """Open a page, or say that there is no browser, as in a command that root runs as a user."""
    if not webbrowser.open(address):
        say("no browser can be opened here", err=True)


@contextlib.contextmanager
def open_privately(address: str) -> Iterator[None]:
    """Open an address that no other user may learn; every user can read a command line.

    The browser gets the name of a file that leads there, which this user alone can read and which
    is there until the body ends.
    """
    with tempfile.TemporaryDirectory(prefix="dynprof-view-") as folder:
        page = Path(folder) / "view.html"
        write_atomic(page, _REDIRECT_PAGE.format(address=html.escape(address)), mode=0o600)
        open_page(page.as_uri())
        yield
