"""Commands of a user who may read captures but not write next to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rank_traces import write
from tests.users import ALICE, COMMAND, MALLORY, as_root, others_run_python

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [as_root, others_run_python]
HINT = "; give another place with --output"


@pytest.fixture
def captures(shared_tmp: Path) -> Path:
    """Return a user's folder with the traces of two ranks, which others may read."""
    folder = shared_tmp / "job"
    folder.mkdir()
    for rank in range(2):
        write(folder, rank)
    ALICE.own(folder, *folder.iterdir())
    return folder


@pytest.mark.parametrize(("command", "name"), [("report", "x.html"), ("merge", "x.json.gz")])
def test_a_reader_can_write_with_output(
    captures: Path, shared_tmp: Path, command: str, name: str
) -> None:
    """This also works for several ranks, whose tables are usually next to the traces."""
    done = MALLORY.python(COMMAND, command, captures)
    assert done.returncode == 2
    assert f"{captures}/analysis cannot be written by this user{HINT}" in done.stderr
    assert "Errno" not in done.stderr
    own = shared_tmp / "own"
    own.mkdir()
    MALLORY.own(own)
    done = MALLORY.python(COMMAND, command, captures, "--output", own / name)
    assert done.returncode == 0, done.stderr
    assert (own / name).stat().st_size > 0
    assert not (captures / "analysis").exists()


def test_an_unwritable_analysis_is_named(captures: Path) -> None:
    """``analyse`` has no option for another place; ``report`` has one, and its error names it."""
    done = MALLORY.python(COMMAND, "analyse", captures)
    assert done.returncode == 1
    assert f"{captures}/analysis/" in done.stderr
    assert "cannot be written by this user" in done.stderr
    assert "Errno" not in done.stderr
    assert HINT not in done.stderr
    done = MALLORY.python(COMMAND, "report", captures)
    assert f"cannot be written by this user{HINT}" in done.stderr
