"""Standard output whose encoding lacks characters."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from dynprof.runtime.standard_streams import replace_unencodable

if TYPE_CHECKING:
    import pytest


def test_characters_are_replaced_and_bytes_of_file_names_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python itself raises for the former, with this error handler of the C locale."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdout", stream)
    replace_unencodable()
    print("größe")
    print("name\udcff", flush=True)
    assert written.getvalue() == b"gr??e\nname\xff\n"
