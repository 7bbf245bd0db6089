"""A short run of the fuzzer in every test run; ``make fuzz`` runs longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.harness import CORPUS, Operator

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDS = sorted(path.read_bytes() for path in CORPUS.iterdir())


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    """Return an operator; its jobs end with the module."""
    found = Operator()
    yield found
    found.close()


def test_the_corpus(operator: Operator) -> None:
    """Real configs, half-written files of editors, and all findings of the fuzzer are answered."""
    assert len(SEEDS) > 20
    for seed in SEEDS:
        operator.save(seed)


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """Draw a seed that is cut, joined with another, or has changed bytes."""
    first, second = draw(st.sampled_from(SEEDS)), draw(st.sampled_from(SEEDS))
    cut = draw(st.integers(0, len(first)))
    rest = draw(st.sampled_from([first[cut:], second[draw(st.integers(0, len(second))) :], b""]))
    return first[:cut] + draw(st.binary(max_size=8)) + rest


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=spoilt())
def test_spoilt_files(operator: Operator, content: bytes) -> None:
    """A damaged config neither harms the job nor stays unanswered."""
    operator.save(content)
