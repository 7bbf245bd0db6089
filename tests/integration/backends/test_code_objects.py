"""Names of code that dies in a window with stacks are right all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import events, manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

DYING = """
import types, weakref

freed = []

def dying(name):
    code = compile("def gone(): return torch.ones(1) + 1\\ngone()", name, "exec")
    weakref.finalize(code, freed.append, True)
    exec(code, {"torch": torch})

"""


@pytest.mark.parametrize("closing", ["detached", "inline"])
@pytest.mark.parametrize("profile_memory", [False, True])
def test_code_that_dies_in_a_window(tmp_path: Path, closing: str, profile_memory: bool) -> None:
    """Its names stand in the trace, where glibc fills what is freed; later code is freed again."""
    run(
        tmp_path,
        DYING
        + f"""
window(active=2, with_stack=True, profile_memory={profile_memory})
for number in range(50):
    dying(f"of_the_first_{{number}}")
dp.step()
for number in range(50):
    dying(f"of_the_second_{{number}}")
dp.step()
idle()
freed.clear()
dying("afterwards")
assert freed == [True], freed
""",
        closing,
        PYTHONMALLOC="malloc",
        MALLOC_PERTURB_="165",
    )
    (manifest,) = manifests(tmp_path)
    names = {event.get("name") for event in events(tmp_path, manifest)}
    for step in ("first", "second"):
        for number in range(50):
            assert f"of_the_{step}_{number}(1): gone" in names


def test_a_child_forked_in_a_window_lets_code_go(tmp_path: Path) -> None:
    """What its parent records is none of its own."""
    run(
        tmp_path,
        DYING
        + """
import os
window(active=2, with_stack=True)
dying("kept")
assert freed == []
child = os.fork()
if child == 0:
    dying("in the child")
    os._exit(0 if freed == [True] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
dp.step()
dp.step()
idle()
""",
    )
