"""Cells of csv files, which people open in spreadsheets."""

from __future__ import annotations

import re

_QUOTED = re.compile('[,"\r\n]').search
_FORMULA = re.compile("[\t\r]|\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]").match
"""How cells begin that spreadsheets run; names in a trace may be anybody's.

Some drop white space before a sign, and take full-width signs for the plain ones."""
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?").fullmatch


def cell(value: object) -> str:
    """Return what csv writes for a value; an apostrophe keeps a spreadsheet from running it."""
    text = str(value)
    if _FORMULA(text) and not _NUMBER(text):
        text = f"'{text}"
    if _QUOTED(text):
        return '"' + text.replace('"', '""') + '"'
    return text
