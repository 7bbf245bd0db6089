"""File names, and files that appear whole or not at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from dynprof.runtime.layout import (
    RANK_NAME,
    Layout,
    free_disk_mb,
    rank_in_name,
    rank_name,
    window_dir_name,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_files_have_the_documented_paths(tmp_path: Path) -> None:
    """Files have the documented paths."""
    layout = Layout(tmp_path, 7, "node-1", 99)
    names = [layout.config, layout.schema, layout.log, layout.status]
    assert [str(path.relative_to(tmp_path)) for path in names] == [
        "profiler_config.json",
        "profiler_config.schema.json",
        "log/dp_node-1_99_rank_7.log",
        "status/rank_7.json",
    ]
    assert layout.trace_name(1.5, "pt.trace.json") == "node-1_99.rank7.1500.pt.trace.json"
    assert window_dir_name(3, 5, 0) == "step_3-5_19700101T000000Z"


def test_a_role_precedes_the_rank_in_names(tmp_path: Path) -> None:
    """A role precedes the rank in file names, and has its own window folders."""
    layout = Layout(tmp_path, 7, "node-1", 99, role="rollout")
    names = [layout.log, layout.status, layout.duplicate_status, layout.manifest(tmp_path, 2)]
    assert [str(path.relative_to(tmp_path)) for path in names] == [
        "log/dp_node-1_99_rollout_rank_7.log",
        "status/rollout_rank_7.json",
        "status/rollout_rank_7.node-1_99.json",
        "info/rollout_rank_7.2.info.json",
    ]
    assert layout.trace_name(1.5, "pt.trace.json") == "node-1_99.rollout_rank7.1500.pt.trace.json"
    assert layout.named == "rollout rank 7"
    assert window_dir_name(3, 5, 0, "rollout") == "step_3-5_19700101T000000Z_rollout"


def test_names_of_any_role_are_parsed() -> None:
    """The pattern matches ranks' names with and without a role, and no others."""
    for name in (rank_name("", 3), rank_name("rollout-2", 30), rank_name("rank", 0)):
        assert re.fullmatch(RANK_NAME, name), name
    for other in ("_rank_3", "a_b_rank_3", "rank_", f"{'r' * 33}_rank_3", "ro\u00f6_rank_3"):
        assert not re.fullmatch(RANK_NAME, other), other


def test_prof_dir_is_relative_to_the_config(tmp_path: Path) -> None:
    """A relative ``prof_dir`` starts at the config; an absolute one is unchanged."""
    layout = Layout(tmp_path, 0, "h", 1)
    assert layout.capture_dir("./") == tmp_path
    assert layout.capture_dir("a/../b") == tmp_path / "b"
    assert str(layout.capture_dir("/scratch/x")) == "/scratch/x"


def test_free_disk_is_that_of_the_nearest_directory(tmp_path: Path) -> None:
    """The directory need not exist yet."""
    assert free_disk_mb(tmp_path / "not" / "yet") > 0


def test_the_directory_may_be_reached_through_a_link(tmp_path: Path) -> None:
    """A link above the directory is followed; one below it is not."""
    root = tmp_path / "real" / "prof_config"
    root.mkdir(parents=True)
    root.chmod(0o770)
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    (root / "below").symlink_to(tmp_path)
    layout = Layout(root, 0, "host", 42)
    named = layout.capture_dir(f"{tmp_path}/alias/prof_config/captures")
    assert (named, layout.why_forbidden(named)) == (root / "captures", "")
    inner = layout.capture_dir("below/alias")
    assert layout.why_forbidden(inner) == f"{root}/below is a symbolic link, which is not followed"
    outside = layout.capture_dir(f"{tmp_path}/alias/elsewhere")
    assert f"{tmp_path}/real/elsewhere is outside of {root}, and " in layout.why_forbidden(outside)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-0.json", 0), ("rank3_trace.json", 3), ("host_8429.rank12.179.pt.trace.json.gz", 12),
        ("dp0_pp0_tp1_dcp0_ep1_rank1.1763.pt.trace.json.gz", 1), ("local_rank_1_rank_9.json", 9),
        ("local_rank_1.json", None), ("tp_rank_1.json", None), ("trace_4.json", None),
        ("rank.json", None), ("17-TP-2.trace.json.gz", 2), ("17-TP-2-DP-1-EP-2.trace.json.gz", 2),
        ("17-TP-2-PP-1.trace.json.gz", None), ("llama-tp8.trace.json", None),
    ],
)  # fmt: skip
def test_the_rank_in_a_foreign_name(name: str, rank: int | None) -> None:
    """The words of Megatron, torchtitan, vLLM and SGLang; a rank within a node is none."""
    assert rank_in_name(name) == rank
