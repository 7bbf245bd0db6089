"""Cells of csv files, which people open in spreadsheets."""

from __future__ import annotations

import re

_UNUSUAL = re.compile('[,"\r\n]|^[-+=@\t]').search
_QUOTED = re.compile('[,"\r\n]').search
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How cells begin that spreadsheets run; names in a trace may be anybody's."""
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?").fullmatch


def cell(value: object) -> str:
    """Return what csv writes for a value; an apostrophe keeps a spreadsheet from running it."""
    text = str(value)
    if not _UNUSUAL(text):
        return text
    if text.startswith(_FORMULA) and not _NUMBER(text):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"' if _QUOTED(text) else text
