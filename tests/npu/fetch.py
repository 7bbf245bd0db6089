"""Fetches the Python layer of torch_npu wheels: an old, a middle and the newest version.

``fetch.py FOLDER`` leaves their ``*.py`` in ``FOLDER/<version>``. The native libraries, which no
machine without an NPU can load, are left out, so any platform's wheel serves.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEELS = {"2.1.0.post8": "3.9", "2.5.1": "3.10", "2.14.0": "3.11"}
"""Versions, each with a Python that it has a wheel for."""


def fetch(version: str, folder: Path) -> None:
    """Download a wheel and keep its Python files."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place),
                *("--disable-pip-version-check", "--only-binary=:all:"),
                *("--python-version", WHEELS[version], "--platform", "manylinux_2_28_aarch64"),
                *("--platform", "manylinux2014_aarch64", f"torch-npu=={version}"),
            ],
            check=True,
        )
        (wheel,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.startswith("torch_npu/")]
            archive.extractall(folder, [n for n in names if n.endswith(".py")])


def main() -> None:
    """Fetch what is not there yet."""
    for version in WHEELS:
        folder = Path(sys.argv[1]) / version
        if not folder.exists():
            fetch(version, folder)


if __name__ == "__main__":
    main()
