"""What a rank records where the leader has found out what all ranks can."""

from __future__ import annotations

import json

import pytest

from dynprof.config import parse_config, template_text
from dynprof.coordination.messages import Profiler, Proposal
from dynprof.requests.edits import Edit
from dynprof.requests.request import Asked
from dynprof.session.narrowing import narrowed


@pytest.mark.parametrize(
    ("named", "recorded"),
    [({}, ["CPU", "CUDA"]), ({"activities": ["CPU"]}, ["CPU"])],
)
def test_ranks_that_agree_record_all_that_the_template_asks_for(
    named: dict[str, list[str]], recorded: list[str]
) -> None:
    """The template's CPU and NPU are all that the ranks have; activities that are named stay."""
    text = json.dumps({**json.loads(template_text()), **named})
    parsed = parse_config(text.encode())
    asked = Asked(Edit(text.encode(), 0.0), parsed.config, parsed, now=False)
    proposal = Proposal(1, text, 0.0, 10.0, profiler=Profiler("torch", ("CPU", "CUDA")))
    assert narrowed(asked, proposal).config.activities == recorded
