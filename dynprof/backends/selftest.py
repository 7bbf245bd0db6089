"""Does the detached close work with this build of torch? Asked once a build, in a fresh process.

``python -m dynprof.backends.selftest`` records a few operators, closes the recording in the
detached way and reads the trace back; it exits with 0 only if everything is in it. If a call
goes wrong, that process crashes, not a training job.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dynprof.backends.libtorch import can_record_all_threads, find, library
from dynprof.layout import make_dir, write_atomic

STEPS = 3
PATIENCE_S = 180.0


class SelfTest:
    """The answer, as soon as it is known; until then the ordinary close is used.

    Attributes:
        answer: Empty where the detached close may be used, else why not; None while unknown.
    """

    def __init__(self) -> None:
        self.answer: str | None = None
        self._thread: threading.Thread | None = None
        self._began_s = 0.0

    def running_s(self) -> float:
        """Return for how many seconds it has been looked for."""
        return time.monotonic() - self._began_s if self._thread else 0.0

    def begin(self) -> None:
        """Look for the answer of this build, in the background; once."""
        if self._thread is None:
            self._began_s = time.monotonic()
            self._thread = threading.Thread(target=self._ask, name="dynprof-selftest", daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        try:
            self.answer = _remembered_answer()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.answer = f"its self-test could not run: {error}"
        finally:  # windows wait for an answer
            self.answer = "its self-test failed" if self.answer is None else self.answer


SELF_TEST = SelfTest()
"""The process asks once."""


def _remembered_answer() -> str:
    cache = cache_file()
    try:
        answer = json.loads(cache.read_text())["answer"]
        return str(answer)
    except (OSError, ValueError, KeyError, TypeError):
        answer = ask_fresh_interpreter()
    make_dir(cache.parent)
    write_atomic(cache, json.dumps({"answer": answer, "library": str(library())}) + "\n")
    return answer


def ask_fresh_interpreter() -> str:
    """Run the self-test; return an empty answer, or why the detached close must not be used."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "DYNPROF_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "dynprof.backends.selftest"],
        env={**os.environ, **hidden},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode == 0:
        return ""
    said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no words"]
    return f"its self-test ended with code {done.returncode}: {said[0][:200]}"


def cache_file() -> Path:
    """Return where the answer for this build of torch, Python and dynprof is kept."""
    facts = library().stat()
    build = f"{library()} {facts.st_size} {facts.st_mtime_ns} {sys.version} {__file__}"
    digest = hashlib.sha256(build.encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "dynprof" / f"close-{digest}.json"


def main() -> None:
    """Record, close, read back.

    Raises:
        SystemExit: Something is missing from the trace.
    """
    os.nice(5)  # at 19 a busy machine kept it waiting for a minute and more
    for everywhere in (False, True)[: 1 + can_record_all_threads()]:
        if missing := _record(everywhere=everywhere):
            raise SystemExit(missing)


def _record(*, everywhere: bool) -> str:
    """Record some steps, on this thread or on all; return what the trace lacks."""
    import torch
    from torch.autograd.profiler import profile, record_function

    functions = find()
    more = {"experimental_config": _all_threads()} if everywhere else {"profile_memory": True}
    profile(use_kineto=True, use_cpu=True, record_shapes=True, with_stack=True, **more).__enter__()
    for number in range(STEPS):
        with record_function(f"ProfilerStep#{number}"):
            torch.mm(torch.ones(4, 5), torch.ones(5, 6))
    taken = functions.take_off(everywhere=everywhere)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        path = Path(folder) / "trace.json"
        collected = pool.submit(taken.collect)
        torch.mm(torch.ones(4, 5), torch.ones(5, 6))
        collected.result()
        pool.submit(taken.write, path).result()
        return what_is_missing(path, with_memory=not everywhere)


def _all_threads() -> Any:
    from torch._C._profiler import _ExperimentalConfig

    return _ExperimentalConfig(profile_all_threads=True)


def what_is_missing(path: Path, *, with_memory: bool = True) -> str:
    """Return what a self-test's trace lacks; empty where it is whole."""
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
    return ""


if __name__ == "__main__":
    main()
