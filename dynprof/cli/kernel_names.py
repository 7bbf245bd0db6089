"""Names of kernels where there is little room: what tells them apart is not at their ends."""

from __future__ import annotations

_TORCH = "at::native::"
"""Its kernels are told apart by their templates only, which name what they calculate."""
_PAIRS = {")": "(", ">": "<"}


def brief(name: str) -> str:
    """Return a kernel's name without ``void``, its parameters and its templates.

    ``void f<float, 2ul>(float*, int)`` is ``f``. Copies, whose brackets come after a space, and
    templates of torch's own kernels are kept.
    """
    without = name.removeprefix("void ")
    short = _without_end(without, ")")
    if short.endswith(" "):
        return without
    return short if short.startswith(_TORCH) else _without_end(short, ">")


def _without_end(name: str, closing: str) -> str:
    """Return a name without the brackets that it ends with; whole where they do not pair."""
    if not name.endswith(closing):
        return name
    depth = 0
    for place in range(len(name) - 1, 0, -1):
        depth += (name[place] == closing) - (name[place] == _PAIRS[closing])
        if not depth:
            return name[:place]
    return name
