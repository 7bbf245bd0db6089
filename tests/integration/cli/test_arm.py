"""The commands of an operator, against real jobs."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from dynprof.captures.manifest import load_manifest
from tests.integration.commands import dynprof, start
from tests.integration.running import LOOP, RunningJob


def test_arm_and_wait_prints_the_capture(job: RunningJob) -> None:
    """The output is the path of the manifest, for scripts; the window has the given settings."""
    code, output, errors = dynprof("arm", job.root, "--active", 3, "--metadata", "who=me", "--wait")
    assert (code, errors.splitlines()[0]) == (
        0,
        f"{job.config} is saved; requested from 1 live rank",
    )
    manifest = load_manifest(type(job.root)(output.strip()))
    assert (manifest.complete, manifest.steps.recorded) == (True, 3)
    assert manifest.request.config["metadata"] == {"who": "me"}


def test_arming_keeps_the_rest_of_the_file(job: RunningJob) -> None:
    """Order, indentation, other settings and permissions stay."""
    job.config.write_text('{\n  "active": 7,\n  "warmup": 1,\n  "activities": ["CPU"]\n}\n')
    job.config.chmod(0o640)
    code, _, _ = dynprof("arm", job.root, "--active", 9, "--max-seconds", 5)
    assert code == 0
    assert job.config.read_text() == (
        '{\n  "active": 9,\n  "warmup": 1,\n  "activities": [\n    "CPU"\n  ],\n'
        '  "limits": {\n    "max_seconds": 5\n  }\n}\n'
    )
    assert job.config.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (("--export-type", "text", "--export-type", "db"), ["text", "db"]),
        (("--export-type", "text,db"), ["text", "db"]),
        (("--export-type", "db"), "db"),
    ],
)
def test_several_values_may_be_in_one_option_or_several(
    job: RunningJob, given: tuple[str, ...], written: object
) -> None:
    """All values are kept. A setting that may be a single value is written as one."""
    code, _, errors = dynprof("arm", job.root, *given, "--activities", "CPU")
    assert (code, "is not allowed" in errors) == (0, False)
    config = json.loads(job.config.read_bytes())
    assert config["experimental_config"]["export_type"] == written
    assert config["activities"] == ["CPU"]


def test_a_bad_value_changes_nothing(job: RunningJob) -> None:
    """A bad value is explained as for an edit of the file, and the file stays unchanged."""
    before = job.config.read_bytes()
    code, _, errors = dynprof("arm", job.root, "--backend", "torhc")
    assert code == 1
    said = '--backend: "torhc" is not allowed; write one of "auto", "torch", "npu", "python".'
    assert errors.startswith(said)
    assert "nothing was changed" in errors
    assert job.config.read_bytes() == before


def test_arm_names_settings_without_effect(job: RunningJob) -> None:
    """The command names the settings that are left out."""
    code, _, errors = dynprof("arm", job.root, "--activities", "CPU,CUDA", "--l2-cache", "--wait")
    assert code == 0
    assert "/activities: CUDA is left out: " in errors
    assert "/experimental_config/l2_cache: has no effect with backend " in errors
    assert dynprof("cancel", job.root)[2].splitlines()[1:] == []


def test_a_refusal_ends_the_wait(job: RunningJob) -> None:
    """A rank that refuses ends the wait, with its reason."""
    job.when("the second step", lambda status: status.step > 1)
    code, _, errors = dynprof("arm", job.root, "--start-step", 1, "--wait")
    assert code == 4
    assert "rank 0: refused: " in errors
    assert "step 1 has begun already" in errors


def test_two_people_arm_at_once(job: RunningJob) -> None:
    """The first waiting command names the superseding request, the second the replaced one."""
    first = start("arm", job.root, "--start-step", 10**6, "--wait")
    job.when("the first request", lambda status: status.state == "waiting")
    code, _, errors = dynprof("arm", job.root, "--start-step", 0, "--wait")
    assert code == 0
    assert "rank 0: request 1 is waiting and will be superseded" in errors
    _, errors = first.communicate()
    assert first.returncode == 4
    assert "rank 0: superseded by request 2" in errors


def test_arm_tells_how_long_an_open_window_remains(job: RunningJob) -> None:
    """A request for a million steps is open: the next command tells how many steps remain."""
    dynprof("arm", job.root, "--active", 10**6)
    job.when("the window", lambda status: status.progress is not None)
    code, _, errors = dynprof("arm", job.root, "--active", 1)
    assert code == 0
    said = re.search(r"request 1 is open for ([\d,]+) steps more; .* ends both", errors)
    assert said, errors
    assert 0 < int(said[1].replace(",", "")) <= 10**6
    assert dynprof("cancel", job.root, "--wait")[0] == 0
    job.when("the cancel", lambda status: status.state == "idle")


def test_cancel_closes_and_waiting_commands_print_why(job: RunningJob) -> None:
    """The open window is closed and saved; waiting commands print why, and where."""
    waiting = start("arm", job.root, "--active", 10**6, "--wait")
    job.when("the window", lambda status: status.state == "recording")
    code, closed, errors = dynprof("cancel", job.root, "--wait")
    assert (code, "cancel: closes the open window" in errors) == (0, True)
    output, _ = waiting.communicate()
    assert waiting.returncode == 0  # the partial window is saved, and its manifest says: cancelled
    assert closed == output
    assert load_manifest(type(job.root)(output.strip())).reason == "cancelled by request 2"
    assert dynprof("cancel", job.root, "--wait")[:2] == (0, "")


def test_cancel_on_an_unreadable_file_names_the_remedy(job: RunningJob) -> None:
    """The open window stays open. The content that the error suggests ends it."""
    dynprof("arm", job.root, "--active", 10**6)
    job.when("the window", lambda status: status.state == "recording")
    job.config.write_text('{"active": 3 "warmup": 1}')
    code, _, errors = dynprof("cancel", job.root, "--wait")
    assert (code, "nothing was changed; what is open or waiting stays" in errors) == (1, True), (
        errors
    )
    (instead,) = re.findall(r"replace its content by (\{.*\})", errors)
    job.config.write_text(instead)
    assert job.capture()[0].reason.startswith("cancelled by request")
    job.config.write_text("{")
    assert "stays open" not in dynprof("arm", job.root)[2]


def test_a_rank_that_dies_ends_the_wait(job: RunningJob) -> None:
    """A rank is killed while it records: the command says so and stops waiting."""
    waiting = start("arm", job.root, "--active", 10**6, "--wait")
    job.when("the window", lambda status: status.state == "recording")
    job.process.send_signal(signal.SIGKILL)
    _, errors = waiting.communicate()
    assert waiting.returncode == 5
    assert "rank 0: the process is dead: its status is no longer written" in errors


def test_arm_without_a_live_process_changes_the_file(tmp_path: Path) -> None:
    """Without a live process the file is changed all the same; the last process is named."""
    code, output, _ = dynprof("init", tmp_path / "prof_config")
    assert (code, output) == (0, f"{tmp_path / 'prof_config/profiler_config.json'} was created\n")
    code, _, errors = dynprof("arm", tmp_path / "prof_config", "--active", 2)
    assert code == 3
    assert "no job has called dp.init() on it yet" in errors
    with RunningJob(tmp_path, LOOP.replace("True", "dp.status().step < 5")) as ended:
        ended.end()
        code, _, errors = dynprof("arm", ended.root)
        assert code == 3
        assert f"the last one (rank 0, {os.uname().nodename}, pid {ended.process.pid})" in errors
        assert " stopped at " in errors


def test_arm_without_a_config_names_the_directory(tmp_path: Path) -> None:
    """A wrong directory is named."""
    code, _, errors = dynprof("arm", tmp_path)
    assert (code, "there is no such file; dynprof init creates it" in errors) == (2, True)


def test_a_parent_directory_names_the_config_below(tmp_path: Path) -> None:
    """If the given directory has a config further below, the command names its place."""
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
        (("--metadata", "who"), "'who' is not a pair; write a key, = and a value"),
        (("--metadata", "=me"), "'=me' is not a pair"),
        (("--timeout", 3), "--timeout is for --wait; give both, or neither"),
        (("--wait", "--timeout", -3), "Invalid value for '--timeout'"),
    ],
)
def test_options_without_effect_are_refused(
    tmp_path: Path, options: tuple[object, ...], said: str
) -> None:
    """An option without an effect is refused, and the config stays unchanged."""
    dynprof("init", tmp_path)
    config = (tmp_path / "profiler_config.json").read_text()
    code, _, errors = dynprof("arm", tmp_path, *options)
    assert (code, said in errors) == (2, True), errors
    assert (tmp_path / "profiler_config.json").read_text() == config


def test_arm_names_settings_kept_from_the_file(job: RunningJob) -> None:
    """Settings stay in the file and are named; start_step and cancel are reset."""
    options = ["--max-seconds", 7, "--prof-dir", "captures", "--metadata", "a=b"]
    dynprof("arm", job.root, "--active", 2, "--start-step", 10**6, *options)
    dynprof("cancel", job.root)
    (step,) = [one.step + 500 for one in [job.status()] if one]
    code, output, errors = dynprof("arm", job.root, "--warmup", 1, "--start-step", step, "--wait")
    assert code == 0, errors
    kept = 'active 2, max_seconds 7, prof_dir "captures", metadata {"a": "b"}'
    resets = "--defaults resets active, max_seconds"
    assert f"kept from the file: {kept}; {resets}\n" in errors
    manifest = load_manifest(type(job.root)(output.strip()))
    assert (manifest.steps.recorded, manifest.steps.warmup) == (2, 1)
    assert manifest.steps.first == step + 1
    assert f"records steps {step + 1}-{step + 2}, after 1 step of warm-up" in errors
    assert manifest.request.config["cancel"] is False


def test_ctrl_c_says_that_the_request_stays(job: RunningJob) -> None:
    """Ctrl-C ends the waiting, not the request."""
    waiting = start("arm", job.root, "--start-step", 10**6, "--wait")
    job.when("the request", lambda status: status.state == "waiting")
    assert waiting.stderr
    assert any(" is saved; " in line for line in waiting.stderr)  # the command has read the line
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate()
    assert waiting.returncode == 130
    stays = f"the request stays active; dynprof cancel {job.root} cancels it"
    assert f"stopped waiting (Ctrl-C); {stays}\n" in errors
    assert (status := job.status())
    assert status.state == "waiting"


def test_a_timeout_says_that_the_request_stays(job: RunningJob) -> None:
    """The last line has the same words as for Ctrl-C; a cancel is not undone."""
    far = ("--start-step", 10**6, "--wait", "--timeout", 0.3)
    code, _, errors = dynprof("arm", job.root, *far)
    stays = f"the request stays active; dynprof cancel {job.root} cancels it"
    assert (code, errors.splitlines()[-1]) == (5, f"stopped waiting (timeout); {stays}")
    assert dynprof("cancel", job.root, "--wait")[0] == 0


def test_arm_on_a_broken_file_names_the_remedy(job: RunningJob) -> None:
    """The error names the lines first. A bad value on the command line gets no such advice."""
    job.config.write_text('{"active": 3 "warmup": 1}')
    code, _, errors = dynprof("arm", job.root, "--active", 2)
    mend = f"correct the line, or remove the file and run dynprof init {job.root}: "
    mend += "live jobs then record one step"
    last = f"{job.config}: nothing was changed; {mend}"
    assert (code, errors.splitlines()[-1]) == (1, last)
    job.config.unlink()
    dynprof("init", job.root)
    assert "correct the line" not in dynprof("arm", job.root, "--backend", "torhc")[2]


def test_a_missing_directory_is_named(job: RunningJob, tmp_path: Path) -> None:
    """A mistyped directory is not treated as a job that has not started; the config is accepted."""
    for command in ("status", "log", "arm", "cancel"):
        code, _, errors = dynprof(command, tmp_path / "prof_conf")
        made = f'a job creates it with dp.init("{tmp_path}/prof_conf") or dynprof run'
        assert (code, errors) == (2, f"there is no directory {tmp_path}/prof_conf; {made}\n")
        code, _, errors = dynprof(command, job.config)
        assert code == 0, errors
    place = f"there is no directory no_such_folder in {Path.cwd()}; a job creates it with "
    assert place in dynprof("status", "no_such_folder")[2]


def test_init_is_a_request_to_a_live_job(job: RunningJob) -> None:
    """Live jobs treat the new config as a save."""
    job.config.unlink()
    job.when("the file to be missed", lambda status: bool(status.problems))
    code, _, errors = dynprof("init", job.root)
    assert (code, errors) == (0, "1 live rank treats it as a request, and will record a step\n")
    assert job.capture(2)[0].complete


def test_cancel_reaches_all_ranks(job: RunningJob) -> None:
    """A cancel applies to every process of the directory, whatever ranks the file names."""
    dynprof("arm", job.root, "--start-step", 10**6)
    job.when("the request", lambda status: status.state == "waiting")
    config = json.loads(job.config.read_text())
    job.config.write_text(json.dumps({**config, "ranks": "5"}))
    code, _, errors = dynprof("cancel", job.root, "--wait")
    assert (code, "rank 0: cancel: drops the waiting request" in errors) == (0, True)


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    """The others record; the exit code shows that a rank is missing."""
    with RunningJob(tmp_path, LOOP, RANK="0", WORLD_SIZE="3") as job:
        job.when("training", lambda status: status.state == "idle")
        code, output, errors = dynprof("arm", job.root, "--ranks", "0-1", "--wait")
        assert (code, "no request sent to rank 1: it is not running\n" in errors) == (5, True)
        assert load_manifest(type(job.root)(output.strip())).complete


def test_ranks_that_the_job_does_not_have_are_named(job: RunningJob) -> None:
    """If no requested rank runs, a separate exit code says so; otherwise the others record."""
    code, _, errors = dynprof("arm", job.root, "--ranks", 7)
    assert (code, errors.splitlines()) == (
        6,
        [
            "this job has rank 0 only, no rank 7",
            f"{job.config} is saved, but no running rank matches --ranks 7 (running: rank 0); "
            "--ranks all matches all",
        ],
    )
    code, _, errors = dynprof("arm", job.root, "--active", 1)
    assert (code, "no running rank matches ranks 7 of the file (" in errors) == (6, True)
    for ranks, missing in ("0,5-6", "5-6"), ("0-3", "1-3"), ("0,0-2", "1-2"):
        code, output, errors = dynprof("arm", job.root, "--ranks", ranks, "--wait")
        assert (code, f"rank 0 only, no ranks {missing}\n" in errors) == (0, True), errors
        assert load_manifest(type(job.root)(output.strip())).complete
    assert "only, no rank 1\n" in dynprof("arm", job.root, "--ranks", "0-1")[2]
    assert "this job has" not in dynprof("arm", job.root, "--ranks", "all")[2]


def test_values_that_cannot_be_written_are_named(job: RunningJob, tmp_path: Path) -> None:
    """Values that a config cannot hold give an error message without a traceback."""
    code, _, errors = dynprof("arm", job.root, "--metadata", 'a="\\ud800"')
    assert (code, "half of a surrogate pair is not a character" in errors) == (1, True)
    code, _, errors = dynprof("init", tmp_path / "new", "--activities", "GPU")
    assert (code, 'Did you mean "CUDA"?' in errors) == (1, True)
    job.edit(prof_dir="x" * 300)
    code, output, _ = dynprof("validate", job.root)
    assert (code, "File name too long" in output) == (1, True)
