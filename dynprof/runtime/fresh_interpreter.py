"""Fresh interpreters of dynprof, and their environment: they load no planted module.

``python -m`` and ``python -c`` put the working directory first on the path, and multiprocessing
starts its children so. A ``ctypes.py`` that another user left there would run as the job's user.
So dynprof starts its interpreters isolated. Python's own directories come first. dynprof and the
packages named with it come from the directories where this process found them. The rest of this
process's path follows, without entries that other users may write.

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
"""Variables of the shell and the C library. Python's own are ignored: it starts isolated."""
_PREFIXES = (
    "DYNPROF_", "LC_", "LD_", "MALLOC_", "ASAN_", "LSAN_", "TSAN_", "UBSAN_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "DNNL_", "ONEDNN_",
    "TORCH_", "PYTORCH_", "KINETO_", "CUDA_", "NVIDIA_", "ROCM_", "HIP_", "HSA_", "ROCR_",
    "ASCEND_", "ONEAPI_", "SYCL_", "ZE_",
)  # fmt: skip
"""Prefixes of dynprof, the loader, allocators, sanitizers, thread pools, torch and its devices."""
_SECRET = ("SECRET", "TOKEN", "PASSW", "CREDENTIAL", "_KEY", "PROF_DIRS", "ON_EVENT")
"""Names with one of these are left out in spite of a known prefix: their URLs may have a key."""

_URL_VARIABLES = {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
_URL_VARIABLES |= {"FSSPEC_CONFIG_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
"""Variables for URLs of every kind, in upper or lower case."""
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
"""Prefixes of the variables for each kind of storage, its keys among them."""
PACKAGE = "dynprof"


def environment(*places: str, **more: str) -> dict[str, str]:
    """Return the environment of a process of dynprof, in which dynprof profiles nothing.

    Args:
        places: The paths and URLs that it reads or writes.
        more: Additional variables.
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
    """Return the scheme of a URL; of a chain, that of its first place."""
    return url.partition("://")[0].rpartition("::")[2]


def _is_plain(name: str) -> bool:
    holds_a_secret = any(word in name for word in _SECRET)
    return name in _NAMES or (name.startswith(_PREFIXES) and not holds_a_secret)


def command(module: str, *arguments: str, packages: tuple[str, ...] = ()) -> list[str]:
    """Return the command line that runs a module of dynprof.

    Args:
        module: Its name.
        arguments: Its arguments.
        packages: Packages to load from the same place as in this process.

    Raises:
        RemovedError: This package or the interpreter was removed since the process began.
        FileNotFoundError: Python does not know its own program, as where it is embedded.
    """
    from dynprof.errors import RemovedError  # not available where this file is the script

    for needed in (__file__, sys.executable or __file__):
        if not os.path.exists(needed):  # noqa: PTH110 - it does not raise
            raise RemovedError(f"{needed} was removed since the job began; install dynprof again")
    if not Path(sys.executable or "").is_absolute():
        raise FileNotFoundError("the path of the Python interpreter is not known")
    homes = {name: _home(name) for name in (PACKAGE, *packages)}
    known = json.dumps({"homes": homes, "path": trusted(sys.path, homes[PACKAGE])})
    bytecode = ["-B"] if sys.dont_write_bytecode else []
    return [sys.executable, "-I", *bytecode, os.path.abspath(__file__), known, module, *arguments]  # noqa: PTH100


def trusted(path: list[str], home: str) -> list[str]:
    """Return the entries of a path into which no other user can put a module.

    The working directory is left out, unless dynprof itself was found there.

    Args:
        path: As :data:`sys.path`.
        home: The directory that has dynprof.
    """
    try:
        here = os.path.realpath(os.curdir)
    except OSError:  # it was removed, so it has no modules
        here = ""
    named = [entry for entry in path if isinstance(entry, str) and Path(entry).is_absolute()]
    allowed = {os.path.realpath(home)} | {os.path.realpath(entry) for entry in named} - {here}
    found = [entry for entry in named if os.path.realpath(entry) in allowed]
    return [entry for entry in found if not others_may_write(entry)]


def others_may_write(place: str | Path) -> bool:
    """Return whether another user can put files into a directory, or replace the directory.

    A group with the name of the owner, as many systems give each user, has no other members.
    """
    from dynprof.runtime.permissions import (  # not available where this file is the script
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
        if one == path or not facts.st_mode & stat.S_ISVTX  # the sticky bit protects its entries
    )
    return any(by_group) or bool(who_else_may_replace(Path(place)))


def _home(name: str) -> str:
    """Return the directory in which this process found a package."""
    return str(Path(str(sys.modules[name].__file__)).absolute().parent.parent)


class _Homes:
    """Finds some packages in their own directories, before the path is searched.

    Args:
        homes: The directory of each package.
    """

    def __init__(self, homes: dict[str, str]) -> None:
        self._homes = homes

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of one of the packages; None for other modules."""
        home = None if path else self._homes.get(name)
        return PathFinder.find_spec(name, [home], target) if home else None


def _start() -> None:
    """Run the module that the command line names."""
    if hasattr(signal, "pthread_sigmask"):  # dynprof's threads block signals; children inherit it
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _prefer_oom_kill()
    _, known, module, *arguments = sys.argv
    settings = json.loads(known)
    sys.path += [entry for entry in settings["path"] if entry not in sys.path]
    sys.meta_path.insert(0, _Homes(settings["homes"]))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _prefer_oom_kill() -> None:
    """Make the system kill this process first, not the job, if memory runs out: proc(5)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    _start()
