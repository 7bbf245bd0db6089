"""Build, check and install the files for a package index, for ``make dist``.

``dist/`` gets the sources and a wheel for each architecture. ``dist/sbom/`` gets the packages that
all extras install, in CycloneDX format. Zig is the C compiler: it links against an old glibc, and
for other architectures.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
GLIBC = "2.17"  # released in 2012; every Linux with wheels of Python 3.11 has a newer one
ARCHITECTURES = "x86_64", "aarch64"
OLD = {
    "attrs": "23.2.0",
    "click": "8.1.7",
    "jsonschema": "4.17.3",
    "msgspec": "0.18.6",
    "numpy": "1.23.5",
    "psutil": "5.9.8",
    "pydantic": "2.9.2",
    "rich": "13.7.1",
    "typer": "0.12.5",
    "typing_extensions": "4.9.0",
}
"""Versions of a training environment of 2024. Installing dynprof must not change them."""
CHARTS = "dynprof/analysis/report/bundled/uPlot.iife.js"


def run(*command: object, **variables: str) -> str:
    """Run a command, show what it prints, and return that.

    Raises:
        SystemExit: It failed.
    """
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, end="", flush=True)
    if done.returncode:
        sys.exit(f"failed with code {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


def python(*arguments: object, **variables: str) -> str:
    """Run this interpreter with arguments."""
    return run(sys.executable, "-m", *arguments, **variables)


def build() -> tuple[Path, dict[str, Path]]:
    """Build the sources, and from them the wheel of each architecture; return the files."""
    shutil.rmtree(DIST, ignore_errors=True)
    python("build", "--sdist", "--outdir", DIST)
    (sources,) = DIST.glob("*.tar.gz")
    wheels = {}
    for architecture in ARCHITECTURES:
        compiler = f"{sys.executable} -m ziglang cc -target {architecture}-linux-gnu.{GLIBC}"
        tag = f"manylinux_{GLIBC.replace('.', '_')}_{architecture}"
        with tempfile.TemporaryDirectory() as folder:
            shutil.unpack_archive(sources, folder, filter="data")
            (unpacked,) = Path(folder).iterdir()
            variables = {"CC": compiler, "DYNPROF_WHEEL_PLATFORM": tag}
            python("build", "--wheel", "--outdir", DIST, unpacked, **variables)
        (wheels[architecture],) = DIST.glob(f"*-py3-none-{tag}.whl")
    return sources, wheels


def check(sources: Path, wheels: dict[str, Path]) -> None:
    """Check metadata, and that each wheel's library needs no newer glibc than its tag says.

    Raises:
        SystemExit: One of them would be refused.
    """
    python("twine", "check", "--strict", sources, *wheels.values())
    for wheel in wheels.values():
        tag = wheel.stem.rpartition("-")[2]
        said = " ".join(python("auditwheel", "show", wheel).split())
        if f'consistent with the following platform tag: "{tag}"' not in said:
            sys.exit(f"{wheel.name} is refused: auditwheel does not find it consistent with {tag}")


def try_out(package: Path, folder: Path) -> Path:
    """Install a package into an empty environment, first alone; return the environment's Python.

    Raises:
        SystemExit: The demo fails, or a missing extra is not named.
    """
    print(f"\n{package.name}, in an empty environment:", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    command, interpreter = folder / "bin" / "dynprof", folder / "bin" / "python"
    run(interpreter, "-m", "pip", "install", "--quiet", package)
    run(command, "--version")
    said = subprocess.run([command, "demo"], capture_output=True, text=True, check=False)
    asked = subprocess.run(
        [command, "demo", "--backend", "python"], capture_output=True, text=True, check=False
    )
    if "pip install torch" not in said.stderr or "dynprof[viewer]" not in asked.stderr:
        sys.exit(f"the demo does not say what is missing: {said.stderr}{asked.stderr}")
    run(interpreter, "-m", "pip", "install", "--quiet", f"{package}[all]")
    run(command, "demo", "--backend", "python")
    run(command, "mstx")
    return interpreter


def try_in_old_environment(package: Path, folder: Path) -> None:
    """Install a package into an environment with old versions, which must stay.

    Raises:
        SystemExit: pip would change one of them.
    """
    if sys.version_info >= (3, 12):
        print("\nold environment: not tried, its numpy has no wheel for this Python")
        return
    print(f"\n{package.name}, in an environment with old versions:", flush=True)
    venv.create(folder, with_pip=True)
    install = folder / "bin" / "python", "-m", "pip", "install", "--quiet"
    run(*install, *(f"{name}=={version}" for name, version in OLD.items()))
    report = folder / "report.json"
    run(*install, "--dry-run", "--report", report, f"{package}[all]")
    planned = {
        canonicalize_name(one["metadata"]["name"]): one["metadata"]["version"]
        for one in json.loads(report.read_text())["install"]
    }
    print("pip adds:", ", ".join(f"{name} {version}" for name, version in planned.items()))
    if changed := {name for name in OLD if canonicalize_name(name) in planned}:
        sys.exit(f"pip would change {', '.join(sorted(changed))}; lower what pyproject.toml needs")
    run(*install, f"{package}[all]")
    run(folder / "bin" / "dynprof", "demo", "--backend", "python")


def write_sbom(interpreter: Path, wheel: Path) -> None:
    """Write an SBOM of dynprof, its extras, and the chart library in the wheel."""
    path = DIST / "sbom" / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    path.parent.mkdir()
    pyproject = "--pyproject", ROOT / "pyproject.toml"
    python("cyclonedx_py", "environment", *pyproject, "--output-file", path, interpreter)
    bill = json.loads(path.read_text())
    with zipfile.ZipFile(wheel) as parts:
        found = re.search(rb"uPlot \(v([\d.]+)\)", parts.read(CHARTS))
    charts = {
        "type": "library",
        "bom-ref": "uplot",
        "name": "uPlot",
        "version": found[1].decode() if found else "",
        "licenses": [{"license": {"id": "MIT"}}],
        "description": "in the wheel, for the report's charts",
    }
    bill["components"].append(charts)
    path.write_text(json.dumps(bill, indent=2) + "\n")
    print(f"{path.relative_to(ROOT)}: {len(bill['components'])} components")


def main() -> None:
    """Build the distributions, check them, and install them."""
    sources, wheels = build()
    check(sources, wheels)
    with tempfile.TemporaryDirectory() as folder:
        for architecture, wheel in wheels.items():
            if architecture == platform.machine():
                interpreter = try_out(wheel, Path(folder, "wheel"))
                write_sbom(interpreter, wheel)
                try_in_old_environment(wheel, Path(folder, "old"))
            else:
                print(f"\n{wheel.name}: not run, this machine is {platform.machine()}")
        try_out(sources, Path(folder, "sources"))
    print("\nThe index takes:", *(path.relative_to(ROOT) for path in (sources, *wheels.values())))


if __name__ == "__main__":
    main()
