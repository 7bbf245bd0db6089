"""``python -m dynprof.analysis TRACE...``: the analysis that a training process starts."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.read_trace import find_manifest
from dynprof.analysis.report.contents import verdict
from dynprof.analysis.runs.one_trace import draw_memory, write_analysis
from dynprof.analysis.runs.remote_files import Workspace, located, workspace_of
from dynprof.analysis.vendor_files.left_out import left_out
from dynprof.captures.manifest import NOT_WRITTEN, SILENT, VERDICT
from dynprof.errors import DynprofError, describe
from dynprof.runtime.plural import counted
from dynprof.runtime.side_process import limit_file_size, with_size_limit
from dynprof.runtime.standard_streams import replace_unencodable

if TYPE_CHECKING:
    from collections.abc import Mapping

_SETTINGS = {
    "memory_record.csv": ("profile_memory",),
    "msprof_tx.csv": ("mstx", "msprof_tx"),
    "l2_cache.csv": ("l2_cache",),
    "module_details.csv": ("with_modules",),
    "operator_flops.csv": ("with_flops",),
}
"""The settings whose only purpose is a file, by file."""


def requested_files(left_out: Mapping[str, str], config: Mapping[str, object]) -> dict[str, str]:
    """Return the missing files, with their reasons, that a setting of the config requested.

    Args:
        left_out: The reasons why files are not written, by file.
        config: The config in the manifest.
    """
    inner = config.get("experimental_config")
    settings = {**config, **(inner if isinstance(inner, dict) else {})}
    asked = {
        file
        for file, names in _SETTINGS.items()
        if any(settings.get(name) is True for name in names)
    }
    return {name: why for name, why in left_out.items() if asked & {*name.split(", ")}}


def main() -> None:
    """Analyse traces at the lowest priority.

    Raises:
        SystemExit: With the reason why it could not be done.
    """
    parser = argparse.ArgumentParser(prog="python -m dynprof.analysis")
    parser.add_argument("trace", nargs="+", help="one after the other; a path or a URL")
    parser.add_argument("--only", choices=["memory"], help="make only this part")
    parser.add_argument("--nice", type=int, default=19, help="niceness of this process")
    asked = parser.parse_args()
    replace_unencodable()
    os.nice(asked.nice)
    limit_file_size(_work_folder(asked.trace[0]))
    failures = [reason for trace in asked.trace if (reason := _analyse(trace, asked.only))]
    if failures:
        sys.exit("\n".join(failures))
    print("analysed", file=sys.stderr)  # its exit code may get lost


def _analyse(named: str, only: str | None) -> str:
    """Analyse one trace; return why it could not be done.

    The reasons for missing tables go to the manifest. Those for requested tables are printed too.
    """
    if Path(named).is_symlink():  # dynprof saves no links: another process replaced the file
        return f"{named} is a symbolic link, which is not followed"
    try:
        there = located(named)
        with workspace_of(there.parent) as place:
            trace = place.fetch_capture(there)
            measured = None if only else MeasuredTrace(trace)
            for made in write_analysis(measured, None) if measured else draw_memory(trace):
                print(place.upload(made))
            if measured:
                reasons = left_out(measured)
                _say(reasons, measured)
                _note(reasons, trace, place)
                print(VERDICT + " ".join(" ".join(verdict(measured)).split()), file=sys.stderr)
    except (DynprofError, OSError) as error:
        return with_size_limit(error, describe(error))
    return ""


def _say(reasons: dict[str, str], measured: MeasuredTrace) -> None:
    """Name the files that the config asked for, and count the others."""
    manifest = measured.manifest
    asked = requested_files(reasons, manifest.request.config if manifest else {})
    for name, why in asked.items():
        print(f"{NOT_WRITTEN}{name}, {why}", file=sys.stderr)
    if others := sum(len(name.split(", ")) for name in reasons.keys() - asked.keys()):
        print(f"{counted(others, 'file has', 'files have')} {SILENT}", file=sys.stderr)


def _note(reasons: dict[str, str], trace: Path, place: Workspace) -> None:
    """Write into a trace's manifest what was left out; it may hold more than when it was read."""
    path, manifest = find_manifest(trace)
    if path and manifest:
        manifest.model_copy(update={"left_out": reasons}).save(path)
        place.upload(path)


def _work_folder(named: str) -> Path:
    """Return the folder in which a trace is analysed."""
    return Path(tempfile.gettempdir()) if "://" in named else Path(named).parent


if __name__ == "__main__":
    main()
