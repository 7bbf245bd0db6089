"""Frames that a trace of plain Python leaves out."""

from __future__ import annotations

from dynprof.backends.python import _OWN_FILES, _PACKAGE


def test_each_file_of_dynprof_that_a_trace_leaves_out_exists() -> None:
    """A moved file or folder of dynprof must not appear in every trace."""
    assert [name for name in _OWN_FILES if not (_PACKAGE / name).exists()] == []
