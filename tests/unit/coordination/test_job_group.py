"""A second connection to the job's store, where it harms nobody."""

from __future__ import annotations

import datetime
import resource
import sys
from types import SimpleNamespace

import pytest

from dynprof.coordination.job_group import Begun, JobGroup, job_group
from dynprof.process import process_group
from dynprof.process.rank import GROUP, Rank, find_rank


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


def test_the_store_beneath_its_prefixes_is_named() -> None:
    """A process group's is always a PrefixStore, which tells nobody what to change."""
    files = type("FileStore", (), {})()
    store = SimpleNamespace(underlying_store=SimpleNamespace(underlying_store=files))
    with pytest.raises(RuntimeError, match="the job's FileStore knows no second connection"):
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


class World:
    """A default group of torch's, with its store.

    Attributes:
        error: What it raises where it is used.
    """

    def __init__(self, backend: str = "gloo", error: Exception | None = None) -> None:
        self._backend, self.error, self.store = backend, error, Store()

    def name(self) -> str:
        """Return the name of its backend."""
        return self._backend

    def rank(self) -> int:
        """Return the first."""
        return 0

    def size(self) -> int:
        """Return how many there are."""
        return 2

    def _get_sequence_number_for_group(self) -> int:
        if self.error:
            raise self.error
        return 7


def torch_with(monkeypatch: pytest.MonkeyPatch, world: World, version: str = "2.13.0+cpu") -> None:
    """Put a torch in place that has initialised that group."""
    c10d = SimpleNamespace(_get_default_store=lambda: world.store, _get_default_group=lambda: world)
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=world.rank,
        get_world_size=world.size,
        group=SimpleNamespace(WORLD=world),
        distributed_c10d=c10d,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)


@pytest.mark.parametrize(
    ("backend", "version", "is_exact"),
    [("nccl", "2.13.0+cu130", True), ("nccl", "2.5.1", False), ("gloo", "2.13.0", False)],
)
def test_whose_count_has_collectives_alone(
    monkeypatch: pytest.MonkeyPatch, backend: str, version: str, is_exact: bool
) -> None:
    """That of NCCL, since torch counts what is sent and received in a batch apart too."""
    torch_with(monkeypatch, World(backend), version)
    group = job_group()
    assert group
    assert group.collectives() == Begun(7, is_exact)


def test_a_group_that_is_being_destroyed_has_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may do that at any moment."""
    torch_with(monkeypatch, World(error=ValueError("Default process group has not been")))
    group = job_group()
    assert group
    assert group.collectives() is None


def test_a_child_has_no_part_in_the_group_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is forked finds it as if it had made it; it has one once it has made one."""
    monkeypatch.setattr(process_group, "_inherited", None)
    torch_with(monkeypatch, World())
    assert job_group()
    assert find_rank() == Rank(0, 2, GROUP)
    process_group.leave_to_parent()  # as a child just forked does
    assert job_group() is None
    assert find_rank().source != GROUP
    torch_with(monkeypatch, World())
    assert job_group()
    assert find_rank() == Rank(0, 2, GROUP)
