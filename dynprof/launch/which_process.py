"""Distinguishes the ranks of a job from launchers, helpers and other Python processes.

Before its script begins, an interpreter knows its command line and its environment. Each watching
process sets a variable for its children, which tells them whether a rank started them.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.launch.variables import WATCHED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LAUNCHERS = (
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic",
    "accelerate", "accelerate.commands", "deepspeed", "deepspeed.launcher", "colossalai",
    "composer", "composer.cli", "horovodrun", "horovod.runner", "ray", "fabric", "bagua",
)  # fmt: skip
"""Programs and modules, with their submodules, that start ranks and are not ranks."""
TOOLS = (
    "pip", "pip3", "uv", "pipx", "conda", "ensurepip", "venv", "virtualenv", "pydoc", "dynprof",
    "torch._inductor.compile_worker", "torch.utils.collect_env", "wandb", "tensorboard", "ninja",
    "setup.py", "py_spy", "memray", "fresh_interpreter.py",
)  # fmt: skip
"""Programs and modules that are never a job."""
_WORKERS = ("multiprocessing", "joblib.externals.loky", "ray._private")
"""Modules that start worker processes with ``-c`` or ``-m``."""


@dataclass(frozen=True)
class Program:
    """What an interpreter runs.

    Attributes:
        kind: ``script``, ``module``, ``code`` or ``terminal``.
        name: The file's path, the module's name or the code; empty for a terminal.
    """

    kind: str
    name: str

    def import_folders(self) -> list[str]:
        """Return what may be first on its import path: its folder, or the script itself.

        Python can run a folder or an archive with a ``__main__.py``, and imports from it.
        """
        if self.kind == "script":
            return [self.name, os.path.dirname(os.path.realpath(self.name))]  # noqa: PTH120
        return [os.getcwd()]  # noqa: PTH109 - costs each start

    @classmethod
    def of(cls, called: Sequence[str], argv: Sequence[str]) -> Program:
        """Return what this interpreter runs.

        Args:
            called: Its whole command line, as in :data:`sys.orig_argv`.
            argv: :data:`sys.argv` before the script begins.
        """
        first = argv[0] if argv else ""
        before = list(called[: len(called) - max(0, len(argv) - 1)])
        last = before[-1] if before else ""
        if first == "-m":
            return cls("module", last[2:] if last.startswith("-m") else last)
        if first == "-c":
            return cls("code", last[2:] if last.startswith("-c") else last)
        return cls("script", first) if first else cls("terminal", "")

    @property
    def short_name(self) -> str:
        """Its name in the lists above; a script keeps its suffix: ``ray.py`` is not ``ray``."""
        if self.kind != "script":
            return self.name
        path = Path(self.name)
        of_a_package = path.name in ("__main__.py", "__init__.py")
        return path.parent.name if of_a_package else path.name

    def is_one_of(self, names: Sequence[str]) -> bool:
        """Return whether it is one of these programs or modules, or a submodule of one."""
        if self.kind == "module":
            return any(f"{self.name}.".startswith(f"{name}.") for name in names)
        return self.kind == "script" and self.short_name in names


def why_not_a_rank(program: Program, environ: Mapping[str, str], pid: int) -> str:
    """Return why a process is not a rank of a job; empty if it seems to be one.

    Args:
        program: What it runs.
        environ: Its environment.
        pid: Its PID.
    """
    if program.kind == "terminal":
        return "it is an interactive interpreter"
    if program.is_one_of(LAUNCHERS):
        return f"{program.short_name} starts ranks and is not one"
    if program.is_one_of(TOOLS):
        return f"{program.short_name} is not a job"
    if program.kind in ("code", "module") and any(name in program.name for name in _WORKERS):
        return "it is a worker process"
    owner, _, rank = environ.get(WATCHED, "").partition(" ")
    if owner and owner != str(pid) and rank == rank_text(environ):
        return f"process {owner}, which is watched, or one of its children started it"
    return ""


def rank_text(environ: Mapping[str, str]) -> str:
    """Return the rank that a launcher gave to a process, as one word; empty for none."""
    return ",".join(f"{name}={environ[name]}" for name in RANK_VARIABLES if environ.get(name))


def this_program() -> Program:
    """Return what this interpreter runs."""
    return Program.of(sys.orig_argv, getattr(sys, "argv", []))


def mark_as_watched() -> None:
    """Tell the processes that this one starts that it is watched."""
    os.environ[WATCHED] = f"{os.getpid()} {rank_text(os.environ)}"
