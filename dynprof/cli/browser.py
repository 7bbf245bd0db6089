"""Opens a page in the browser of the user who runs the command."""

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
    """Open a page; say so if there is no browser, as in a command that root runs as a user."""
    if not webbrowser.open(address):
        say("no browser can be opened here", err=True)


@contextlib.contextmanager
def open_privately(address: str) -> Iterator[None]:
    """Open an address without showing it to other users, who can all read a command line.

    The browser gets the name of a file that redirects to the address. Only this user can read the
    file, and it exists until the body ends.
    """
    with tempfile.TemporaryDirectory(prefix="dynprof-view-") as folder:
        page = Path(folder) / "view.html"
        write_atomic(page, _REDIRECT_PAGE.format(address=html.escape(address)), mode=0o600)
        open_page(page.as_uri())
        yield
