"""The rank of this process, from the script, torch.distributed or the launcher."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from dynprof.runtime.rank import GROUP, SCRIPT, UNKNOWN, Rank, find_rank, role_of


def test_a_process_group_takes_precedence_over_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.distributed's number precedes the variable's, but not the script's.

    A job that makes a new group may number its ranks differently. Without a group, ranks keep their
    last numbers.
    """
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 3,
        get_world_size=lambda: 4,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    for before, after in (
        (Rank(0, 1, UNKNOWN), 3),
        (Rank(1, 2, "SLURM_PROCID"), 3),
        (Rank(1, 2, SCRIPT), 1),
        (Rank(1, 2, GROUP), 3),
    ):
        assert before.refreshed().number == after
    group.is_initialized = lambda: False
    monkeypatch.setenv("RANK", "2")
    assert Rank(1, 2, GROUP).refreshed().number == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Rank(0, 1, "no launcher")),
        ({"RANK": "3", "WORLD_SIZE": "8"}, Rank(3, 8, "RANK")),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, Rank(2, 4, "SLURM_PROCID")),
        ({"OMPI_COMM_WORLD_RANK": "1"}, Rank(1, 2, "OMPI_COMM_WORLD_RANK")),
        ({"RANK": "x"}, Rank(0, 1, "no launcher")),
    ],
)
def test_the_rank_comes_from_the_launcher(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: Rank
) -> None:
    """A launcher's variables give rank and world size."""
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_rank() == expected


def test_the_role_is_that_of_the_argument_else_of_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An argument names the role; otherwise the variable does; without both there is none."""
    assert role_of(None) == ""
    monkeypatch.setenv("DYNPROF_ROLE", "rollout-2")
    assert [role_of(None), role_of("Trainer"), role_of("")] == ["rollout-2", "Trainer", ""]


@pytest.mark.parametrize("role", ["a b", "a_b", "../x", "r" * 33, "ro\n", "rö", 7])
def test_a_role_that_cannot_be_part_of_a_file_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """A role that cannot be part of a file name raises ValueError, which names the allowed form."""
    with pytest.raises(ValueError, match=r"^role=.* is no role; use up to 32 letters, digits and"):
        role_of(role)
    monkeypatch.setenv("DYNPROF_ROLE", str(role) + "_")
    with pytest.raises(ValueError, match=r"^DYNPROF_ROLE="):
        role_of(None)
