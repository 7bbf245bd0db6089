"""The descriptors 0, 1 and 2: where a job has closed them, the next to open something gets them.

What dynprof keeps open must not be there. Whatever writes to standard error from C writes to 2,
and a job that becomes a daemon puts ``/dev/null`` in the place of all three.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from dynprof.files.far_descriptors import LAST_STREAM

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def standard_descriptors_avoided() -> Iterator[None]:
    """Have nothing that is opened meanwhile be one of them; then they are closed as before."""
    with contextlib.ExitStack() as taken:
        while (number := os.open(os.devnull, os.O_RDWR)) <= LAST_STREAM:
            taken.callback(os.close, number)
        os.close(number)
        yield
