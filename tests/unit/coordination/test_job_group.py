"""A second connection to the job's store, where it harms nobody."""

from __future__ import annotations

import datetime
import resource

import pytest

from dynprof.coordination.job_group import JobGroup


class Store:
    """A store of torch's.

    Attributes:
        timeouts: Those that were set.
    """

    def __init__(self, *, extended: bool = True) -> None:
        self._extended = extended
        self.timeouts: list[datetime.timedelta] = []

    def clone(self) -> Store:
        """Return another connection."""
        return Store()

    def has_extended_api(self) -> bool:
        """Return whether it knows append()."""
        return self._extended

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Note it."""
        self.timeouts.append(timeout)


def test_the_connection_is_another_one_and_patient_for_seconds() -> None:
    """The job's own keeps its half hour."""
    of_job = Store()
    mine = JobGroup(1, 8, lambda: of_job).connect()
    assert isinstance(mine, Store)
    assert mine is not of_job
    assert (of_job.timeouts, mine.timeouts) == ([], [datetime.timedelta(seconds=5)])


@pytest.mark.parametrize("store", [object(), Store(extended=False)])
def test_a_store_that_cannot_serve_is_named(store: object) -> None:
    """As that of files."""
    with pytest.raises(RuntimeError, match=f"the job's {type(store).__name__} knows no"):
        JobGroup(1, 8, lambda: store).connect()


def test_a_store_that_may_run_out_of_files_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each rank's connection fills it, the job's own next one would fail."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    JobGroup(1, 256, Store).connect()
    with pytest.raises(RuntimeError, match=r"1024 files may be open here, .* 1,000 ranks"):
        JobGroup(1, 1000, Store).connect()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    JobGroup(1, 100_000, Store).connect()


def test_a_store_that_the_job_has_let_go_of_is_not_reached() -> None:
    """It is that of a process group that is no more."""
    with pytest.raises(RuntimeError, match="the job has left its process group"):
        JobGroup(1, 8, lambda: None).connect()
