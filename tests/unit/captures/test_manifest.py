"""The manifest of a capture, read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_no_manifest_says_so(tmp_path: Path) -> None:
    """Rubbish in the place of a manifest is an error of ours."""
    (tmp_path / "m.json").write_text('{"backend": 1}')
    with pytest.raises(CaptureError, match="not the manifest"):
        load_manifest(tmp_path / "m.json")
