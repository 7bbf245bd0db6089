"""Modules of the job that have the name of Python's modules."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

from dynprof.runtime.modules import unload_shadowed


def test_the_job_may_import_during_the_check() -> None:
    """A training job may import during an attach; Python forbids iteration over a changing dict."""
    ended, before = threading.Event(), sys.getswitchinterval()

    def import_much() -> None:
        while not ended.is_set():
            for number in range(50):
                sys.modules[f"dynprof_test_{number}"] = ModuleType("one")
            for number in range(50):
                del sys.modules[f"dynprof_test_{number}"]

    thread = threading.Thread(target=import_much)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(300):
            unload_shadowed(set(sys.modules), [])
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(before)
