"""The newest window of a job, and captures outside its config's directory."""

from __future__ import annotations

from pathlib import Path

from dynprof.cli.config_directory import statuses
from dynprof.cli.outcome import say, say_skipped
from dynprof.errors import CaptureError
from dynprof.runtime.destination import is_url
from dynprof.runtime.job_files import written_s


def say_if_elsewhere(path: Path) -> None:
    """Print where a job's newest captures are, if the given folder has only older ones.

    Args:
        path: The argument of the command: a config's directory, or any other folder or file.
    """
    told = [status.last_capture for status in statuses(path) if status.last_capture]
    sent = [name for name in told if is_url(name)]
    manifests = [Path(name) for name in told if Path(name).is_absolute()]
    newest = max((written_s(one) for one in manifests), default=0.0)
    if not sent and (not newest or newest <= _newest_below(path)):
        return
    folders = sorted({str(one.parent.parent) for one in manifests if written_s(one)})
    folders += sorted({name.rpartition("/info/")[0] for name in sent})
    say(f"newer captures are elsewhere, as prof_dir says: {', '.join(folders)}", err=True)


def _newest_below(path: Path) -> float:
    from dynprof.analysis.runs.one_trace import traces_in

    try:
        return max(written_s(trace) for trace in traces_in(path))
    except CaptureError:
        return 0.0


def newest_window(path: Path) -> Path:
    """Return the window to read below a path; print which newer windows have no capture."""
    from dynprof.analysis.runs.recorded_window import newest_window as newest

    path = path.resolve() if path.is_symlink() else path  # a link that the user names is followed
    say_skipped(path)
    found, passed_over = newest(path)
    for words in passed_over:
        say(f"skipped: {words}", err=True)
    return found
