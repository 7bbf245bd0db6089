"""The self-test of the detached close; runs once for each build of torch, in a fresh process.

``dynprof.backends.torch.detached_close_selftest LIBRARY`` records a few operators, closes the
recording in the detached way and reads the trace back. It repeats this with a recording that torch
closed, and prints what it found. If a call goes wrong, that process crashes, not a training job.
Its exit code means nothing: a job that ignores SIGCHLD, or waits for any child, cannot read it.

Only the test's own findings are cached for other processes. A process that crashed, was killed or
could not start proves nothing about the build: a memory limit also aborts it. A later request
tries again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.backends.torch.detached_close import find_functions, library, writer_of
from dynprof.backends.torch.features import experimental_config, has
from dynprof.errors import BackendError
from dynprof.runtime.fresh_interpreter import command, environment
from dynprof.runtime.memory import free_mb
from dynprof.runtime.safe_open import make_dir, open_regular
from dynprof.runtime.safe_write import write_atomic
from dynprof.runtime.side_process import limit_file_size
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    import threading

    from dynprof.backends.torch.detached_close import DetachedState

STEPS = 3
"""Steps of the test's window."""
UNFINISHED = "has not ended"
TIMEOUT_S = 180.0
"""Longest time of the test, in seconds; it imports torch, perhaps from a slow disk."""
RETRY_S = 600.0
"""Seconds after which a request repeats a test that gave no final answer."""
NEEDS_MB = 200
"""Free memory that the test needs, in MB (10^6 bytes): loading torch takes 155 of a container."""
MAX_BYTES = 1 << 16
"""Bytes that are read of the cached verdict; a verdict is never this large."""


@dataclass(frozen=True)
class Verdict:
    """The result of a test.

    Attributes:
        answer: Empty where the detached close may be used, else why not.
        is_final: Whether it holds for this build; else only for this attempt.
    """

    answer: str
    is_final: bool = False


class SelfTest:
    """The answer of the self-test; until it is known, the ordinary close is used.

    Attributes:
        answer: Empty where the detached close may be used, else why not; None while unknown.
    """

    def __init__(self) -> None:
        self.answer: str | None = None
        self._is_final = False
        self._thread: threading.Thread | None = None
        self._began_s = 0.0

    def running_s(self) -> float:
        """Return the seconds since the test began."""
        return time.monotonic() - self._began_s if self._thread else 0.0

    @property
    def is_running(self) -> bool:
        """Whether the answer may be about to change."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self) -> None:
        """Find this build's answer in the background; once, unless there was no final answer."""
        if self._thread is None or (not self._is_final and self.running_s() > RETRY_S):
            self._began_s = time.monotonic()
            self._thread = own_thread(self._run, "dynprof-selftest")
            self._thread.start()

    def _run(self) -> None:
        verdict = Verdict("the self-test of the detached close failed")
        try:
            verdict = cached_verdict()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            verdict = Verdict(f"the self-test of the detached close could not run: {error}")
        finally:  # windows wait for an answer
            self.answer, self._is_final = verdict.answer, verdict.is_final


SELF_TEST = SelfTest()
"""The process's self-test."""


def cached_verdict() -> Verdict:
    """Return the cached verdict for this build, else that of a fresh interpreter.

    Raises:
        OSError: No process can be started.
    """
    cache = cache_file()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return Verdict(_read_cache(cache), is_final=True)
    verdict = run_in_fresh_interpreter()
    if verdict.is_final:
        with contextlib.suppress(OSError):
            _write_cache(cache, verdict.answer)
    return verdict


def run_in_fresh_interpreter() -> Verdict:
    """Run the self-test.

    Raises:
        OSError: No process can be started.
    """
    if (free := free_mb()) < NEEDS_MB:
        text = f"{free:,.0f} MB of memory are free, and its self-test needs {NEEDS_MB}"
        return Verdict(f"the detached close was not tried: {text}")
    try:
        done = subprocess.run(
            command(
                "dynprof.backends.torch.detached_close_selftest",
                str(library()),
                packages=("torch",),
            ),
            env=environment(CUDA_VISIBLE_DEVICES=""),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Verdict(f"the self-test of the detached close took longer than {TIMEOUT_S:.0f} s")
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return Verdict(str(json.loads(done.stdout.splitlines()[-1])["verdict"]), is_final=True)
    said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
    return Verdict(
        f"the self-test of the detached close ended with code {done.returncode}: {said[0][:200]}"
    )


def cache_file() -> Path:
    """Return the cache file for this build of torch, Python and dynprof."""
    facts = library().stat()
    build = f"{library()} {facts.st_size} {facts.st_mtime_ns} {sys.version} {__file__} 4"
    digest = hashlib.sha256(build.encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))  # ignored unless absolute
    home = home if home.is_absolute() else Path(os.path.expanduser("~/.cache"))  # noqa: PTH111
    return home / "dynprof" / f"close-{digest}.json"


def _read_cache(cache: Path) -> str:
    """Return the answer in a cache file. A user who can write the file could crash the job.

    Raises:
        OSError: There is no file, or another user may have written it.
        ValueError: It holds no answer; likewise KeyError and TypeError.
    """
    _check_own(cache.parent.stat())
    if cache.parent.stat().st_mode & 0o022:
        raise PermissionError(f"others may write in {cache.parent}")
    with open_regular(cache) as file:
        _check_own(os.fstat(file.fileno()))
        answer = json.loads(file.read(MAX_BYTES))["verdict"]
    if not isinstance(answer, str):
        raise TypeError(f"{answer!r} is no answer")
    return answer


def _write_cache(cache: Path, answer: str) -> None:
    """Write an answer to a cache file that only this user can access.

    Raises:
        OSError: It cannot be written.
    """
    make_dir(cache.parent)
    _check_own(cache.parent.stat())
    cache.parent.chmod(0o700)
    write_atomic(cache, json.dumps({"verdict": answer, "library": str(library())}) + "\n")


def _check_own(facts: os.stat_result) -> None:
    if facts.st_uid != os.geteuid():
        raise PermissionError("it is another user's")


def main() -> None:
    """Record, close, read back.

    Raises:
        SystemExit: The command line names another build.
    """
    os.nice(5)  # at 19 it waited a minute and more on a busy machine
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an answer
    limit_file_size(Path(tempfile.gettempdir()))
    if [str(library())] != sys.argv[1:]:
        raise SystemExit(f"it was asked about {sys.argv[1:]}, but found {library()}")
    missing = ""
    for all_threads in (False, True)[: 1 + has("profile_all_threads")]:
        if missing := _record(all_threads=all_threads):
            break
    missing = missing or _write_torchs_own()
    print(
        json.dumps({"verdict": missing and f"the self-test of the detached close says: {missing}"})
    )


def _record(*, all_threads: bool) -> str:
    """Record some steps, on this thread or on all; return what the trace lacks."""
    import torch
    from torch.autograd.profiler import profile, record_function

    try:
        functions = find_functions()
    except BackendError as error:
        return str(error)
    config = experimental_config({"profile_all_threads": all_threads})
    more = {"experimental_config": config, "profile_memory": not all_threads}
    profile(use_kineto=True, use_cpu=True, record_shapes=True, with_stack=True, **more).__enter__()
    for number in range(STEPS):
        with record_function(f"ProfilerStep#{number}"):
            torch.mm(torch.ones(4, 5), torch.ones(5, 6))
    with record_function(UNFINISHED):
        taken = functions.detach_all() if all_threads else functions.detach()
        if missing := _read_back(taken, with_memory=not all_threads):
            return missing
    return ""


def _write_torchs_own() -> str:
    """Let torch close, then write without the GIL; return what the trace lacks."""
    import torch
    from torch.autograd.profiler import profile

    with profile(use_kineto=True, use_cpu=True) as profiler:
        torch.mm(torch.ones(4, 5), torch.ones(5, 6))
    try:
        write = writer_of(profiler, find_functions())
    except BackendError:  # jobs detect this themselves, and let torch write
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write(path)
        names = {event["name"] for event in json.loads(path.read_text())["traceEvents"]}
    return "" if "aten::mm" in names else "a recording that torch closed cannot be written"


def _read_back(taken: DetachedState, *, with_memory: bool) -> str:
    """Collect and write on another thread while operators run; return what the trace lacks."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        path = Path(folder) / "trace.json"
        collected = pool.submit(taken.collect)
        torch.mm(torch.ones(4, 5), torch.ones(5, 6))
        collected.result()
        pool.submit(taken.write, path).result()
        return what_is_missing(path, with_memory=with_memory)


def what_is_missing(path: Path, *, with_memory: bool = True) -> str:
    """Return what a self-test's trace lacks; empty where it is complete."""
    events = json.loads(path.read_text())["traceEvents"]
    products = [e for e in events if e["name"] == "aten::mm" and e.get("cat") == "cpu_op"]
    names = {event["name"] for event in events}
    if len(products) != STEPS:
        return f"{len(products)} of {STEPS} operators are in the trace"
    if products[0]["args"].get("Input Dims") != [[4, 5], [5, 6]]:
        return "the shapes are not in the trace"
    expected = {f"ProfilerStep#{number}" for number in range(STEPS)}
    if not names >= expected | ({"[memory]"} if with_memory else set()):
        return "the steps or the memory events are not in the trace"
    unfinished = [event["args"].get("finished") for event in events if event["name"] == UNFINISHED]
    if unfinished != [False]:
        return "the trace does not mark a range that has not ended"
    return ""


if __name__ == "__main__":
    main()
