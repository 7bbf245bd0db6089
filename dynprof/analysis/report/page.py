"""The page: markup, styles, scripts and data in one file that never uses the network."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.analysis.report.contents import contents
from dynprof.errors import CaptureError
from dynprof.runtime.output import write_atomic

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.ranks.comparison import Ranks

REPORT = "report.html"
"""Name of the file."""
_MARK = re.compile(r"\{\{(\w+)\}\}")
_PARTS = Path(__file__).parent
_STYLES = ("bundled/uPlot.min.css", "page.css")
_SCRIPTS = (
    "bundled/uPlot.iife.js",
    "bars.js",
    "flame.js",
    "table.js",
    "modules.js",
    "roofline.js",
    "marks.js",
    "bandwidth.js",
    "page.js",
    "critical_path.js",
    "waiting.js",
    "sequences.js",
)


def write_report(measured: MeasuredTrace, path: Path, ranks: Ranks | None = None) -> Path:
    """Write the report of a trace.

    Args:
        measured: The trace.
        path: The file to write.
        ranks: The ranks of its window, if several are compared.

    Raises:
        CaptureError: This installation lacks a part of the page.
        OSError: The file cannot be written.
    """
    data = json.dumps(contents(measured, ranks), separators=(",", ":"), allow_nan=False)
    page = (_PARTS / "page.html").read_text(encoding="utf-8")
    parts = {
        "title": html.escape(measured.path.name),
        "styles": "".join(f"<style>{_part(name)}</style>\n" for name in _STYLES),
        "scripts": "".join(f"<script>{_part(name)}</script>\n" for name in _SCRIPTS),
        # In a script element only "</script" and "<!--" are markup.
        "data": data.replace("<", "\\u003c"),
    }
    write_atomic(path, _MARK.sub(lambda mark: parts[mark[1]], page))
    return path


def _part(name: str) -> str:
    """Return a part of the page from the package.

    Raises:
        CaptureError: The part is missing.
    """
    try:
        return (_PARTS / name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CaptureError(
            f"{error.filename} is missing: it is part of the installation, so install dynprof "
            "with pip (from a checkout: pip install -e .)"
        ) from error
