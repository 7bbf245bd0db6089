"""Who takes turns in a process whose threads come and go, and whose garbage is collected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.scripts import run_without_torch

if TYPE_CHECKING:
    from pathlib import Path


def test_garbage_that_is_collected_while_others_are_looked_at(tmp_path: Path) -> None:
    """Up to Python 3.11 a script's gc callback ran amid that, and all threads waited for ever."""
    run_without_torch(
        tmp_path,
        """
        import gc
        from dynprof.process.one_at_a_time import OneAtATime
        place, over = OneAtATime(), threading.Event()
        gc.callbacks.append(lambda *_: time.sleep(0))  # lets other threads run
        gc.set_threshold(1)
        def begin_and_end():
            while not over.is_set():
                threads = [threading.Thread(target=time.sleep, args=(0,)) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        def stay():
            with place.take():
                over.wait()
        for target in (begin_and_end, begin_and_end, stay):
            threading.Thread(target=target, daemon=True).start()
        while place._inside is None:
            time.sleep(0.001)
        frame = sys._getframe()
        for _ in range(400):
            assert not place.enter(frame, 0)
        over.set()
        assert gc.isenabled()
        """,
    )
