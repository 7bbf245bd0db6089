"""Other users of this machine, for tests of permissions: raw ids without accounts."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Iterator

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can act as two other users; run the tests as root for this"
)


def _is_open_to_all(path: Path) -> bool:
    """Return whether every user may reach and read a path."""
    every = (path, *path.parents)
    return all(place.stat().st_mode & (stat.S_IXOTH | stat.S_IROTH) for place in every)


def _python() -> Path | None:
    """Return a Python of this version that all users can run; None for none."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = (Path(sys.executable).resolve(), Path(f"/usr/bin/python{version}"))
    return next((path for path in found if path.exists() and _is_open_to_all(path)), None)


PYTHON, PACKAGES, CHECKOUT = _python(), Path(pytest.__file__).parents[1], Path(__file__).parents[1]
others_run_python = pytest.mark.skipif(
    not PYTHON or not all(map(_is_open_to_all, (PACKAGES, CHECKOUT))),
    reason="this Python or checkout is private: other users cannot run it; put it where they can",
)


@dataclass(frozen=True)
class User:
    """A user without an account, whose only group has the same number."""

    uid: int

    def own(self, *paths: Path) -> None:
        """Give this user some paths; a link itself, not its target."""
        for path in paths:
            os.chown(path, self.uid, self.uid, follow_symlinks=False)

    @contextlib.contextmanager
    def acting(self, group: int = -1) -> Iterator[None]:
        """Act as this user, and as a member of an additional group."""
        before = os.geteuid(), os.getegid(), os.getgroups()
        os.setgroups([group] if group >= 0 else [])
        os.setegid(self.uid)
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(before[0])
            os.setegid(before[1])
            os.setgroups(before[2])

    def run(
        self, *command: str | Path, groups: tuple[int, ...] = (), **named: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user to its end, from the root directory."""
        return subprocess.run(
            [str(part) for part in command],
            user=self.uid,
            group=self.uid,
            extra_groups=list(groups),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=patience_s(),
            check=False,
            **named,
        )

    def python(
        self, code: str, *arguments: str | Path, **named: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run Python code as this user; its imports are those of the tests."""
        path = f"{CHECKOUT}:{PACKAGES}"
        environment = {"HOME": "/", "PATH": "/usr/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        environment["PYTHONPATH"] = path
        return self.run(str(PYTHON), "-c", code, *arguments, env=environment, **named)


ROOT, ALICE, MALLORY = User(0), User(61001), User(61002)
"""Root, a user who owns files, and a user without rights to them."""
COMMAND = "import os; os.environ['COLUMNS'] = '200'; from dynprof.cli.app import app; app()"
"""The Python code that runs a dynprof command as one of these users."""
