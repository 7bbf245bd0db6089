"""Measures an idle ``dp.step()`` and an empty Python function; prints both in ns as JSON."""

from __future__ import annotations

import json
import tempfile
import timeit

import dynprof as dp


def empty() -> None:
    """Do nothing: the minimum cost of a call."""


def nanoseconds(function: str, names: dict[str, object]) -> float:
    """Return the cost of a call of ``function`` in ns, in a loop; the best of seven runs."""
    number = 200_000
    return (
        min(timeit.repeat(f"{function}()", globals=names, number=number, repeat=7)) / number * 1e9
    )


def main() -> None:
    """Measure with a real session that has no request."""
    with tempfile.TemporaryDirectory() as directory:
        dp.init(directory)
        names = {"dp": dp, "empty": empty}
        facts = {"step_ns": nanoseconds("dp.step", names), "empty_ns": nanoseconds("empty", names)}
        dp.shutdown()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
