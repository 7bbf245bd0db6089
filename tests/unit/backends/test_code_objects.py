"""Code objects stay for as long as somebody keeps them, in every Python."""

from __future__ import annotations

import weakref

from dynprof.backends.code_objects import KeptCode


def freed(name: str) -> bool:
    """Return whether a code object is freed once nobody has it any more."""
    found: list[bool] = []
    code = compile("1", name, "eval")
    end = weakref.finalize(code, found.append, True)
    del code
    end.detach()
    return bool(found)


def test_code_stays_while_any_of_two_keeps_it() -> None:
    """The last one lets it go; who keeps nothing changes nothing."""
    assert freed("before")
    one, other = KeptCode(), KeptCode()
    assert not freed("kept by two")
    del one
    assert not freed("kept by one")
    del other
    assert freed("after")
    again = KeptCode()
    assert not freed("kept again")
    del again
    assert freed("at last")
