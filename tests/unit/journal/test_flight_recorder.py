"""Collectives that have not ended, from the JSON of torch's recorders."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dynprof.journal.stack_dump import MAX_COLLECTIVES, unfinished_collectives

if TYPE_CHECKING:
    import pytest

C10D = "torch._C._distributed_c10d"


def entry(number: int, **fields: Any) -> dict[str, Any]:
    """Return a collective as torch 2.13 records it."""
    told = {"profiling_name": "nccl:all_reduce", "collective_seq_id": number, "is_p2p": False}
    told |= {"process_group": ["0", "default_pg"], "state": "started", "retired": False}
    return {**told, "input_sizes": [[4]], "output_sizes": [[4]], "p2p_seq_id": 0, **fields}


def recorded(monkeypatch: pytest.MonkeyPatch, *entries: dict[str, Any], enqueued: str) -> None:
    """Replace torch's recorder of NCCL."""
    status = {"last_enqueued_collective": enqueued, "last_completed_collective": "6"}
    dump = json.dumps({"pg_status": {"0": status}, "entries": entries}).encode()
    module = ModuleType(C10D)
    module.__dict__["_dump_nccl_trace_json"] = lambda **_: dump
    monkeypatch.setitem(sys.modules, C10D, module)


def test_collectives_that_have_not_ended_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group has a line with its counters, and each such collective its number and sizes."""
    sent = entry(0, profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=3)
    recorded(monkeypatch, entry(6, retired=True), entry(7), sent, enqueued="7")
    assert unfinished_collectives() == (
        "group 0: 7 collectives enqueued, 6 completed",
        "nccl:all_reduce number 7 of group 0, default_pg: started, inputs [[4]], outputs [[4]]",
        "nccl:send 0->1 number 3 of group 0, default_pg: started, inputs [[4]], outputs [[4]]",
    )


def test_the_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may have thousands of groups and coalesced collectives of hundreds of tensors."""
    many = [entry(number, input_sizes=[[4]] * 500) for number in range(100)]
    recorded(monkeypatch, *many, enqueued="99")
    lines = unfinished_collectives()
    assert (len(lines), max(map(len, lines))) == (MAX_COLLECTIVES, 300)


def test_a_recorder_that_is_off_has_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither has a process without torch."""
    recorded(monkeypatch, enqueued="-1")
    assert unfinished_collectives() == ()
    monkeypatch.delitem(sys.modules, C10D)
    assert unfinished_collectives() == ()
