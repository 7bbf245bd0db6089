"""A command that tests run as another user: ``PATH WHAT``."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import sys
import webbrowser
from pathlib import Path

ESCAPE = "\x1b]0;title\x07"


class _Touch:
    """Create a file when its pickle is loaded."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        """Return the call that creates the file."""
        return Path.touch, (Path(self._path),)


def facts() -> None:
    """Print the privileges of root that this process still has."""
    try:
        os.setresuid(0, 0, 0)
        back = True
    except PermissionError:
        back = False
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        terminal = -1
    try:
        browser = str(webbrowser.get())
    except webbrowser.Error:
        browser = ""
    told = {
        "ids": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
        "back": back,
        "terminal": terminal,
        "browser": browser,
        "folder": str(Path.cwd()),
        "environment": dict(os.environ),
        "input": str(Path("/proc/self/fd/0").readlink()),
    }
    print(json.dumps(told))


def speak(path: str) -> None:
    """Print terminal escape codes, bytes that are not text, and a pickle."""
    sys.stdout.buffer.write(f"a\tb {ESCAPE}\r\n".encode() + b"\xff\n" + pickle.dumps(_Touch(path)))
    sys.stderr.write(f"error {ESCAPE}\n")
    sys.stderr.flush()


def wait(*, stubborn: bool) -> None:
    """Wait for Ctrl-C; end with code 7 if it comes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    print("waits", os.getpid(), flush=True)
    signal.sigwait({signal.SIGINT})
    print("interrupted", flush=True)
    if stubborn:
        signal.pause()
    sys.exit(7)


def main(what: str, *more: str) -> None:
    """Run the action that the test requested."""
    if what == "facts":
        facts()
    elif what == "speak":
        speak(more[0])
    elif what == "end":
        sys.exit(int(more[0]))
    elif what == "die":
        os.kill(os.getpid(), int(more[0]))
    elif what == "endless":
        with contextlib.suppress(BrokenPipeError):
            while True:
                print("line", flush=True)
        os._exit(9)
    else:
        wait(stubborn=what == "stubborn")


if __name__ == "__main__":
    main(*sys.argv[2:])
