"""Marks that also go to NVTX; a fake of CUDA's functions notes its calls."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import dynprof as dp
import dynprof.mstx as mstx
from dynprof.backends.collectors.marks import Domains, MarkTracks
from dynprof.marks.nvtx import NVTX_MARKS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Functions:
    """The functions that torch's module calls with CUDA."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def markA(self, message: str) -> None:  # noqa: N802 - NVTX's name
        """Note a moment."""
        message.encode()  # as C++ does
        self.calls.append(("mark", message))

    def rangeStartA(self, message: str) -> int:  # noqa: N802
        """Note a start."""
        self.calls.append(("start", message))
        return len(self.calls) + 2**63

    def rangeEnd(self, number: int) -> None:  # noqa: N802
        """Note the end of a range."""
        self.calls.append(("end", self.calls[number - 2**63 - 1][1]))


class Without:
    """The functions on a torch without CUDA."""


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return torch's module."""
    module = SimpleNamespace(_nvtx=Functions())
    monkeypatch.setitem(sys.modules, "torch.cuda.nvtx", module)
    yield module
    mstx.to_nvtx(on=False)


def test_every_mark_and_range_goes_to_nvtx_without_a_window(nvtx: Any) -> None:
    """The message is the domain and the name; after switching off, none is sent."""
    before = mstx.range_start("before")
    mstx.to_nvtx()
    mstx.to_nvtx()
    mstx.mark("here")
    mstx.range_push("outer")
    crossing = mstx.range_start("upload", domain="io")
    mstx.range_pop()
    mstx.range_end(crossing)
    mstx.range_end(before)
    with dp.phase("forward"):
        pass
    assert nvtx._nvtx.calls == [
        ("mark", "here"), ("start", "outer"), ("start", "io: upload"), ("end", "outer"),
        ("end", "io: upload"), ("start", "phases: forward"), ("end", "phases: forward"),
    ]  # fmt: skip
    mstx.to_nvtx(on=False)
    mstx.mark("later")
    assert len(nvtx._nvtx.calls) == 7


def test_a_window_does_not_record_marks_that_are_sent_to_nvtx(nvtx: Any) -> None:
    """No mark loops, whichever started first; each is recorded once."""
    functions = nvtx._nvtx
    for first in ("window", "sending"):
        functions.calls.clear()
        track = MarkTracks(Domains(), [NVTX_MARKS])
        if first == "sending":
            mstx.to_nvtx()
        track.start()
        mstx.to_nvtx()
        mstx.mark("ours")
        nvtx._nvtx.markA("theirs")
        with mstx.annotate("range"):
            pass
        track.stop()
        mstx.to_nvtx(on=False)
        found = [(e["name"], e["args"]["domain"]) for e in track.events() if e["ph"] != "M"]
        assert sorted(found) == [("ours", "default"), ("range", "default"), ("theirs", "nvtx")]
        assert [call[1] for call in functions.calls] == ["ours", "theirs", "range", "range"]
        assert nvtx._nvtx is functions


def test_a_mark_that_nvtx_refuses_is_dropped(nvtx: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """A message that is not UTF-8, for example: one warning, and the script continues."""
    mstx.to_nvtx()
    mstx.mark("\udc80")
    mstx.mark("here")
    assert nvtx._nvtx.calls == [("mark", "here")]
    assert "sending a mark to NVTX failed: UnicodeEncodeError" in capfd.readouterr().err


def test_a_torch_without_nvtx_gives_a_warning(nvtx: Any) -> None:
    """The warning comes once, at the call; marks are not sent."""
    nvtx._nvtx = Without()
    with pytest.warns(UserWarning, match="sends no marks to NVTX: this torch has no NVTX"):
        mstx.to_nvtx()
    mstx.mark("here")


def test_a_torch_that_is_not_imported_gives_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning says what to do."""
    monkeypatch.delitem(sys.modules, "torch.cuda.nvtx", raising=False)
    with pytest.warns(UserWarning, match="import torch first"):
        mstx.to_nvtx()


@pytest.mark.parametrize("how", ["argument", "variable", "argument against it", "nothing"])
def test_init_begins_it(
    nvtx: Any, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument of init() starts it, and takes precedence over the variable."""
    asked = {"argument": True, "argument against it": False}.get(how)
    monkeypatch.setenv("DYNPROF_NVTX", "0" if how in ("argument", "nothing") else "1")
    dp.init(tmp_path, nvtx=asked, watch="poll")
    try:
        mstx.mark("here")
    finally:
        dp.shutdown()
    assert bool(nvtx._nvtx.calls) == (how in ("argument", "variable"))
