"""Which calls of pyACL are here."""

from __future__ import annotations

from dynprof import acl


def test_acl_offers_no_calls_of_the_runtime() -> None:
    """Calls of the runtime, such as those that capture a model, are pyACL's own: no names here."""
    assert acl.__all__ == ["finalize", "init", "prof"]
    assert not [name for name in ("mdl", "rt", "op") if hasattr(acl, name)]
