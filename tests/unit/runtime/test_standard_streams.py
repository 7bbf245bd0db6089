"""Standard output whose encoding lacks characters."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.runtime.standard_streams import replace_unencodable

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.BytesIO]:
    """Return the bytes that reach standard output, which is that of the C locale."""
    found = io.BytesIO()
    stream = io.TextIOWrapper(found, encoding="ascii", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdout", stream)
    yield found
    stream.detach()


def test_characters_are_replaced_and_bytes_of_file_names_kept(written: io.BytesIO) -> None:
    """Python itself raises for the former, with this error handler of the C locale."""
    replace_unencodable()
    print("größe")
    print("name\udcff", flush=True)
    assert written.getvalue() == b"gr??e\nname\xff\n"
