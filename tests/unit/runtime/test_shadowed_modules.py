"""Modules of the job's own that stand in the place of Python's."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

from dynprof.runtime.modules import unload_shadowed


def test_the_job_imports_meanwhile() -> None:
    """As one does that trains while it is reached; Python lets nobody go over what changes."""
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
