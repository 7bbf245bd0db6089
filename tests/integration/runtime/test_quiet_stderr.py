"""The job's stderr has only the job's own lines."""

from __future__ import annotations

import sys

from tests.processes import run


def test_watchdogs_log_stays_out_of_the_jobs_stderr() -> None:
    """A job with its own logging still gets these lines there."""
    say = "import logging, dynprof.requests.config_watcher; {}"
    say += "logging.getLogger('watchdog.observers.inotify').error('the thread is inactive')"
    for begin, wanted in (("", ""), ("logging.basicConfig(); ", "the thread is inactive")):
        done = run([sys.executable, "-c", say.format(begin)])
        assert done.returncode == 0
        assert wanted in done.stderr
        assert bool(wanted) == bool(done.stderr)
