"""Forks of one thread beside another that opens or closes a profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.backends.test_nothing_hurts import manifests, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("closing", "call"),
    [
        ("detached", "dynprof.backends.torch.end_settings_thread"),
        ("detached", "dynprof.backends.kineto.KINETO.start"),
        ("detached", "dynprof.backends.libtorch.DetachedClose.take_off_all"),
        ("inline", "dynprof.backends.kineto.KINETO.stop"),
    ],
)
def test_forks_wait_while_a_profiler_is_opened_or_closed(
    tmp_path: Path, closing: str, call: str
) -> None:
    """A child forked just then would have its locks, which nobody there lets go of."""
    run(
        tmp_path,
        f"""
        import os, pkgutil
        about, forked, early = threading.Event(), threading.Event(), []
        def fork():
            if not (child := os.fork()):
                os._exit(0)
            forked.set()
            assert os.waitpid(child, 0)[1] == 0
        place, _, name = {call!r}.rpartition(".")
        owner = pkgutil.resolve_name(place)
        original = getattr(owner, name)
        def meanwhile(*args, **kwargs):
            if not early:
                os.register_at_fork(before=about.set)  # the last one registered is the first called
                threading.Thread(target=fork).start()
                about.wait()
                early.append(forked.wait(0.5))
            return original(*args, **kwargs)
        setattr(owner, name, meanwhile)
        window(active=2)
        steps(3)
        assert early == [False]
        forked.wait()
        """,
        closing,
    )
    assert manifests(tmp_path)[-1].complete
