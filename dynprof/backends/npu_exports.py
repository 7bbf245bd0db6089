"""torch_npu's own exports of an NPU's recording, run in a fresh interpreter.

In the script's process they would fork it and change multiprocessing's start method.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dynprof.errors import BackendError
from dynprof.runtime.side_process import SideProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

_DONE = "done"


@contextlib.contextmanager
def exported(
    folder: Path, kind: Literal["export_chrome_trace", "export_stack"], metric: str = ""
) -> Iterator[Path]:
    """Have torch_npu export its folder; yield a file that is deleted after the body.

    Args:
        folder: The vendor's folder of one recording.
        kind: What to export, as the vendor names it.
        metric: The metric whose time counts in stacks.

    Raises:
        BackendError: torch_npu wrote no file.
    """
    # The vendor writes stacks to *.log files only; older versions write traces to *.json only.
    name = "stacks.log" if kind == "export_stack" else "trace.json"
    place = str(folder.resolve())  # /proc/self/fd means other files in another process
    with tempfile.TemporaryDirectory(prefix="dynprof-") as private:
        file = Path(private, name)
        try:
            begun = SideProcess.begin(__name__, place, kind, str(file), metric)
        except OSError as error:
            raise BackendError(f"torch_npu made no file in {kind}: {error}") from error
        failure = begun.why_failed(_DONE, wait=True)
        if not file.is_file():
            reason = failure or f"it found no data for it in {folder.name}"
            raise BackendError(f"torch_npu made no file in {kind}: {reason}")
        yield file


def main() -> None:
    """Export the folder that the command line names."""
    from torch_npu.profiler.analysis._npu_profiler import NpuProfiler

    folder, kind, file, metric = sys.argv[1:]
    NpuProfiler.analyse(folder, kind, file, metric=metric)
    print(_DONE, file=sys.stderr)


if __name__ == "__main__":
    main()
