"""What torch's flight recorder knows of collectives that have not ended.

Only its JSON is read; nothing of it is ever unpickled. torch has two recorders: one for NCCL (from
torch 2.5), one for other backends such as gloo (from 2.8). ``TORCH_FR_BUFFER_SIZE``, formerly
``TORCH_NCCL_TRACE_BUFFER_SIZE``, sets how many collectives they keep; 0 switches them off.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from dynprof.runtime.modules import imported_module

RECORDERS = "_dump_nccl_trace_json", "_dump_fr_trace_json"
MAX_LINES = 20
"""Collectives that are named: a hanging job waits in one or a few of each group."""
MAX_TEXT = 300
"""Characters of a line: a coalesced collective has hundreds of sizes."""


def unfinished_collectives() -> tuple[str, ...]:
    """Return a line for each process group and each collective that has not ended.

    Empty if torch is not loaded or the recorder is off. Call it only when the job stands still or
    an operator asks: the recorder of NCCL queries the device.
    """
    c10d = imported_module("torch._C._distributed_c10d")
    dumps = [getattr(c10d, name, None) for name in RECORDERS]
    lines: list[str] = []
    for dump in filter(None, dumps):
        lines += _lines(json.loads(dump(includeCollectives=True, onlyActive=True)))
    return tuple(line[:MAX_TEXT] for line in lines[:MAX_LINES])


def _lines(recorded: dict[str, Any]) -> list[str]:
    groups = [
        f"group {name}: {status['last_enqueued_collective']} collectives enqueued, "
        f"{status['last_completed_collective']} completed"
        for name, status in recorded.get("pg_status", {}).items()
        if int(status["last_enqueued_collective"]) > 0
    ]
    active = (one for one in recorded.get("entries", ()) if not one.get("retired"))
    return [*groups, *map(_line, itertools.islice(active, MAX_LINES))] if groups else []


def _line(entry: dict[str, Any]) -> str:
    group = ", ".join(map(str, entry.get("process_group", ())))
    number = entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id")
    return (
        f"{entry.get('profiling_name')} number {number} of group {group}: {entry.get('state')}, "
        f"inputs {entry.get('input_sizes')}, outputs {entry.get('output_sizes')}"
    )
