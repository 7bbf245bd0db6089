"""Opens a page in the browser of the person who typed the command."""

from __future__ import annotations

import webbrowser

from dynprof.cli.outcome import say
from dynprof.process.acting_user import is_acting


def open_page(address: str) -> None:
    """Open a page, but not where root's command acts as another user.

    That browser would have root's terminal and environment, and the user may trace it.
    """
    if is_acting():
        say("no browser is opened, since this command acts as another user", err=True)
    else:
        webbrowser.open(address)
