"""The commands of an operator, against real jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from dynprof.captures.manifest import load_manifest
from tests import processes
from tests.integration.running import RunningJob, wait_for
from tests.processes import DYNPROF, Process

if TYPE_CHECKING:
    from pathlib import Path

LOOP = """
import time, dynprof as dp
dp.init("prof_config")
while True:
    time.sleep(0.01)
    dp.step()
"""


def start(*arguments: object) -> Process:
    """Start the command."""
    wide = {**os.environ, "COLUMNS": "200"}
    return processes.start([*DYNPROF, *map(str, arguments)], env=wide)


def dynprof(*arguments: object) -> tuple[int, str, str]:
    """Run the command; return its exit code, its output, and what it said on stderr."""
    process = start(*arguments)
    output, errors = process.communicate()
    return process.returncode, output, errors


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """Return a running job of one rank."""
    with RunningJob(tmp_path, LOOP) as running:
        running.when("training", lambda status: status.state == "idle")
        yield running


def test_arm_and_wait_prints_the_capture(job: RunningJob) -> None:
    """The path of the manifest is the output, for scripts; the settings are those given."""
    code, output, errors = dynprof("arm", job.root, "--active", 3, "--metadata", "who=me", "--wait")
    assert (code, errors.splitlines()[0]) == (
        0,
        f"{job.config} is saved; 1 live rank is asked",
    )
    manifest = load_manifest(type(job.root)(output.strip()))
    assert (manifest.complete, manifest.steps.recorded) == (True, 3)
    assert manifest.request.config["metadata"] == {"who": "me"}


def test_arming_keeps_the_rest_of_the_file(job: RunningJob) -> None:
    """Order, indent, other settings and permissions stay."""
    job.config.write_text('{\n  "active": 7,\n  "warmup": 1,\n  "activities": ["CPU"]\n}\n')
    job.config.chmod(0o640)
    code, _, _ = dynprof("arm", job.root, "--active", 9, "--max-seconds", 5)
    assert code == 0
    assert job.config.read_text() == (
        '{\n  "active": 9,\n  "warmup": 1,\n  "activities": [\n    "CPU"\n  ],\n'
        '  "limits": {\n    "max_seconds": 5\n  }\n}\n'
    )
    assert job.config.stat().st_mode & 0o777 == 0o640


def test_what_cannot_be_used_changes_nothing(job: RunningJob) -> None:
    """A bad value is explained as in an editor, and the file stays as it is."""
    before = job.config.read_bytes()
    code, _, errors = dynprof("arm", job.root, "--backend", "torhc")
    assert code == 1
    assert '"torhc" is not allowed; write one of "auto", "torch", "npu", "python".' in errors
    assert "nothing was changed" in errors
    assert job.config.read_bytes() == before


def test_a_refusal_is_the_answer(job: RunningJob) -> None:
    """A rank that refuses ends the wait, with its reason."""
    code, _, errors = dynprof("arm", job.root, "--start-step", 1, "--wait")
    assert code == 4
    assert "rank 0: refused: " in errors
    assert "step 1 has begun already" in errors


def test_two_people_arm_at_once(job: RunningJob) -> None:
    """The first to wait is told by whom it was superseded; the second is told whom it replaces."""
    first = start("arm", job.root, "--start-step", 10**6, "--wait")
    job.when("the first request", lambda status: status.state == "waiting")
    code, _, errors = dynprof("arm", job.root, "--start-step", 0, "--wait")
    assert code == 0
    assert "rank 0: request 1 waits there and is superseded" in errors
    _, errors = first.communicate()
    assert first.returncode == 4
    assert "rank 0: superseded by request 2" in errors


def test_whoever_arms_behind_an_open_window_is_told_for_how_long(job: RunningJob) -> None:
    """A million steps asked for by mistake: the next to ask learns what is in the way."""
    dynprof("arm", job.root, "--active", 10**6)
    job.when("the window", lambda status: status.progress is not None)
    code, _, errors = dynprof("arm", job.root, "--active", 1)
    assert code == 0
    said = re.search(r"request 1 is open there for ([\d,]+) steps more, .* ends both", errors)
    assert said, errors
    assert 0 < int(said[1].replace(",", "")) <= 10**6
    assert dynprof("cancel", job.root, "--wait")[0] == 0
    job.when("the cancel", lambda status: status.state == "idle")


def test_cancel_closes_and_says_so(job: RunningJob) -> None:
    """What is open is closed, and whoever waits for it learns why."""
    waiting = start("arm", job.root, "--active", 10**6, "--wait")
    job.when("the window", lambda status: status.state == "recording")
    code, _, errors = dynprof("cancel", job.root, "--wait")
    assert (code, "cancel, closes what there is" in errors) == (0, True)
    output, _ = waiting.communicate()
    assert waiting.returncode == 0  # what it had is saved, and its manifest says: cancelled
    assert load_manifest(type(job.root)(output.strip())).reason == "cancelled by request 2"


def test_a_rank_that_dies_ends_the_wait(job: RunningJob) -> None:
    """Killed while it records: the command says so instead of waiting for ever."""
    waiting = start("arm", job.root, "--active", 10**6, "--wait")
    job.when("the window", lambda status: status.state == "recording")
    job.process.send_signal(signal.SIGKILL)
    _, errors = waiting.communicate()
    assert waiting.returncode == 5
    assert "rank 0: the process is dead: its status is no longer written" in errors


def test_nobody_answers(tmp_path: Path) -> None:
    """Without a live process the file is changed all the same, and the command says who was."""
    code, output, _ = dynprof("init", tmp_path / "prof_config")
    assert (code, output) == (0, f"{tmp_path / 'prof_config/profiler_config.json'} is made\n")
    code, _, errors = dynprof("arm", tmp_path / "prof_config", "--active", 2)
    assert code == 3
    assert "no job has called dp.init() on it yet" in errors
    with RunningJob(tmp_path, LOOP.replace("True", "dp.status().step < 5")) as ended:
        ended.end()
        code, _, errors = dynprof("arm", ended.root)
        assert code == 3
        assert f"the last one (rank 0, {os.uname().nodename}, pid {ended.process.pid})" in errors
        assert " stopped at " in errors


def test_there_is_no_config(tmp_path: Path) -> None:
    """A wrong directory is named."""
    code, _, errors = dynprof("arm", tmp_path)
    assert (code, "there is no such file; dynprof init makes one" in errors) == (2, True)


def test_the_directory_above_names_the_one_below(tmp_path: Path) -> None:
    """Whoever gives the run's directory is told where below it the config lies."""
    assert dynprof("init", tmp_path / "prof_config")[0] == 0
    code, _, errors = dynprof("arm", tmp_path, "--active", 1)
    assert (code, f"there is a config in {tmp_path / 'prof_config'}" in errors) == (2, True)
    code, output, errors = dynprof("status", tmp_path)
    assert (code, f"there is a config in {tmp_path / 'prof_config'}" in output + errors) == (
        3,
        True,
    )
    assert not (tmp_path / "profiler_config.json").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--metadata", "who"), "'who' is no pair; write a key, = and a value"),
        (("--metadata", "=me"), "'=me' is no pair"),
        (("--timeout", 3), "--timeout is for --wait; give both, or neither"),
        (("--wait", "--timeout", -3), "Invalid value for '--timeout'"),
    ],
)
def test_options_that_mean_nothing_change_nothing(
    tmp_path: Path, options: tuple[object, ...], said: str
) -> None:
    """What would be dropped without a word is refused, and the config stays as it is."""
    dynprof("init", tmp_path)
    config = (tmp_path / "profiler_config.json").read_text()
    code, _, errors = dynprof("arm", tmp_path, *options)
    assert (code, said in errors) == (2, True), errors
    assert (tmp_path / "profiler_config.json").read_text() == config


def test_status_of_all_ranks(tmp_path: Path) -> None:
    """One line a rank: alive, dead and stopped; the last problem and the last capture."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    shared = LOOP.replace('"prof_config"', repr(str(tmp_path / "prof_config")))
    with RunningJob(tmp_path / "a", shared, RANK="0", WORLD_SIZE="2") as first:
        with RunningJob(tmp_path / "b", shared, RANK="1", WORLD_SIZE="2") as second:
            first.root = second.root = tmp_path / "prof_config"
            for rank, one in enumerate((first, second)):
                one.when("training", lambda status: status.state == "idle", rank)
            code, output, errors = dynprof("arm", first.root, "--ranks", "1", "--wait")
            assert (code, errors.splitlines()[0].endswith("1 live rank is asked")) == (0, True)
            assert "rank_1.info.json" in output
        wait_for("its death", lambda: "dead" in dynprof("status", first.root)[1] or None)
        code, output, _ = dynprof("status", first.root)
        lines = output.splitlines()
        assert code == 0
        assert lines[0].split()[:4] == ["rank", "process", "health", "state"]
        assert "alive" in lines[1]
        assert "dead for" in lines[2]
        assert any(line.startswith("rank 1: last capture: step_") for line in lines)
        code, output, _ = dynprof("status", first.root, "--json")
        ranks = json.loads(output)["ranks"]
        assert [(rank["rank"], rank["health"]) for rank in ranks] == [(0, "alive"), (1, "dead")]


def test_the_logs_are_merged_by_time(tmp_path: Path) -> None:
    """The records of two ranks in the order in which they were written, lines kept together."""
    log = tmp_path / "log"
    log.mkdir()
    (log / "dp_host_1_rank_0.log").write_text(
        "2026-01-01 00:00:01.000 INFO    rank 0  one\n"
        "2026-01-01 00:00:03.000 WARNING rank 0  three\n    and more\n"
    )
    (log / "dp_host_2_rank_1.log").write_text(
        "2026-01-01 00:00:02.000 INFO    rank 1  two\x1b[2J\n"
    )
    code, output, _ = dynprof("log", tmp_path)
    assert code == 0
    assert [line.split("  ")[-1] for line in output.splitlines()] == [
        "one",
        "two\\x1b[2J",
        "three",
        "and more",
    ]
    assert dynprof("log", tmp_path, "-n", 1)[1].count("\n") == 2


def test_the_log_is_followed(job: RunningJob) -> None:
    """What a job writes appears while it runs."""
    follower = start("log", job.root, "--follow")
    assert follower.stdout
    assert "watches" in follower.stdout.readline()
    assert "asks for nothing; its next save does" in follower.stdout.readline()
    job.edit(active=2)
    assert "request 1: accepted" in follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    follower.communicate()
    assert follower.returncode == 0


def test_what_the_file_asks_besides_is_said(job: RunningJob) -> None:
    """Settings stay in the file; the command names them, and start_step and cancel begin anew."""
    dynprof("arm", job.root, "--active", 2, "--start-step", 10**6, "--max-seconds", 7)
    dynprof("cancel", job.root)
    code, output, errors = dynprof("arm", job.root, "--warmup", 1, "--wait")
    assert code == 0, errors
    assert "as the file says besides: active 2, max_seconds 7" in errors
    manifest = load_manifest(type(job.root)(output.strip()))
    assert (manifest.steps.recorded, manifest.steps.warmup) == (2, 1)
    assert manifest.request.config["cancel"] is False


def test_a_stopped_process_is_stuck_and_not_dead(job: RunningJob) -> None:
    """It is there, though it does not write; the wait ends with that, and it goes on afterwards."""
    job.when("a step", lambda status: status.longest_s is not None)
    path = job.root / "status" / "rank_0.json"
    job.process.send_signal(signal.SIGSTOP)
    wait_for("its stop", lambda: psutil.Process(job.process.pid).status() == "stopped" or None)
    old = {**json.loads(path.read_text()), "still_s": 40.0, "heartbeat": time.time()}
    path.write_text(json.dumps(old))  # as if it had been stopped for long
    _, output, _ = dynprof("status", job.root)
    assert re.search(r"stuck for \d\d", output)
    code, _, errors = dynprof("arm", job.root, "--active", 2, "--wait")
    assert code == 5
    assert "rank 0: has not answered; its step counter has stood still for " in errors
    job.process.send_signal(signal.SIGCONT)
    assert job.capture()[0].complete
    job.process.kill()
    job.process.wait()
    _, output, _ = dynprof("status", job.root)
    assert "dead" in output


def test_the_first_step_is_not_stuck(tmp_path: Path) -> None:
    """A job that has taken no step is starting, and for how long; who waits for it is told."""
    script = LOOP.replace("while True:", "import pathlib\nwhile True:").replace(
        "    time.sleep(0.01)",
        '    while dp.status().step == 0 and not pathlib.Path("go").exists(): time.sleep(0.01)',
    )
    with RunningJob(tmp_path, script) as job:
        job.when("its start", lambda status: status.longest_s is None)
        code, output, _ = dynprof("status", job.root)
        assert (code, "starting for " in output) == (0, True)
        code, _, errors = dynprof("arm", job.root, "--active", 2, "--wait", "--timeout", 1)
        assert code == 5
        assert "1 rank is in the first step still: a window opens after it" in errors
        assert "it is in its first step for " in errors
        (tmp_path / "go").touch()
        assert job.capture()[0].complete
        job.when("its second step", lambda status: status.longest_s is not None)
        assert "alive" in dynprof("status", job.root)[1]


def test_ctrl_c_says_that_the_request_stays(job: RunningJob) -> None:
    """Who stops waiting has not called it off."""
    waiting = start("arm", job.root, "--start-step", 10**6, "--wait")
    job.when("the request", lambda status: status.state == "waiting")
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate()
    assert waiting.returncode == 130
    assert "the request stays, dynprof cancel calls it off" in errors
    assert (status := job.status())
    assert status.state == "waiting"


def test_a_directory_that_is_not_there_is_named(job: RunningJob, tmp_path: Path) -> None:
    """A typo is not taken for a job that has not begun; the config may stand for its directory."""
    for command in ("status", "log", "arm", "cancel"):
        code, _, errors = dynprof(command, tmp_path / "prof_conf")
        assert (code, errors) == (2, f"there is no directory {tmp_path / 'prof_conf'}\n")
        code, _, errors = dynprof(command, job.config)
        assert code == 0, errors


def test_init_beside_a_live_job_says_what_it_does(job: RunningJob) -> None:
    """A config made anew is a save like any other."""
    job.config.unlink()
    job.when("the file to be missed", lambda status: bool(status.problems))
    code, _, errors = dynprof("init", job.root)
    assert (code, errors) == (0, "1 live rank takes it for a save, to record a step\n")
    assert job.capture(2)[0].complete


def test_cancel_reaches_all_ranks(job: RunningJob) -> None:
    """Whatever ranks the file names: a cancel is for every process that watches it."""
    dynprof("arm", job.root, "--start-step", 10**6)
    job.when("the request", lambda status: status.state == "waiting")
    config = json.loads(job.config.read_text())
    job.config.write_text(json.dumps({**config, "ranks": "5"}))
    code, _, errors = dynprof("cancel", job.root, "--wait")
    assert (code, "rank 0: cancel, disarms what there is" in errors) == (0, True)


def test_a_rank_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The others record; the code says that it was not all."""
    with RunningJob(tmp_path, LOOP, RANK="0", WORLD_SIZE="3") as job:
        job.when("training", lambda status: status.state == "idle")
        code, output, errors = dynprof("arm", job.root, "--ranks", "0-1", "--wait")
        assert (code, "not there, and not asked: rank 1\n" in errors) == (5, True)
        assert load_manifest(type(job.root)(output.strip())).complete


def test_ranks_that_the_job_has_not_are_named(job: RunningJob) -> None:
    """If no rank is left that could record, a code of its own says so; else the others record."""
    code, _, errors = dynprof("arm", job.root, "--ranks", 7)
    assert (code, errors.splitlines()) == (
        6,
        [
            "this job has 1 rank, from 0 on, and no rank 7",
            f"{job.config} is saved, but asks for none that is there (rank 0); "
            "--ranks all asks for all",
        ],
    )
    code, output, errors = dynprof("arm", job.root, "--ranks", "0,5-6", "--wait")
    assert (code, "and no ranks 5-6" in errors) == (0, True)
    assert load_manifest(type(job.root)(output.strip())).complete


def test_what_cannot_be_written_is_said(job: RunningJob, tmp_path: Path) -> None:
    """Values that no config can hold end in a sentence, not in a traceback."""
    code, _, errors = dynprof("arm", job.root, "--metadata", 'a="\\ud800"')
    assert (code, "half of a surrogate pair is no character" in errors) == (1, True)
    code, _, errors = dynprof("init", tmp_path / "new", "--activities", "GPU")
    assert (code, 'Did you mean "CUDA"?' in errors) == (1, True)
    job.edit(prof_dir="x" * 300)
    code, output, _ = dynprof("validate", job.root)
    assert (code, "File name too long" in output) == (1, True)
