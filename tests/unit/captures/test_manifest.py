"""Reading of a capture's manifest."""

from __future__ import annotations

import itertools
import json
import math
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.captures.window_record import load_window_record
from dynprof.errors import CaptureError
from dynprof.journal.status import load_status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_file_that_is_not_a_manifest_is_an_error(tmp_path: Path) -> None:
    """Any other content raises dynprof's own error."""
    (tmp_path / "m.json").write_text('{"backend": 1}')
    with pytest.raises(CaptureError, match="not the manifest"):
        load_manifest(tmp_path / "m.json")


ODD = [math.nan, math.inf, -math.inf, 1e300, 1e17, 10**400]
RECORD = {
    "dynprof": "0", "leader": "", "world_size": 2, "asked": [0], "ranks": {}, "missing": {},
    "request": {"number": 1, "edited_at": "", "sha256": "", "config": {"metadata": {"a": 2**63}}},
    "start_step": 1, "first": 1, "last": 2, "agreed_ms": 0.5, "complete": True,
}  # fmt: skip
MANIFEST = {
    **{name: RECORD[name] for name in ("dynprof", "request", "world_size", "complete")},
    "backend": "", "versions": {}, "host": "", "pid": 1, "rank": 0, "activities": [],
    "steps": {"first": 1, "last": 2, "recorded": 2, "warmup": 0},
    "opened_at": "", "closed_at": "", "cost": {"open_ms": 0, "close_ms": 0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("load", "record", "places"),
    [
        (load_status, {"state": "idle", "host": ""}, ("heartbeat", "step", "progress")),
        (load_manifest, MANIFEST, ("trace_bytes", "cost")),
        (load_window_record, RECORD, ("agreed_ms", "world_size", "asked")),
    ],
)
def test_unusable_numbers_make_a_manifest_unreadable(
    tmp_path: Path, load: Callable[[Path], object], record: dict[str, object], places: list[str]
) -> None:
    """A text with a NUL character does the same. A config may have numbers of any size."""
    path = tmp_path / "file.json"
    path.write_text(json.dumps(record))
    load(path)
    for place, number in itertools.product(places, ODD):
        whole = {
            "progress": [1, number],
            "asked": [number],
            "cost": {"open_ms": number, "close_ms": 0},
        }
        path.write_text(json.dumps({**record, place: whole.get(place, number)}))
        with pytest.raises(CaptureError, match="is not "):
            load(path)
    text = "leader" if "leader" in record else "host"
    path.write_text(json.dumps({**record, text: "/\0/x"}))
    with pytest.raises(CaptureError, match="NUL"):
        load(path)


@pytest.mark.parametrize("load", [load_manifest, load_window_record, load_status])
@pytest.mark.parametrize("content", ['{"S3CRET": "S3CRET"}', "S3CRET", '["S3CRET"]'])
def test_an_error_shows_nothing_of_the_file(
    tmp_path: Path, load: Callable[[Path], object], content: str
) -> None:
    """The error has neither values nor keys, because other users could plant any file there."""
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(CaptureError) as error:
        load(path)
    assert str(path) in str(error.value)
    assert "S3CRET" not in str(error.value)
