"""Captures of a job that was killed before it sent them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.runtime.layout import Layout

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue

FOLDER = "step_1-2_20260101T000000Z"


def left(
    place: Path,
    trace: str = "a.json.gz",
    directory: str = "",
    role: str = "",
    **config: JsonValue,
) -> Path:
    """Write a capture of an hour ago, of process 42 on a host; return its folder."""
    layout = Layout(place, 0, "host", 42, role=role)
    folder = layout.own_dir(place) / (f"{FOLDER}_{role}" if role else FOLDER)
    (folder / "info").mkdir(parents=True)
    (folder / "a.json.gz").touch()
    manifest = Manifest(
        dynprof="0", backend="fake", versions={}, host="host", pid=42, rank=0, role=role,
        world_size=1, directory=directory,
        request=RequestRecord(number=1, edited_at="", sha256="", config=config),
        steps=Steps(first=1, last=2, recorded=2, warmup=0), activities=("CPU",), opened_at="",
        closed_at="", complete=True, trace=trace, cost=Cost(open_ms=0, close_ms=0),
    )  # fmt: skip
    path = layout.manifest(folder)
    manifest.save(path)
    os.utime(path, (1e9, 1e9))
    return folder
