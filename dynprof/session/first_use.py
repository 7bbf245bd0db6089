"""What reads and writes is built, and used once, before there are threads.

Pydantic holds locks as it builds a reader, and as one makes the first thing of a kind, and lets
other threads go on meanwhile. A child that the job forks just then never gets such a lock: in any
call of pydantic of its own, as a loader's worker may make, it waits for ever.
"""

from __future__ import annotations

import contextlib

from dynprof.captures.manifest import RequestRecord


def use_readers() -> None:
    """Read and write each kind of thing that the threads of a session read and write."""
    record = RequestRecord(number=0, edited_at="", sha256="", config={})
    RequestRecord.model_validate_json(record.model_dump_json())
    with contextlib.suppress(ValueError):
        RequestRecord.model_validate_json("{}")
