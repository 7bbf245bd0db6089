"""Small files that lie where others may write."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynprof.config.file_reading import read_source
from dynprof.files.regular import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("read", [lambda path: read_regular(path, 16 << 20), read_source])
def test_a_small_file_takes_little_memory(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """However large one is allowed to be: a job that trains reads them again and again."""
    path = tmp_path / "small"
    path.write_text("{}")
    read(path)
    tracemalloc.start()
    read(path)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 100_000


def test_a_file_is_read_to_its_end_as_long_as_it_is_small(tmp_path: Path) -> None:
    """Also where it has grown since somebody looked how large it is, as those of /proc do."""
    path = tmp_path / "small"
    path.write_bytes(b"x" * 100)
    assert read_regular(path, 100) == b"x" * 100
    with pytest.raises(OSError, match="File too large"):
        read_regular(path, 99)
    assert read_regular(Path("/proc/self/status"), 1 << 20).startswith(b"Name:")
