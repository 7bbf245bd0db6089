"""Settings of all tests."""

from __future__ import annotations

import encodings.utf_8_sig  # noqa: F401 - tests act as users who cannot read Python itself
import gc
import itertools
import os
import sys
import tempfile
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import settings

from tests import forkserver
from tests.pace import slowness
from tests.processes import ending_with_the_test, watch_over_this_process

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
settings.register_profile("dynprof", deadline=None)  # the first example may import torch
settings.load_profile("dynprof")


def pytest_configure(config: pytest.Config) -> None:
    """Give this run its own cache of the self-test; measure the machine.

    The garbage collector runs rarely: scanning torch and thousands of tests takes a tenth of a
    quick run. Objects are not frozen, because Hypothesis uses the collector to find references to
    its random numbers.
    """
    watch_over_this_process()
    gc.set_threshold(700, 10, 1000)
    os.environ.pop("COLUMNS", None)  # otherwise commands leave columns out that tests look for
    os.environ["PYTHONFAULTHANDLER"] = "1"  # a crash prints the stacks of all threads
    resource_tracker.ensure_running()  # one for all: a test that starts it would also end it
    slowness()
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share the measurement
        cache = tempfile.TemporaryDirectory(prefix="dynprof-cache-")
        os.environ["XDG_CACHE_HOME"] = cache.name
        config.add_cleanup(cache.cleanup)
    forkserver.begin()


@pytest.hookimpl(trylast=True)  # after tests have been left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Extend each test's timeout by the factor by which this machine is slow; order the tests."""
    usual_s = config.getoption("timeout") or float(config.getini("timeout")) * slowness()
    for item in items:
        own = item.get_closest_marker("timeout")
        limit_s = own.args[0] * slowness() if own else usual_s
        item.add_marker(pytest.mark.timeout(limit_s), append=False)
    long = [item for item in items if item.get_closest_marker("long")]
    others = [item for item in items if item not in long]
    items[:] = long_first(long, others, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def long_first(long: list[T], others: list[T], workers: int) -> list[T]:
    """Return the order in which a third of the workers begin with long tests, so that none is last.

    xdist gives each worker a share of the list, in order, and later moves the ends of shares. Long
    tests wait most of their time: the other workers use the CPUs.
    """
    few = max(1, workers // 3)
    shares = [long[worker::few] for worker in range(few)] + [[] for _ in range(workers - few)]
    rest, left = iter(others), len(long) + len(others)
    for worker, share in enumerate(shares):
        size = left // (workers - worker)
        share += itertools.islice(rest, max(0, size - len(share)))
        left -= len(share)
    return [*itertools.chain(*shares), *rest]


@pytest.fixture(autouse=True)
def _no_ranges_of_other_tests() -> None:
    """Start without unfinished ranges of other tests: every window shows them."""
    if (marks := sys.modules.get("dynprof.marks.open_ranges")) is not None:
        marks._started.clear()
        marks.STACKS.pushed.by_domain.clear()


@pytest.fixture(autouse=True)
def _nothing_stays_running() -> Iterator[None]:
    """End the processes that a test has started."""
    with ending_with_the_test():
        yield
        _let_the_self_test_end()


def _let_the_self_test_end() -> None:
    """Wait for the self-test if this process started it. It runs once, and its answer is kept."""
    if "dynprof.backends.torch.detached_close_selftest" in sys.modules:
        from dynprof.backends.torch.detached_close_selftest import SELF_TEST
        from tests.integration.running import wait_for

        if SELF_TEST.running_s():
            wait_for("the self-test", lambda: SELF_TEST.answer)


@pytest.fixture
def shared_tmp() -> Iterator[Path]:
    """Return a new folder that every user can reach, unlike ``tmp_path``. The caller owns it."""
    with tempfile.TemporaryDirectory(prefix="dynprof-users-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
