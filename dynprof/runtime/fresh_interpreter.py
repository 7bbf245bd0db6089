"""Fresh interpreters of dynprof's own, and their environment: they load nothing planted.

``python -m`` and ``python -c`` put the working directory first on the path, and multiprocessing
starts its children so: a ``ctypes.py`` that somebody left there would run as the job's user. So
ours start isolated. Python's own directories come first; dynprof itself, and what is named beside
it, come from where this process has them; the rest of its path follows, as far as nobody else may
write there.

This file is also the script that such an interpreter runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import stat
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

_NAMES = {
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TZDIR", "TMPDIR", "TEMP", "TMP",
    "XDG_CACHE_HOME", "COLUMNS", "GLIBC_TUNABLES", "LOCPATH", "NLSPATH",
}  # fmt: skip
"""Of the shell and the C library; Python ignores its own, as it starts isolated."""
_PREFIXES = (
    "DYNPROF_", "LC_", "LD_", "MALLOC_", "ASAN_", "LSAN_", "TSAN_", "UBSAN_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "DNNL_", "ONEDNN_",
    "TORCH_", "PYTORCH_", "KINETO_", "CUDA_", "NVIDIA_", "ROCM_", "HIP_", "HSA_", "ROCR_",
    "ASCEND_", "ONEAPI_", "SYCL_", "ZE_",
)  # fmt: skip
"""Of dynprof, the loader, allocators, sanitizers, libraries' threads, torch and its devices."""
_SECRET = ("SECRET", "TOKEN", "PASSW", "CREDENTIAL", "_KEY", "PROF_DIRS")
"""Names with one of these are left out, though their beginning is known: URLs may hold a key."""

_URL_VARIABLES = {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
_URL_VARIABLES |= {"FSSPEC_CONFIG_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
"""For URLs of every kind, in capitals or not."""
_S3 = "AWS_", "BOTO_", "FSSPEC_S3"
_GOOGLE = (
    "GOOGLE_",
    "GCLOUD_",
    "CLOUDSDK_",
    "GCE_",
    "GCSFS_",
    "STORAGE_EMULATOR_",
    "FSSPEC_GS",
    "FSSPEC_GCS",
)
_AZURE = "AZURE_", "IDENTITY_", "MSI_", "IMDS_", "FSSPEC_AB", "FSSPEC_AZ"
STORAGE_VARIABLES: dict[str, tuple[str, ...]] = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GOOGLE,
    "gcs": _GOOGLE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
    "oss": ("OSS_", "ALIBABA_CLOUD_", "FSSPEC_OSS"),
    "oci": ("OCI_", "OCIFS_", "KUBERNETES_SERVICE_", "FSSPEC_OCI"),
    "hdfs": ("HADOOP_", "HDFS_", "KRB5", "JAVA_", "CLASSPATH", "LIBHDFS", "ARROW_", "FSSPEC_HDFS"),
}
"""How the variables of each kind of storage begin, its keys among them."""


def environment(*places: str, **more: str) -> dict[str, str]:
    """Return the environment of a process of dynprof's, in which dynprof profiles nothing.

    Args:
        places: The paths and URLs that it reads or writes.
        more: Variables that it gets in any case.
    """
    kinds = {_kind(place) for place in places if "://" in place}
    of_kinds = tuple(one for kind in kinds for one in STORAGE_VARIABLES.get(kind, ()))
    kept = {
        name: value
        for name, value in os.environ.items()
        if _is_plain(name)
        or (kinds and name.upper() in _URL_VARIABLES)
        or (of_kinds and name.startswith(of_kinds))
    }
    return {**kept, "DYNPROF_DISABLE": "1", **more}


def _kind(url: str) -> str:
    """Return the kind of storage that a URL names; of a chain, that of its first place."""
    return url.partition("://")[0].rpartition("::")[2]


def _is_plain(name: str) -> bool:
    holds_a_secret = any(word in name for word in _SECRET)
    return name in _NAMES or (name.startswith(_PREFIXES) and not holds_a_secret)


PACKAGE = "dynprof"


def command(module: str, *arguments: str, packages: tuple[str, ...] = ()) -> list[str]:
    """Return the command line that runs a module of dynprof's.

    Args:
        module: Its name.
        arguments: Its arguments.
        packages: What it shall have from the very place where this process has it.

    Raises:
        RemovedError: This package or the interpreter was removed since the process began.
        FileNotFoundError: Python does not know its own program, as where it is embedded.
    """
    from dynprof.errors import RemovedError  # not where this is the script

    for needed in (__file__, sys.executable or __file__):
        if not os.path.exists(needed):  # noqa: PTH110 - raises nothing
            raise RemovedError(f"{needed} was removed since the job began; install dynprof again")
    if not Path(sys.executable or "").is_absolute():
        raise FileNotFoundError("the path of the Python interpreter is not known")
    homes = {name: _home(name) for name in (PACKAGE, *packages)}
    known = json.dumps({"homes": homes, "path": trusted(sys.path, homes[PACKAGE])})
    bytecode = ["-B"] if sys.dont_write_bytecode else []
    return [sys.executable, "-I", *bytecode, os.path.abspath(__file__), known, module, *arguments]  # noqa: PTH100


def trusted(path: list[str], home: str) -> list[str]:
    """Return the entries of a path from which nobody can slip in a module.

    Not the working directory, unless dynprof itself was found there.

    Args:
        path: As :data:`sys.path`.
        home: Where dynprof lies.
    """
    try:
        here = os.path.realpath(os.curdir)
    except OSError:  # it was removed: nothing can lie there
        here = ""
    named = [entry for entry in path if isinstance(entry, str) and Path(entry).is_absolute()]
    allowed = {os.path.realpath(home)} | {os.path.realpath(entry) for entry in named} - {here}
    found = [entry for entry in named if os.path.realpath(entry) in allowed]
    return [entry for entry in found if not others_may_write(entry)]


def others_may_write(place: str | Path) -> bool:
    """Return whether another user can put files into a directory, or another one in its place.

    A group with the name of the owner, as many systems give each user, has no other members.
    """
    from dynprof.runtime.who_may_change import (  # not where this is the script
        is_private_group,
        who_else_may_replace,
    )

    path = Path(os.path.realpath(place))
    try:
        facts_of = {one: one.stat() for one in (path, *path.parents)}
    except OSError:
        return True
    if facts_of[path].st_mode & stat.S_IWOTH:
        return True
    by_group = (
        facts.st_mode & stat.S_IWGRP and not is_private_group(facts.st_gid, facts.st_uid)
        for one, facts in facts_of.items()
        if one == path or not facts.st_mode & stat.S_ISVTX  # which keeps what is in it apart
    )
    return any(by_group) or bool(who_else_may_replace(Path(place)))


def _home(name: str) -> str:
    """Return the directory in which this process found a package."""
    return str(Path(str(sys.modules[name].__file__)).absolute().parent.parent)


class _Homes:
    """Finds some packages in their own places, whatever the path says.

    Args:
        homes: The directory of each.
    """

    def __init__(self, homes: dict[str, str]) -> None:
        self._homes = homes

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return where a package is; None for every other one."""
        home = None if path else self._homes.get(name)
        return PathFinder.find_spec(name, [home], target) if home else None


def _start() -> None:
    """Run the module that the command line names."""
    if hasattr(signal, "pthread_sigmask"):  # started by a thread that leaves them to the job
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _prefer_oom_kill()
    _, known, module, *arguments = sys.argv
    settings = json.loads(known)
    sys.path += [entry for entry in settings["path"] if entry not in sys.path]
    sys.meta_path.insert(0, _Homes(settings["homes"]))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _prefer_oom_kill() -> None:
    """Have the system kill this process, and not the job, where memory runs out: proc(5)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    _start()
