"""Commands that change a config."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.config.editing import change
from dynprof.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "changes", "where"),
    [
        ('{"active": 1e3, "with_stack": 1}', {("active",): 5}, ["line 1, column 17, /with_stack"]),
        ('{\n\n\n  "with_stack": 1\n}', {("active",): 5}, ["line 4, column 3, /with_stack"]),
        ('{"active": 5}', {("with_stack",): 1}, ["/with_stack"]),
        ('{"active": 1e3}', {("active",): 0}, ["/active"]),
        (
            '{"limits": {"max_seconds": "a"}}',
            {("limits", "max_memory_mb"): -1},
            ["/limits/max_memory_mb", "line 1, column 13, /limits/max_seconds"],
        ),
    ],
)
def test_what_is_wrong_is_named_where_the_file_has_it(
    tmp_path: Path, text: str, changes: dict[tuple[str, ...], object], where: list[str]
) -> None:
    """Not where the text would have it that a command did not write; that changes nothing."""
    config = tmp_path / "profiler_config.json"
    config.write_text(text)
    with pytest.raises(ConfigError) as caught:
        change(config, changes)
    said = sorted(str(problem).partition(": ")[0] for problem in caught.value.problems)
    assert said == where
    assert config.read_text() == text


def test_permissions_stay_without_setuid_and_setgid(tmp_path: Path) -> None:
    """The bits that have a file run as its owner mean nothing for a config."""
    path = tmp_path / "profiler_config.json"
    path.write_text("{}")
    path.chmod(0o6740)
    change(path, {("active",): 5})
    assert path.stat().st_mode & 0o7777 == 0o740
