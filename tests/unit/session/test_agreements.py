"""A session takes part in the agreements of its process group, once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from dynprof.coordination.coordinator import Coordinator
from dynprof.coordination.job_group import JobGroup
from dynprof.session import agreements
from tests.pace import patience_s

if TYPE_CHECKING:
    import pytest

    from tests.fake_job import Job


def test_two_threads_that_see_the_group_come_up_begin_once(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watcher's looks for it at each edit, the journal's each second."""
    begun: list[Coordinator] = []
    store = object()
    group = JobGroup(1, 8, lambda: store)
    second = threading.Thread(target=job.session._agreements.look)

    def make(*given: Any) -> Coordinator:
        if threading.current_thread() is threading.main_thread():
            second.start()
            second.join(0.2)  # it is done by then where nothing keeps it from it
        return Coordinator(*given)

    monkeypatch.setattr(Coordinator, "begin", lambda made: begun.append(made))
    monkeypatch.setattr(agreements, "Coordinator", make)
    monkeypatch.setattr(agreements, "group_to_agree_in", lambda *_: group)
    job.session._agreements.look()
    second.join(patience_s())
    assert len(begun) == 1
