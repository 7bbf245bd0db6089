"""What a rank that follows reads is proposed by who leads, or it is said what became of it."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from dynprof.files.layout import Layout
from dynprof.requests.edits import Edit
from dynprof.session import unproposed
from dynprof.session.unproposed import Unproposed

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.journal.journal import Journal
    from dynprof.session.participation import Participation

LEADER = "rank 0 on there (/elsewhere/profiler_config.json)"


def said_of(folder: Path, **member: Any) -> list[str]:
    """Return why an edit is refused that a rank reads with this of its leader in mind."""
    never = -math.inf
    told = {"heard": ("", never), "asked_s": never, "left_s": never, **member}
    who = SimpleNamespace(is_amid_an_agreement=False, **told)
    why: list[str] = []
    read = Unproposed(
        Layout(folder, 1, "here", 42),
        cast("Participation", who),
        cast("Journal", SimpleNamespace(info=str, warning=str)),
        lambda _, text: why.append(text),
    )
    read.read(Edit(b'{"active": 3}', 0.0), LEADER)
    read.look(LEADER)
    return why


def test_what_was_proposed_is_nobodys_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered by then."""
    monkeypatch.setattr(unproposed, "PROPOSED_WITHIN_S", 0.0)
    heard = ('{"active": 3}', math.inf)
    assert said_of(tmp_path, heard=heard) == []


@pytest.mark.parametrize(
    ("ago_s", "said"),
    [(math.inf, "was not proposed by rank 0 on there"), (-60.0, "without this rank, if rank 0 on")],
)
def test_a_rank_that_was_away_does_not_say_that_nothing_was_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ago_s: float, said: str
) -> None:
    """It may have been while it was silent; the others have their windows."""
    monkeypatch.setattr(unproposed, "PROPOSED_WITHIN_S", 0.0)
    (why,) = said_of(tmp_path, left_s=time.monotonic() - ago_s)
    assert said in why
