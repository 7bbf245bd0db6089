"""Tells from its environment and command line whether an interpreter is to watch a directory.

Ranks of a job do; launchers, helpers and other Python processes do not. Before its script begins,
an interpreter knows both. Each watching process sets a variable for its children, which tells them
whether a rank started them. A ``.pth`` file makes the interpreters of an environment look.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.runtime.safe_write import write_atomic
from dynprof.steps.base import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIG, STEPS = "DYNPROF_CONFIG", VARIABLE
VENDORS_CONFIG = "PROF_CONFIG_PATH"
"""The same variable of torch_npu."""
WATCHED = "DYNPROF_WATCHED"
"""Set by a watching process for its children: its PID and its rank."""
HOOK = Path(__file__).parent / "interpreter_hook"
"""Folder for ``PYTHONPATH`` that makes interpreters start a session."""

_BEGIN = (
    "import sys\n"
    "before = set(sys.modules)\n"
    "import importlib.util as u\n"
    "if u.find_spec('dynprof'):\n"
    "    from dynprof.launch.startup import begin; begin(before)"
)
LINE = (
    f"import os; ({CONFIG!r} in os.environ or {VENDORS_CONFIG!r} in os.environ) and "
    f"exec({_BEGIN!r}, {{}})\n"
)
"""The line of the file; rarely needed code is a string, because compiling it costs the most."""
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


def effective_variable(environ: Mapping[str, str]) -> str:
    """Return the name of the variable whose directory is watched, if any is set."""
    return CONFIG if environ.get(CONFIG) else VENDORS_CONFIG


def requested_directory(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the directory to watch, empty for none, and why the vendor's variable is ignored.

    The reason is empty if the variable is used, is not set, or names the same directory.
    """
    own, vendors = environ.get(CONFIG, ""), environ.get(VENDORS_CONFIG, "")
    if own:
        differs = vendors not in ("", own)
        text = f"{VENDORS_CONFIG}={vendors} is not watched; {CONFIG} takes precedence"
        return own, text if differs else ""
    if vendors and importlib.util.find_spec("torch_npu"):
        text = f"{VENDORS_CONFIG}={vendors} is not watched; torch_npu is installed and reads it"
        return "", text
    return vendors, ""


def pth_file() -> Path:
    """Return the path of the file, which may not exist."""
    return Path(sysconfig.get_path("purelib")) / "zz_dynprof.pth"


def is_installed() -> bool:
    """Return whether the file exists."""
    return pth_file().is_file()


def install() -> Path:
    """Write the file and return its path.

    Raises:
        OSError: It cannot be written.
    """
    path = pth_file()
    write_atomic(path, LINE, mode=0o644)
    return path


def uninstall() -> bool:
    """Remove the file; return whether it existed.

    Raises:
        OSError: It cannot be removed.
    """
    there = is_installed()
    pth_file().unlink(missing_ok=True)
    return there


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
