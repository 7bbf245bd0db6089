"""Traces in Kineto's format, which does not escape names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HEAD = '\n  {\n    "schemaVersion": 1,\n    "baseTimeNanoseconds": 0,\n    "traceEvents": ['
TAIL = '\n  {\n    "name": "Record Window End", "ph": "i", "ts": 9.000\n  }\n  ],"traceName": "t" }'
ON_LINES = """
  {
    "ph": "X",
    "cat": "user_annotation",
    "name": "%s",
    "pid": 7,
    "tid": 7,
    "ts": %d.000,
    "dur": 1.000
    ,
    "args": {
      "External id": 1,"Record function id": 0, "Concrete Inputs": ["", "[2]"], "Ev Idx": 0
    }
  },"""
"""An event in the format of torch 2.13."""
TOGETHER = """
  {
    "ph": "X", "cat": "user_annotation", "name": "%s", "pid": 7, "tid": 7,
    "ts": %d.000, "dur": 1.000,
    "args": {
      "External id": 1
    }
  },"""
"""An event in the format of older versions."""


def written(names: Iterable[str], event: str = ON_LINES) -> bytes:
    """Return a trace of events with the given names."""
    events = (event % (name, number) for number, name in enumerate(names))
    return "".join([HEAD, *events, TAIL]).encode()
