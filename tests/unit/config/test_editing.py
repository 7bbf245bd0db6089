"""Commands that edit a config."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.config import read_source
from dynprof.config.editing import change
from dynprof.errors import ConfigError
from tests.users import ALICE, MALLORY, as_root

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
def test_errors_are_named_at_their_place_in_the_file(
    tmp_path: Path, text: str, changes: dict[tuple[str, ...], object], where: list[str]
) -> None:
    """The place is that in the user's own file, not in the new text; the file stays."""
    config = tmp_path / "profiler_config.json"
    config.write_text(text)
    with pytest.raises(ConfigError) as caught:
        change(config, changes)
    said = sorted(str(problem).partition(": ")[0] for problem in caught.value.problems)
    assert said == where
    assert config.read_text() == text


def test_a_link_is_not_replaced_by_a_command(tmp_path: Path) -> None:
    """A ConfigMap is such a link. The error does not name follow_symlinks, which may be set."""
    config, target = tmp_path / "profiler_config.json", tmp_path / "real.json"
    target.write_text("{}")
    config.symlink_to(target)
    with pytest.raises(
        ConfigError, match="change the file that it points to, or the ConfigMap"
    ) as e:
        change(config, {("active",): 3})
    assert "follow_symlinks" not in str(e.value)
    assert (config.is_symlink(), target.read_text()) == (True, "{}")


@as_root
def test_a_save_of_a_group_member_is_readable_by_the_job(shared_tmp: Path) -> None:
    """The file then belongs to the member; root may save it as well."""
    config = shared_tmp / "prof_config" / "profiler_config.json"
    config.parent.mkdir()
    config.write_text("{}")
    config.chmod(0o660)
    config.parent.chmod(0o770)
    ALICE.own(config, config.parent)
    with MALLORY.acting(group=ALICE.uid):
        change(config, {("active",): 3})
    assert config.stat().st_uid == MALLORY.uid
    with ALICE.acting():
        assert b'"active": 3' in read_source(config, as_job=True).raw
    change(config, {("active",): 4})
    with ALICE.acting():
        assert b'"active": 4' in read_source(config, as_job=True).raw


def test_permissions_stay_without_setuid_and_setgid(tmp_path: Path) -> None:
    """The setuid and setgid bits have no meaning for a config."""
    path = tmp_path / "profiler_config.json"
    path.write_text("{}")
    path.chmod(0o6740)
    change(path, {("active",): 5})
    assert path.stat().st_mode & 0o7777 == 0o740
