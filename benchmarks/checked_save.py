"""Measure the cost of checking a trace during a save: it is packed with and without checks.

The table shows CPU time, while the script sleeps. It is that of the process from the end of a
window until its capture is on disk, and that of packing alone. ``checked_save.py [PAIRS [CALLS]]``
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from unittest import mock

import torch

from benchmarks.tables import print_table
from dynprof.captures import exporter, trace_packing
from dynprof.captures.manifest import load_manifest
from dynprof.profiler import profile, saving, tensorboard_trace_handler

if TYPE_CHECKING:
    from collections.abc import Iterator

PAIRS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
CALLS = int(sys.argv[2]) if len(sys.argv) > 2 else 60_000
"""60,000 calls make a trace of 148 MB."""


@contextmanager
def unchecked() -> Iterator[None]:
    """Accept every piece of a trace as JSON with plain names."""
    with (
        mock.patch.object(trace_packing, "is_json", return_value=True),
        mock.patch.object(trace_packing, "has_odd_name", return_value=False),
        mock.patch.object(trace_packing, "unknown_names", return_value=0),
    ):
        yield


def add(tensor: torch.Tensor) -> torch.Tensor:
    """Add two tensors: a Python function with an operator in it."""
    return tensor + 1


def saved() -> tuple[float, float, float, float]:
    """Return the seconds of a save and of packing without and with the check; and the MB."""
    took = {}

    def pack_twice(raw: BinaryIO, packed: BinaryIO, **given: Any) -> trace_packing.Packed:
        began = time.thread_time()
        with unchecked(), tempfile.TemporaryFile() as other:
            trace_packing.pack(raw, other, **given)
        took["unchecked"] = time.thread_time() - began
        raw.seek(0)
        began = time.thread_time()
        packing = trace_packing.pack(raw, packed, **given)
        took["checked"] = time.thread_time() - began
        return packing

    with tempfile.TemporaryDirectory() as name, mock.patch.object(exporter, "pack", pack_twice):
        folder = Path(name)
        handler = tensorboard_trace_handler(
            folder, analyse_flag=False, async_mode=True, use_gzip=True
        )
        tensor = torch.ones(4)
        with profile(record_shapes=True, with_stack=True, on_trace_ready=handler):
            for _ in range(CALLS):
                tensor = add(tensor)
            began = time.process_time()
        saving.exporter().wait()
        whole = time.process_time() - began - took["unchecked"]
        (path,) = folder.rglob("*.info.json")
        size = load_manifest(path).trace_bytes_raw / 1e6
        return whole, took["unchecked"], took["checked"], size


def main() -> None:
    """Print the minimum of each, and the share."""
    torch.set_num_threads(1)
    saved()
    whole, without, with_it, size = map(min, zip(*[saved() for _ in range(PAIRS)], strict=True))
    share = f"{(with_it - without) / (whole - with_it + without) * 100:.1f}%"
    row = (f"{size:.0f}", f"{whole:.2f}", f"{without:.2f}", f"{with_it:.2f}", share)
    head = ("trace, MB", "save, s", "packed unchecked, s", "checked, s", "more of the save")
    print_table("CPU time", head, [row])


if __name__ == "__main__":
    main()
