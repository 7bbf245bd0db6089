"""Run the faults, and the quiet series: ``python -m benchmarks.faults [NAMES...] [quiet]``.

A scripted operator with fixed rules reads what dynprof writes and runs its commands. Then its
answer is compared with the ground truth. The rules are those of docs/runbook.md: read the log and
the status; dump where a rank is stuck; record a window where nothing was said.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.faults.jobs import FAULTS, ONSET, Fault
from benchmarks.faults.quiet import print_quiet
from benchmarks.faults.scoring import Message, Score, score, summary
from benchmarks.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

WATCH = {"slower_than": 1.5, "max_per_hour": 1000}
"""The watch in each job: that of ``arm --watch``, with enough records for a fault that returns."""
START_S = 120.0
"""Seconds in which a job must reach its onset: torchrun loads torch in each rank."""
STATUS_S = 8.0
"""Seconds between two looks at the status; a look costs a second of a CPU."""
SILENCE_S = 35.0
"""Seconds without an answer after which the operator records a window."""
SETTLED_S = 12.0
"""Seconds of further messages after the first that names ranks; then the operator has an answer."""
COMMAND_S = 90.0
"""Seconds that a command may take on a busy machine; a report took 65 s."""
CGROUP = Path("/sys/fs/cgroup/cpu/dynprof-faults")
"""The cgroup of the job with a CPU limit, version 1."""
QUOTA_US = 10_000
"""Microseconds of CPU time in every 100 ms that it has from the onset on."""
NEIGHBOURS = 6
"""Processes that compute, for each CPU."""
MAX_CHARACTERS = 110
"""Characters of an answer in the table."""
ROOT = Path(__file__).parents[2]
_ABOUT_RANKS = re.compile(
    r"\S+ \S+ +(WARNING|ERROR|INFO(?= +rank \d+ +(?:long:|step ))) +rank (\d+) +(.*)"
)
"""Lines of the log that an operator reads: warnings, long steps, slow steps like former ones."""


class Operator:
    """Follows a job's log and runs commands.

    Args:
        folder: The job's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.directory, self._onset = folder / "prof_config", folder / ONSET
        self._env = {**os.environ, "COLUMNS": "1000", "PYTHONUNBUFFERED": "1"}
        self._said: list[tuple[float, str, frozenset[int], str]] = []
        self._log: subprocess.Popen[str] | None = None
        threading.Thread(target=self._read_log, daemon=True).start()
        self._dumped = self._recorded = False

    def _command(self, name: str, *options: str) -> list[str]:
        return [sys.executable, "-m", "dynprof", name, str(self.directory), *options]

    def _run(self, name: str, *options: str) -> tuple[int, str]:
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                self._command(name, *options),
                capture_output=True,
                text=True,
                env=self._env,
                timeout=COMMAND_S,
            )
            return done.returncode, done.stdout + done.stderr
        return 1, ""

    def _read_log(self) -> None:
        while not any((self.directory / "log").glob("*.log")):
            time.sleep(0.2)
        self._log = subprocess.Popen(
            self._command("log", "--follow"), stdout=subprocess.PIPE, text=True, env=self._env
        )
        for line in self._log.stdout or ():
            found = _ABOUT_RANKS.match(line)
            if found:
                about = re.match(r"rank (\d+) ", found[3])
                self._say("log", [int((about or found)[1 if about else 2])], found[3])

    def _say(self, source: str, ranks: list[int], text: str) -> None:
        at_s = time.time()
        if source == "status" and (step := re.match(r"slow step (\d+):", text)):
            records = [said[0] for said in self._said if said[3].startswith(f"step {step[1]} took")]
            at_s = min([at_s, *records])  # the status shows the last one, however old
        self._said.append((at_s, source, frozenset(ranks), text.strip()))

    def onset_s(self) -> float | None:
        """Return the time of the onset; None before it."""
        with suppress(OSError, ValueError):
            return float(self._onset.read_text(encoding="utf-8"))
        return None

    def messages(self) -> list[Message]:
        """Return everything that was said."""
        onset_s = self.onset_s() or 0.0
        return [
            Message(at_s - onset_s, source, ranks, text)
            for at_s, source, ranks, text in sorted(self._said, key=lambda said: said[0])
        ]

    def watch(self, lasts_s: float) -> None:
        """Read and run commands until there is an answer, or for a time after the onset."""
        onset_s, status_s = self.onset_s() or time.time(), 0.0
        while (passed_s := time.time() - onset_s) < lasts_s:
            time.sleep(0.2)
            naming = [one for one in self.messages() if one.names_ranks and not one.is_before]
            if naming and passed_s - naming[0].after_s > SETTLED_S and lasts_s <= 60:
                break
            if passed_s - status_s > STATUS_S:
                self._look_at_status()
                status_s = time.time() - onset_s
            elif any("stuck:" in said[3] for said in self._said):
                self._dump()
            if not naming and passed_s > SILENCE_S and not self._recorded | self._dumped:
                self._record()

    def _look_at_status(self) -> None:
        code, text = self._run("status")
        for line in text.splitlines():
            suspect = re.search(r"waited for rank (\d+)", line)
            waited = re.search(r"ranks ([\d, to]+) waited, and no rank worked longer", line)
            about = re.match(r"ranks? ([\d, to]+):? (.*)", line)
            if suspect:
                self._say("status", [int(suspect[1])], line)
            elif waited:
                self._say("status", list(map(int, re.findall(r"\d+", waited[1]))), line)
            elif about and re.search(r"does not answer|still in step|\bdead\b", about[2]):
                self._say("status", list(map(int, re.findall(r"\d+", about[1]))), line)
            elif dead := re.match(r"(\d+) .*\bdead\b", line):
                self._say("status", [int(dead[1])], line)
        if code == 7 or "does not answer" in text:
            self._dump()

    def _dump(self) -> None:
        if self._dumped:
            return
        self._dumped = True
        _, text = self._run("dump")
        first, *others = text.split("\n\n")[0].splitlines() or [""]
        lines = [first, *others]
        silent = [line for line in lines if re.match(r"rank \d+ does not answer", line)]
        if silent:  # the operator looks where this rank is
            rank = silent[0].split()[1]
            first = "; ".join(line for line in lines if line.startswith(f"rank {rank} "))
        ranks = [
            int(number) for number in re.findall(r"\d+", re.split(" is | are | in ", first)[0])
        ]
        children = [line for line in others if line.startswith("child")]
        self._say("dump", ranks[:1] if silent else ranks, "; ".join([first, *children]))

    def _record(self) -> None:
        self._recorded = True
        self._run("arm", "--active", "3", "--with-stack", "--wait", "--timeout", "15")
        code, text = self._run("report")
        if code == 0:
            self._say("report", [], " ".join(text.split()))

    def last_step(self) -> int:
        """Return the last step of the first rank, by its status."""
        with suppress(ValueError, KeyError, IndexError):
            return int(json.loads(self._run("status", "--json")[1])["ranks"][0]["step"])
        return 0

    def close(self) -> None:
        """End following the log."""
        if self._log:
            self._log.kill()
            self._log.wait()


def run(fault: Fault) -> Score:
    """Run a job with a fault, and score what was said."""
    with tempfile.TemporaryDirectory(prefix="fault_") as name, ExitStack() as ready:
        folder = Path(name)
        (folder / "prof_config").mkdir()
        (folder / "prof_config" / "profiler_config.json").write_text(json.dumps({"watch": WATCH}))
        if why := ready.enter_context(_group(fault)):
            return Score(fault, why_not_run=why)
        operator = Operator(folder)
        ready.callback(operator.close)
        job = ready.enter_context(_job(fault, folder))
        end_s = time.time() + START_S
        while operator.onset_s() is None:
            if time.time() > end_s or job.poll() is not None:
                output = (folder / "output").read_text(encoding="utf-8", errors="replace")
                return Score(fault, why_not_run=f"it did not reach its onset: {output[-300:]}")
            time.sleep(0.1)
        ready.enter_context(_surroundings(fault))
        operator.watch(fault.lasts_s)
        found = score(fault, operator.messages(), operator.last_step() if fault.every > 1 else 0)
        for message in operator.messages():
            print(f"    {message.after_s:+6.1f} s {message.source}: {message.text[:1500]}")
        return found


@contextmanager
def _job(fault: Fault, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the job, and end all its processes."""
    command = [sys.executable, "-m", "benchmarks.faults.jobs"]
    if fault.world_size > 1:
        launcher = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={fault.world_size}",
        ]
        command = [sys.executable, *launcher, "-m", "benchmarks.faults.jobs"]
    if fault.name == "slow_link":
        start = f"ip link set lo up && exec {' '.join(command)}"
        command = ["unshare", "--map-root-user", "--net", "sh", "-c", start]
    if fault.name == "cpu_limit":
        start = f"echo $$ > {CGROUP}/cgroup.procs && exec {' '.join(command)}"
        command = ["sh", "-c", start]
    env = {**os.environ, "FAULT": fault.name, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    with (folder / "output").open("wb") as output:
        job = subprocess.Popen(
            command, cwd=folder, env=env, stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield job
        finally:
            for pid in _processes_of(folder):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            job.wait()


def _processes_of(folder: Path) -> list[int]:
    """Return the processes whose working directory is the job's: ranks have their own sessions."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
    return found


@contextmanager
def _group(fault: Fault) -> Iterator[str]:
    """Make the cgroup of a job that needs one; yield why that is not possible."""
    why = ""
    if fault.name == "slow_link" and not shutil.which("tc"):
        why = "tc is not installed"
    if fault.name == "cpu_limit":
        try:
            CGROUP.mkdir(exist_ok=True)
        except OSError as error:
            why = f"no cgroup can be made: {error.strerror}"
    yield why
    if fault.name == "cpu_limit" and not why:
        time.sleep(0.5)  # until its killed processes are gone
        with suppress(OSError):  # it is used again
            CGROUP.rmdir()


@contextmanager
def _surroundings(fault: Fault) -> Iterator[None]:
    """Do what another process does to the job."""
    if fault.name == "cpu_limit":
        (CGROUP / "cpu.cfs_quota_us").write_text(str(QUOTA_US), encoding="utf-8")
    neighbours = []
    if fault.name == "noisy_neighbour":
        count = NEIGHBOURS * (os.cpu_count() or 1)
        loop = [sys.executable, "-S", "-c", "while True: pass"]
        neighbours = [subprocess.Popen(loop) for _ in range(count)]
    yield
    for one in neighbours:
        one.kill()
        one.wait()


def _word(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def main() -> None:
    """Run what is named, or all, and print."""
    names = sys.argv[1:] or [*FAULTS, "quiet"]
    scores = []
    for name in names:
        if name in FAULTS:
            print(f"{name}: {FAULTS[name].title}", flush=True)
            scores.append(run(FAULTS[name]))
            print(f"    named: {_word(scores[-1].is_named)}", flush=True)
    if scores:
        head = (
            "fault",
            "named",
            "rank",
            "line",
            "cause",
            "after",
            "false alarms",
            "explained",
            "answer",
        )
        print_table("Faults", head, list(map(_row, scores)))
        print(summary(scores))
    if "quiet" in names:
        print_quiet()


def _short(text: str) -> str:
    """Return an answer without folders, the file of its record and the usual time."""
    text = re.sub(r" \(slow_steps/\S+\)$", "", text)
    text = re.sub(r"^step [\d,]+ took [\d,]+ ms, [\d,]+ ms is usual; ", "", text)
    text = re.sub(r"/\S*/", "", text)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def _row(one: Score) -> tuple[str, ...]:
    after = f"{one.answer.after_s:.0f} s" if one.answer and one.is_named else "-"
    explained = "{} of {}".format(*one.occurrences) if one.occurrences else "-"
    text = _short(one.answer.text) if one.answer else one.why_not_run or "nothing was said"
    return (
        one.fault.name,
        _word(one.is_named),
        *map(_word, (one.has_rank, one.has_line, one.has_cause)),
        after,
        str(len(one.false_alarms)),
        explained,
        text,
    )


if __name__ == "__main__":
    main()
