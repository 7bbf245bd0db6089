"""Threads that a script starts during a profile of another thread."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from dynprof.backends.torch.features import has
from dynprof.profiler import profile

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.usefixtures("own_place")


def child_work(**settings: Any) -> tuple[list[str], str]:
    """Enable the profiler on a thread that works during a profile; return warnings and trace."""

    def work() -> None:
        profile.enable_profiler_in_child_thread(with_stack=True)
        torch.erfinv(torch.zeros(2))
        profile.disable_profiler_in_child_thread()

    thread = threading.Thread(target=work)
    with warnings.catch_warnings(record=True) as caught, profile(**settings) as prof:
        warnings.simplefilter("always")
        thread.start()
        thread.join()
    prof.export_chrome_trace("trace.json")
    return [str(one.message) for one in caught], Path("trace.json").read_text()


def test_a_child_thread_in_a_profile_of_one_thread_gets_a_warning() -> None:
    """A profile of one thread cannot add a child thread; the warning names an alternative."""
    (said,), trace = child_work()
    assert "pass experimental_config=torch.profiler._ExperimentalConfig(profile_all_" in said
    assert "erfinv" not in trace


@pytest.mark.parametrize("backend", ["torch", "python"])
def test_a_child_thread_in_a_profile_of_all_threads_is_recorded(backend: str) -> None:
    """A child thread is recorded, and enabling it there gives no warning."""
    settings: dict[str, Any] = {"backend": backend}
    if backend == "torch":
        if not has("profile_all_threads"):
            pytest.skip("this torch cannot record all threads")
        config = torch.profiler._ExperimentalConfig(profile_all_threads=True)
        settings["experimental_config"] = config
    said, trace = child_work(**settings)
    assert (said, "erfinv" in trace) == ([], True)
