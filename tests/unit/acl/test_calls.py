"""The pyACL calls that dynprof has."""

from __future__ import annotations

from dynprof import acl


def test_acl_offers_no_calls_of_the_runtime() -> None:
    """dynprof.acl has no calls of the runtime, such as those that capture a model."""
    assert acl.__all__ == ["finalize", "init", "prof"]
    assert not [name for name in ("mdl", "rt", "op") if hasattr(acl, name)]
