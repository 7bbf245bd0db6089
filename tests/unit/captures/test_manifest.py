"""The manifest of a capture, read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.captures.window_record import load_window_record
from dynprof.errors import CaptureError
from dynprof.journal.status import load_status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_what_is_no_manifest_says_so(tmp_path: Path) -> None:
    """Rubbish in the place of a manifest is an error of ours."""
    (tmp_path / "m.json").write_text('{"backend": 1}')
    with pytest.raises(CaptureError, match="not the manifest"):
        load_manifest(tmp_path / "m.json")


@pytest.mark.parametrize("load", [load_manifest, load_window_record, load_status])
@pytest.mark.parametrize("content", ['{"S3CRET": "S3CRET"}', "S3CRET", '["S3CRET"]'])
def test_an_error_shows_nothing_of_the_file(
    tmp_path: Path, load: Callable[[Path], object], content: str
) -> None:
    """Neither values nor keys: whoever may write there could put any file in its place."""
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(CaptureError) as error:
        load(path)
    assert str(path) in str(error.value)
    assert "S3CRET" not in str(error.value)
