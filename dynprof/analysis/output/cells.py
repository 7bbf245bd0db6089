"""Cells of csv files, which people open in spreadsheets."""

from __future__ import annotations

import re

_QUOTED = re.compile('[,"\r\n]').search
_FORMULA = frozenset("=+-@\t\r")
"""How cells begin that spreadsheets run; names in a trace may be anybody's."""
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?").fullmatch


def cell(value: object) -> str:
    """Return what csv writes for a value; an apostrophe keeps a spreadsheet from running it."""
    text = str(value)
    if text[:1] in _FORMULA and not _NUMBER(text):
        text = f"'{text}"
    if _QUOTED(text):
        return '"' + text.replace('"', '""') + '"'
    return text
