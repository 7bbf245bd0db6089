"""Traces that torch has closed are written without the GIL, and as torch writes them."""

from __future__ import annotations

import contextlib
import json
import os
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.backends.torch.closing import choose_writer
from dynprof.backends.torch.detached_close import find_functions, writer_of
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from dynprof.errors import BackendError
from tests import warm_interpreter
from tests.integration.running import wait_for

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason="torch is not installed")


def recorded(operators: int) -> Any:
    """Return a torch profile with some recorded operators."""
    with torch.profiler.profile(record_shapes=True, with_stack=True) as profiler:
        for _ in range(operators):
            torch.ones(4).add(1)
    return profiler


def test_python_runs_while_a_trace_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread sees the file grow, which is impossible while torch writes."""
    monkeypatch.setenv("DYNPROF_CLOSE", "detached")
    SELF_TEST.begin()
    wait_for("the self-test", lambda: SELF_TEST.answer)
    profiler = recorded(5_000)
    write = choose_writer(profiler)
    assert write
    path, done, sizes = tmp_path / "ours.json", threading.Event(), set[int]()

    def look() -> None:
        while not done.is_set():
            with contextlib.suppress(FileNotFoundError):  # it gets its name at the end
                sizes.update(file.stat().st_size for file in tmp_path.iterdir())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        write(path)
    finally:
        done.set()
        thread.join()
    assert len(sizes) > 10
    text = (tmp_path / "ours.json").read_text()
    assert text.count('"aten::add"') == 5_000
    assert profiler.profiler.kineto_results.events()


def test_traces_equal_those_that_torch_writes(tmp_path: Path) -> None:
    """Members and events of the same work are equal, except for times and the file's name.

    The process has no other thread that runs Python, because it would be recorded too.
    """
    script = """
    import torch
    from pathlib import Path
    from dynprof.backends.torch.detached_close import find_functions
    from dynprof.backends.torch.detached_close import writer_of

    def recorded():
        with torch.profiler.profile(record_shapes=True, with_stack=True) as profiler:
            for _ in range(3):
                torch.ones(4).add(1)
        return profiler

    recorded()
    writer_of(recorded().profiler, find_functions())(Path("ours.json"))
    recorded().export_chrome_trace("torchs.json")
    """
    done = warm_interpreter.run(textwrap.dedent(script), tmp_path, dict(os.environ))
    assert done.returncode == 0, done.stderr
    ours, torchs = (json.loads((tmp_path / f"{name}.json").read_text()) for name in NAMES)
    assert ours.keys() == torchs.keys()
    assert members(ours) == members(torchs)
    assert sum("Python parent id" in names for *_, names in members(ours)) > 3


NAMES = ("ours", "torchs")


def members(trace: dict[str, Any]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return the sorted category, members and argument names of each event."""
    return sorted(
        (str(event.get("cat")), " ".join(event), tuple(event.get("args", ())))
        for event in trace["traceEvents"]
    )


def test_results_of_another_build_are_left_to_torch() -> None:
    """Torch writes the file if pybind11 does not give the address of its results."""

    class Results:
        """Results of a torch built with another C++ compiler: pybind11 returns None."""

        def _pybind11_conduit_v1_(self, *_: object) -> None:
            pass

    for results in (Results(), None):
        profiler = type("Profiler", (), {"kineto_results": results})()
        with pytest.raises(BackendError, match="does not give the address of its results"):
            writer_of(profiler, find_functions())
