"""Who takes turns in a process whose threads come and go, and whose garbage is collected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.scripts import run_without_torch

if TYPE_CHECKING:
    from pathlib import Path


def test_garbage_that_is_collected_while_others_are_looked_at(tmp_path: Path) -> None:
    """Up to Python 3.11 a script's gc callback ran amid that: all waited for ever, or crashed."""
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


def test_no_garbage_is_collected_while_frames_are_looked_at(tmp_path: Path) -> None:
    """Up to Python 3.11 to look at one may collect some; its thread would run on, and leave it."""
    run_without_torch(
        tmp_path,
        """
        import gc, linecache
        from dynprof.process.one_at_a_time import OneAtATime
        place, over, amid, seen = OneAtATime(), threading.Event(), [], []
        def collecting(*_):
            frame = sys._getframe(1)
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            seen.append(line)
            if "f_back" in line or "_current_frames" in line or "look)" in line:
                amid.append(line)
        def deep(levels):
            return levels and deep(levels - 1)
        def stay():
            with place.take():
                while not over.is_set():
                    deep(20)
        threading.Thread(target=stay, daemon=True).start()
        while place._inside is None:
            time.sleep(0.001)
        frame = sys._getframe()
        gc.callbacks.append(collecting)
        gc.set_threshold(1)
        for _ in range(200):
            assert not place.enter(frame, 0)
        gc.callbacks.clear()
        over.set()
        assert seen and not amid, amid[:3]
        assert gc.isenabled()
        """,
    )
