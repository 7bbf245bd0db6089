"""Traces in Perfetto's page, which dynprof serves, in a real browser."""

from __future__ import annotations

import contextlib
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.cli.view import address_of, serve
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


def needs_browser(test: Callable[..., None]) -> Callable[..., None]:
    """Leave a test to ``make pages``, and skip it without a browser."""
    without = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed to open pages in")
    marked: Callable[..., None] = pytest.mark.browser(without(test))
    return marked


_READY = "location.hash.startsWith('#!/viewer') && (window.app ?? window.globals).trace?.engine"
_QUERY = """async (text) => {
  const rows = await (window.app ?? window.globals).trace.engine.query(text);
  const found = [], columns = rows.columns();
  for (const row = rows.iter({}); row.valid(); row.next())
    found.push(columns.map((name) => String(row.get(name))));
  return found;
}"""


@contextlib.contextmanager
def opened(trace: Path, **settings: Any) -> Iterator[Page]:
    """Serve a trace and yield the page that has read it.

    Args:
        trace: The bytes of the trace's file.
        settings: The browser's settings for a page.
    """
    from playwright.sync_api import sync_playwright

    with serve(trace, 0) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(**settings)
        show(page, address_of(server))
        try:
            yield page
        finally:
            browser.close()
            server.shutdown()


def show(page: Page, address: str) -> None:
    """Open an address that ``dynprof view`` printed, and wait until the page has read the trace."""
    page.goto(address)
    page.wait_for_function(_READY, timeout=patience_s() * 1000)
    page.evaluate("waitForPerfettoIdle()")


def asked(page: Page, query: str) -> list[list[str]]:
    """Return the rows of a query on Perfetto's tables, as texts."""
    found: list[list[str]] = page.evaluate(_QUERY, query)
    return found
