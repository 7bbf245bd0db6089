"""Settings of all tests."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import forkserver
from tests.pace import slowness
from tests.processes import ending_with_the_test, watch_over_this_process

if TYPE_CHECKING:
    from collections.abc import Iterator

settings.register_profile("dynprof", deadline=None)  # the first example may import torch
settings.load_profile("dynprof")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the self-test's cache of this run away from that of the user; measure the machine.

    The garbage collector looks seldom through torch and thousands of tests: it takes a tenth of a
    quick run. They are not frozen: Hypothesis asks it who holds its source of random numbers.
    """
    watch_over_this_process()
    gc.set_threshold(700, 10, 1000)
    os.environ["PYTHONFAULTHANDLER"] = "1"  # whoever crashes says where
    resource_tracker.ensure_running()  # one for the process: a test that began it would end it
    slowness()
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share it
        cache = tempfile.TemporaryDirectory(prefix="dynprof-cache-")
        os.environ["XDG_CACHE_HOME"] = cache.name
        config.add_cleanup(cache.cleanup)
    forkserver.begin()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every test as much more time as this machine is slower than a quiet one."""
    usual_s = config.getoption("timeout") or float(config.getini("timeout")) * slowness()
    for item in items:
        own = item.get_closest_marker("timeout")
        limit_s = own.args[0] * slowness() if own else usual_s
        item.add_marker(pytest.mark.timeout(limit_s), append=False)


@pytest.fixture(autouse=True)
def _no_ranges_of_other_tests() -> None:
    """Begin without the ranges that others have never ended: every window shows them."""
    if (marks := sys.modules.get("dynprof.marks.open_ranges")) is not None:
        marks._started.clear()
        marks.STACKS.pushed.by_domain.clear()


@pytest.fixture(autouse=True)
def _nothing_stays_running() -> Iterator[None]:
    """End what a test has started with the test."""
    with ending_with_the_test():
        yield
        _let_the_self_test_end()


def _let_the_self_test_end() -> None:
    """Wait for its answer where this process has asked: it asks once, and keeps the answer."""
    if "dynprof.backends.torch.detached_close_selftest" in sys.modules:
        from dynprof.backends.torch.detached_close_selftest import SELF_TEST
        from tests.integration.running import wait_for

        if SELF_TEST.running_s():
            wait_for("the self-test", lambda: SELF_TEST.answer)


@pytest.fixture
def shared_tmp() -> Iterator[Path]:
    """Give a folder that every user can reach, as none of ``tmp_path`` is; it is the caller's."""
    with tempfile.TemporaryDirectory(prefix="dynprof-users-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
