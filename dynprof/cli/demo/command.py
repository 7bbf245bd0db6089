"""``dynprof demo``: run a real job and edit its config from a second process."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynprof.captures.manifest import load_manifest
from dynprof.cli.outcome import INVALID, fail
from dynprof.config import read_source
from dynprof.errors import CaptureError, OwnerError, describe
from dynprof.extras import require
from dynprof.journal.journal import LOG_BYTES
from dynprof.journal.status import Status, load_status
from dynprof.runtime.acting_user import owner_on_the_way
from dynprof.runtime.fresh_interpreter import command
from dynprof.runtime.layout import CONFIG_NAME, LOG_DIR, STATUS_DIR
from dynprof.runtime.permissions import ROOT
from dynprof.runtime.plural import counted, spanned
from dynprof.runtime.safe_open import make_dir, open_regular, read_regular
from dynprof.runtime.safe_write import remove, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dynprof.captures.manifest import Cost

TIMEOUT_S = 120.0
"""How long the demo waits for the job to train, and for the capture."""
CHANGES: dict[str, Any] = {"active": 5, "warmup": 1, "record_shapes": True}


class DemoBackend(StrEnum):
    """Framework of the demo's job."""

    torch = "torch"
    python = "python"


def demo(
    backend: Annotated[DemoBackend, typer.Option(help="A torch job, or plain Python.")] = (
        DemoBackend.torch
    ),
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Working directory; default: a new temporary directory."),
    ] = None,
) -> None:
    """Train a small model, edit its config while it runs, and show the result.

    Example: dynprof demo --backend python
    """
    if backend is DemoBackend.torch and importlib.util.find_spec("torch") is None:
        text = "torch is not installed; use dynprof demo --backend python, or pip install torch"
        fail(text, INVALID)
    require("analysis" if backend is DemoBackend.torch else "viewer", "dynprof demo")
    if directory:
        _check_owner(directory)
    home = directory or Path(tempfile.mkdtemp(prefix="dynprof-demo-"))
    root = home / "prof_config"
    typer.echo(f"A {backend.value} job starts; its script calls dp.init({str(root)!r}) and ")
    typer.echo("dp.step(). This command acts as the operator, in another process.\n")
    try:
        with _job(backend, root, home / "stop") as job:
            path = _play_operator(root, job)
        facts = json.loads(job.communicate()[0]) | _idle_cost()
    except (TimeoutError, CaptureError, OSError, json.JSONDecodeError) as error:
        typer.echo(f"The demo failed: {describe(error)}", err=True)
        raise typer.Exit(1) from None
    _print_results(root, path, facts, is_temporary=directory is None)


def _check_owner(directory: Path) -> None:
    """Refuse to run as root in another user's folder."""
    try:
        uid, place, _ = owner_on_the_way(directory) if os.geteuid() == ROOT else (ROOT, None, None)
    except OwnerError as error:
        fail(str(error), INVALID)
    if uid != ROOT:
        fail(
            f"{place} belongs to uid {uid}; root's demo needs a folder that belongs to root",
            INVALID,
        )


@contextlib.contextmanager
def _job(backend: DemoBackend, root: Path, stop: Path) -> Iterator[subprocess.Popen[str]]:
    make_dir(stop.parent)
    with contextlib.suppress(FileNotFoundError):
        remove(stop)
    module = f"dynprof.cli.demo.{backend.value}_job"
    job = subprocess.Popen(command(module, str(root), str(stop)), stdout=subprocess.PIPE, text=True)
    try:
        yield job
    finally:
        write_atomic(stop, "")


def _play_operator(root: Path, job: subprocess.Popen[str]) -> Path:
    """Wait until the job trains, edit its config, and wait for the capture."""
    config = root / CONFIG_NAME
    begun = _wait(job, "the job to train", lambda: _status_if(root, job, lambda s: s.step >= 20))
    typer.echo(f"1. The job trains: step {begun.step}, process {begun.pid}.")
    settings = json.loads(read_source(config).raw)
    write_atomic(config, json.dumps({**settings, **CHANGES}, indent=4) + "\n")
    typer.echo(f"2. {CONFIG_NAME} was edited and saved: {json.dumps(CHANGES)[1:-1]}.")
    done = _wait(
        job, "the capture", lambda: _status_if(root, job, lambda s: s.last_capture is not None)
    )
    path = root / str(done.last_capture)
    steps = load_manifest(path).steps
    typer.echo(
        f"3. {spanned(steps.first, steps.last).capitalize()} were recorded, {steps.warmup} of "
        "warm-up before them; the job continues to train.\n"
    )
    return path


def _status_if(
    root: Path, job: subprocess.Popen[str], wanted: Callable[[Status], bool]
) -> Status | None:
    try:
        status = load_status(root / STATUS_DIR / "rank_0.json")
    except CaptureError:
        return None
    return status if status.pid == job.pid and wanted(status) else None


def _wait(job: subprocess.Popen[str], what: str, ready: Callable[[], Status | None]) -> Status:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if found := ready():
            return found
        if job.poll() is not None:
            raise TimeoutError(f"the job ended with code {job.returncode}, waiting for {what}")
        time.sleep(0.05)
    raise TimeoutError(f"waited {TIMEOUT_S:.0f} s for {what}")


def _idle_cost() -> dict[str, float]:
    measured = subprocess.run(
        command("dynprof.cli.demo.idle_cost"), stdout=subprocess.PIPE, text=True, check=True
    )
    facts: dict[str, float] = json.loads(measured.stdout)
    return facts


def _print_results(root: Path, path: Path, facts: dict[str, float], *, is_temporary: bool) -> None:
    from dynprof.analysis.runs.window_report import report_on

    manifest = load_manifest(path)  # read again: the job completes the cost when it ends
    cost = manifest.cost
    trace = path.parent.parent / str(manifest.trace)
    (log,) = (root / LOG_DIR).glob(f"*_{manifest.pid}_rank_0.log")
    typer.echo("The log of the job:\n")
    for line in read_regular(log, LOG_BYTES).decode("utf-8", "replace").splitlines():
        typer.echo(f"   {line}")
    typer.echo("\nThe files:\n")
    report = report_on(trace)
    files = {"trace": trace, "report": report.path, "manifest": path, "log": log}
    for label, file in files.items():
        typer.echo(f"   {label:9} {file}")
    program = Path(sys.executable).with_name("dynprof")
    typer.echo(f"\n   Open the report in a browser, and the trace with {program} view.")
    if is_temporary:
        typer.echo(f"   Remove {root.parent} when you have seen them.")
    typer.echo()
    typer.echo("What the report says first:\n")
    typer.echo(f"   {report.words[0]}\n")
    typer.echo("The five longest operators in it, by total time:\n")
    for name, (total_us, calls) in longest_operators(trace, 5):
        typer.echo(f"   {total_us / 1e3:10.3f} ms  {calls:6} x  {name}")
    typer.echo("\nWhat it cost the job:\n")
    typer.echo(f"   opening {cost.open_ms:.1f} ms, closing {cost.close_ms:.1f} ms,")
    typer.echo(
        f"   a step {_ms(cost.step_before_ms)} before, {_ms(cost.step_during_ms)} while recording, "
        f"{_ms(cost.step_saving_ms)} while saving,"
    )
    typer.echo(f"   training time lost until the trace was on disk: {lost_time(cost)};")
    typer.echo(
        f"   an idle dp.step() {facts['step_ns']:.0f} ns, "
        f"an empty Python function {facts['empty_ns']:.0f} ns."
    )
    typer.echo(f"\nThe job ended by itself after {counted(facts['steps'], 'step')}.")


def lost_time(cost: Cost) -> str:
    """Return the training time that a capture cost, if it exceeds the variation of step times."""
    at_least_ms = cost.open_ms + cost.close_ms
    if cost.is_hidden or (cost.extra_ms is not None and cost.extra_ms < at_least_ms):
        return "too little to tell from the variation of step times"
    return _ms(cost.extra_ms)


def longest_operators(trace: Path, most: int) -> list[tuple[str, tuple[float, int]]]:
    """Return the names with the largest total duration, each with its us and number of calls."""
    total: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    with open_regular(trace) as packed, gzip.open(packed) as file:
        events = json.load(file)["traceEvents"]
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in ("cpu_op", "kernel", "fee"):
            total[event["name"]] += event["dur"]
            calls[event["name"]] += 1
    return [(name, (us, calls[name])) for name, us in total.most_common(most)]


def _ms(milliseconds: float | None) -> str:
    return "unknown" if milliseconds is None else f"{milliseconds:.2f} ms"
