"""Fetch the Python layer of torch_npu: three pinned versions, and the newest of the index.

``fetch.py FOLDER`` writes the ``*.py`` of each wheel to ``FOLDER/<version>``. The native libraries
are left out, because a machine without an NPU cannot load them. So a wheel of any platform will do.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEELS = {"2.1.0.post8": "3.9", "2.5.1": "3.10", "2.14.0": "3.11"}
"""Versions, each with a Python for which it has a wheel."""
WHEELS_DIR = Path(os.environ.get("TORCH_NPU_WHEELS", "/none"))
"""The folder where the tests find the versions."""
NEWEST_PYTHON = "3.12"
"""A Python for which the newest version has a wheel."""
PLATFORM = (
    *("--disable-pip-version-check", "--only-binary=:all:"),
    *("--platform", "manylinux_2_28_aarch64", "--platform", "manylinux2014_aarch64"),
)


def newest() -> str:
    """Return the newest version in the index; ours if the index does not answer."""
    command = [*(sys.executable, "-m", "pip", "index", "versions", "torch-npu"), *PLATFORM]
    command += ["--python-version", NEWEST_PYTHON]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    found = re.match(r"torch-npu \((.+)\)", done.stdout)
    if found:
        return found[1]
    print("the index did not name its newest torch-npu; the newest version here counts as it")
    return list(WHEELS)[-1]


def fetch(version: str, folder: Path) -> None:
    """Download a wheel and keep its Python files."""
    python = WHEELS.get(version, NEWEST_PYTHON)
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place),
                *(*PLATFORM, "--python-version", python, f"torch-npu=={version}"),
            ],
            check=True,
        )
        (wheel,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.startswith("torch_npu/")]
            archive.extractall(folder, [n for n in names if n.endswith(".py")])


def main() -> None:
    """Fetch the missing versions."""
    for version in dict.fromkeys([*WHEELS, newest()]):
        folder = Path(sys.argv[1]) / version
        if not folder.exists():
            fetch(version, folder)


if __name__ == "__main__":
    main()
