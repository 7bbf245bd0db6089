"""``dynprof attach`` where what was begun in the process cannot be done, or never answers."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from dynprof.attach.attaching import REMOTE_EXEC
from dynprof.attach.python_functions import python_functions
from dynprof.errors import LaunchError
from tests.integration.launch.attached import begun
from tests.integration.launch.reaching import needs_reaching
from tests.integration.launch.unprepared import LOOP, ended

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="attaching needs Linux"),
    pytest.mark.skipif(sys.version_info >= REMOTE_EXEC, reason="Python's own means differ"),
]


@pytest.fixture(autouse=True)
def _is_allowed() -> None:
    needs_reaching()


def test_a_python_that_was_replaced_since_it_began(tmp_path: Path) -> None:
    """Functions are looked for in the file that the process has, not in what lies there now."""
    python = tmp_path / Path(sys.executable).resolve().name
    shutil.copy(Path(sys.executable).resolve(), python)
    copies = [python]
    maps = Path("/proc/self/maps").read_text()
    if library := re.search(r"/\S*/libpython3\.\S+", maps):
        copies.append(tmp_path / Path(library[0]).name)
        shutil.copy(library[0], copies[-1])
    where = {"PYTHONHOME": sys.base_prefix, "LD_LIBRARY_PATH": str(tmp_path)}
    with begun(tmp_path, LOOP, python, **where) as process:
        before = python_functions(process.pid)
        for copy in copies:
            (tmp_path / "new").write_bytes(b"another version")
            (tmp_path / "new").rename(copy)
        try:
            assert python_functions(process.pid) == before
        except LaunchError as error:  # only root may read it
            assert f"{copies[-1]} was replaced or removed since it began" in str(error)
        assert ended(tmp_path, process) == ""
