"""Other users of this machine, for tests of who may do what: raw ids, which need no account."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can act as two other users; run the tests as root for this"
)


def _is_open_to_all(path: Path) -> bool:
    """Return whether every user may reach and read a path."""
    every = (path, *path.parents)
    return all(place.stat().st_mode & (stat.S_IXOTH | stat.S_IROTH) for place in every)


others_run_python = pytest.mark.skipif(
    not all(
        map(_is_open_to_all, (Path(sys.executable).resolve(), Path(sys.prefix), Path(__file__)))
    ),
    reason="this Python or checkout is private: other users cannot run it; put it where they can",
)


@dataclass(frozen=True)
class User:
    """A user without an account, whose only group has the same number."""

    uid: int

    def own(self, *paths: Path) -> None:
        """Give this user some paths, links themselves and not what they lead to."""
        for path in paths:
            os.chown(path, self.uid, self.uid, follow_symlinks=False)

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
            timeout=60,
            check=False,
            **named,
        )

    def python(
        self, code: str, *arguments: str | Path, **named: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run Python code as this user; its imports are those of the tests."""
        environment = {**os.environ, "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}
        return self.run(sys.executable, "-c", code, *arguments, env=environment, **named)


ALICE, MALLORY = User(61001), User(61002)
"""One whose files are at stake, and one who has no right to them."""
