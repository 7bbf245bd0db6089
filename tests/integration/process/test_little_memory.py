"""Jobs that are at the limit of their memory for a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import run_without_torch

if TYPE_CHECKING:
    from pathlib import Path

LIMITED = """
import resource
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
threads = [threading.Thread(target=time.sleep, args=(0.1,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()  # the system keeps their stacks, and a thread can begin without new memory
def may_have(size):
    resource.setrlimit(resource.RLIMIT_AS, (size, hard))
def fill(held):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    may_have(used - (1 << 20))
    for size in (1 << 20, 1 << 16, 4096, 1000, 520, 400, 256, 128, 64):
        try:
            while True:
                held.append(bytes(size))
        except MemoryError:
            pass
def whole_window():
    idle()
    window(active=2)
    for _ in range(4):
        dp.step()
    idle()
    found = [json.loads(path.read_text()) for path in Path("prof_config").rglob("*.info.json")]
    newest = max(found, key=lambda one: one["request"]["number"])
    assert newest["complete"] and newest["request"]["number"] == 2, found
"""


@pytest.mark.parametrize("blocks_left", [0, 3, 7, 110, 150, 200])
def test_no_memory_as_a_window_opens(tmp_path: Path, blocks_left: int) -> None:
    """It costs the window at most: the step raises nothing, and ends; the next one is whole."""
    run_without_torch(
        tmp_path,
        LIMITED
        + f"""
from dynprof import dynamic_profile
dp.step()
Path("prof_config/profiler_config.json").write_text('{{"active": 3, "backend": "python"}}')
while not dynamic_profile._inbox.waiting:
    time.sleep(0.001)
held = []
fill(held)
try:
    del held[max(0, len(held) - {blocks_left}):]
    dp.step()
except MemoryError as error:  # of the script's own, for want of memory to call it with
    assert error.__traceback__.tb_next is None
finally:
    held.clear()
    may_have(hard)
for _ in range(10):
    dp.step()
whole_window()
""",
    )


def test_no_memory_while_a_capture_is_saved(tmp_path: Path) -> None:
    """It is saved later or not at all, and the next one is: nobody waits for it for ever."""
    run_without_torch(
        tmp_path,
        LIMITED
        + """
window(active=2)
dp.step()
dp.step()
may_have(50 << 20)
dp.step()
time.sleep(2)
may_have(hard)
whole_window()
""",
    )
