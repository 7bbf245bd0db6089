"""Builds and installs from the sources, with and without a C compiler."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import ROOT, run

for needed in ("hatchling", "uplot", "pip"):
    pytest.importorskip(needed, reason="what dynprof is built with is not installed")

COMPILER = shutil.which("cc")
PARTS = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore", "dynprof")
MADE = ("__pycache__", "lib", "bundled")


def environment(*, compiler: bool, empty: Path) -> dict[str, str]:
    """Return the environment of a build with a compiler, or without any program."""
    clean = {k: v for k, v in os.environ.items() if k not in ("CC", "PYTHONPATH")}
    empty.mkdir(exist_ok=True)
    return clean if compiler else {**clean, "PATH": str(empty)}


def build(source: Path, *, compiler: bool) -> Path:
    """Build a wheel and return it."""
    place = source.parent / f"wheel-{source.name}-{compiler}"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    env = environment(compiler=compiler, empty=source.parent / "empty")
    done = run(command, cwd=source, env=env)
    assert done.returncode == 0, done.stderr
    (wheel,) = place.iterdir()
    return wheel


@dataclass(frozen=True)
class Built:
    """The sources as in git, and their wheels."""

    source: Path
    without: Path
    with_compiler: Path | None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return wheels of the same sources; the first build's library exists during the second."""
    source = tmp_path_factory.mktemp("built") / "source"
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns(*MADE))
        else:
            shutil.copyfile(ROOT / part, source / part)
    with_compiler = build(source, compiler=True) if COMPILER else None
    return Built(source, build(source, compiler=False), with_compiler)


def installed(wheel: Path, place: Path) -> Path:
    """Install a wheel next to this interpreter's packages; return its programs."""
    venv.create(place, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install"]
    options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", str(wheel)]
    done = run([*pip, *options])
    assert done.returncode == 0, done.stderr
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin"


def names(wheel: Path) -> set[str]:
    """Return the names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


LIBRARY = "dynprof/marks/native/lib/libms_tools_ext.so"


def test_without_a_compiler(built: Built, tmp_path: Path) -> None:
    """The wheel is for any machine, without C marks; the command says what they need."""
    assert built.without.name.endswith("-py3-none-any.whl")
    assert LIBRARY not in names(built.without)
    programs = installed(built.without, tmp_path / "venv")
    code = "import dynprof, dynprof.marks.native.library as n; "
    code += "print(dynprof.__file__, n.native_marks())"
    done = run([programs / "python", "-c", code], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    where, marks = done.stdout.split()
    assert Path(where).is_relative_to(tmp_path / "venv")
    assert marks == "None"
    done = run([programs / "dynprof", "mstx", "--path"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no C compiler was found when dynprof was installed" in " ".join(done.stderr.split())


@pytest.mark.skipif(not COMPILER, reason="there is no compiler here")
def test_with_a_compiler(built: Built, tmp_path: Path) -> None:
    """The wheel is for this platform and any Python, and has the library of C marks."""
    assert built.with_compiler
    assert "-py3-none-linux_" in built.with_compiler.name
    assert names(built.with_compiler) - names(built.without) >= {LIBRARY}
    programs = installed(built.with_compiler, tmp_path / "venv")
    done = run([programs / "dynprof", "mstx", "--path"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder.is_relative_to(tmp_path / "venv")
    code = "import dynprof.marks.native.library as n; print(type(n.native_marks()).__name__)"
    done = run([programs / "python", "-c", code], cwd=tmp_path)
    assert done.stdout == "NativeMarks\n", done.stderr


def test_the_sources_alone(built: Built, tmp_path: Path) -> None:
    """The source archive has no built files, even if they exist, and builds the same wheel."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    done = run(command, cwd=built.source)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        held = files.getnames()
    assert run(["tar", "-xzf", archive, "-C", tmp_path]).returncode == 0
    assert not [name for name in held if name.endswith((".so", ".pyc")) or "bundled" in name]
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert names(build(source, compiler=False)) == names(built.without)
