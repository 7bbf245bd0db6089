"""All public calls of the process-wide session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof import acl

if TYPE_CHECKING:
    from pathlib import Path


def use_the_session(folder: Path) -> list[str]:
    """Make all calls with the types that a script would use; return the subscriptions."""
    names: list[str] = []
    acl.init()
    with acl.prof.session(folder):
        config = acl.prof.Config(devices=(0,), record_shapes=True, host_sys=("cpu",))
        with acl.prof.recording(config):
            stamp: acl.prof.Stamp = acl.prof.create_stamp("a")
            acl.prof.push(stamp)
            acl.prof.pop()
            acl.prof.range_stop(acl.prof.range_start(stamp))
            acl.prof.destroy_stamp(stamp)
    with acl.prof.subscribe(lambda operator: names.append(operator.name)) as subscription:
        lost: int = subscription.lost
    acl.finalize()
    return [*names, str(lost)]
