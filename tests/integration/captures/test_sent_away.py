"""Captures that are written in one place and sent to another one, including a real S3.

The server is moto's, the client boto3's; the job uses s3fs.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dynprof.captures.manifest import Manifest, load_manifest
from dynprof.captures.window_record import WindowRecord
from tests.integration.buckets import (
    PLACE,
    SECRET,
    UNTIL_ENOUGH,
    Bucket,
    end,
    files,
    job,
    log,
)
from tests.integration.commands import dynprof
from tests.integration.launching import end_well, ranks
from tests.integration.running import LOOP, RunningJob, below, wait_for


def steps_of(trace: bytes) -> list[int]:
    """Return the steps of a trace, read without dynprof."""
    events = json.loads(gzip.decompress(trace))["traceEvents"]
    names = [event["name"] for event in events if event["name"].startswith("ProfilerStep#")]
    return sorted(int(name.removeprefix("ProfilerStep#")) for name in names)


def test_a_capture_goes_to_s3(tmp_path: Path, bucket: Bucket) -> None:
    """Trace, metadata, manifest and later the tables arrive; no file stays, no secret is shown."""
    with bucket.served(), job(tmp_path, bucket) as running:
        code, output, errors = dynprof(
            "arm", running.root, "--prof-dir", PLACE, "--active", "3", "--analyse", "--wait",
            "--metadata", "run=7",
        )  # fmt: skip
        assert code == 0, output + errors

        def analysed() -> bool | None:
            there = bucket.objects().items()
            manifests = [json.loads(text) for key, text in there if key.endswith(".info.json")]
            return any(manifest["left_out"] for manifest in manifests) or None

        wait_for("the manifest after analysis", analysed)
        found = bucket.objects()
        status = running.status()
        end(running)
    (manifest_key,) = [key for key in found if key.endswith("rank_0.info.json")]
    manifest = Manifest.model_validate_json(found[manifest_key])
    folder = manifest_key.removesuffix("/info/rank_0.info.json")
    assert manifest.complete
    trace = found[f"{folder}/{manifest.trace}"]
    assert steps_of(trace) == list(range(manifest.steps.first, manifest.steps.last + 1))
    assert len(trace) == manifest.trace_bytes
    assert any("operators.parquet" in key for key in found)
    assert json.loads(found[f"{folder}/profiler_metadata.json"]) == {"run": 7}
    assert status is not None
    assert status.last_capture == f"s3://runs/{manifest_key}"
    assert str(status.last_capture) in output
    assert "outgoing" not in {path.name for path in running.root.iterdir()}
    said = "".join(p.read_text() for p in below(running.root, "*") if p.is_file())
    assert SECRET not in said + output + errors + "".join(map(str, found.values()))


def test_an_unreachable_store_is_retried(tmp_path: Path, bucket: Bucket) -> None:
    """The log warns at once. Training continues, and the capture arrives when the store is back."""
    with job(tmp_path, bucket) as running:
        running.edit(prof_dir=PLACE, active=2)
        wait_for("the warning", lambda: "is not in s3://runs/job/" in log(running.root) or None)
        status = running.when("a later step", lambda status: status.state != "saving")
        assert (status.state, status.edits[-1].outcome) == ("sending", "saving")
        why = "rank 0: request 1: its capture is not in s3://runs/job/"
        assert why in dynprof("status", running.root)[1]
        with bucket.served():
            running.when("the capture", lambda status: bool(status.last_capture))
            keys = bucket.objects()
    assert any(key.endswith("trace.json.gz") for key in keys)
    assert "dynprof retries for 600 s" in log(running.root)
    assert not [path for path in below(running.root / "outgoing", "*") if path.is_file()]


def test_a_capture_that_cannot_be_sent_stays(tmp_path: Path, bucket: Bucket) -> None:
    """The capture stays whole where it was written, and the log names the place."""
    with job(tmp_path, bucket) as running:
        running.edit(prof_dir=PLACE, active=2, storage={"retry_s": 0})
        status = running.when("the capture", lambda status: bool(status.last_capture))
    manifest = load_manifest(running.root / str(status.last_capture))
    assert manifest.complete
    folder = (running.root / str(status.last_capture)).parent.parent
    assert (folder / str(manifest.trace)).is_file()
    assert f"and is in {folder}" in str(status.last_error)
    assert f"its capture is not in {PLACE}/{folder.name}, and is in {folder}" in log(running.root)


def test_the_end_of_the_job_waits_until_captures_are_sent(tmp_path: Path, bucket: Bucket) -> None:
    """The job waits for it as for a save, but not for its turn among the ranks."""
    script = LOOP.replace("while True:", "for _ in range(500):")
    with bucket.served(), job(tmp_path, bucket, script=script) as running:
        running.edit(prof_dir=PLACE, active=490, storage={"spread_s": 86400}, ranks="all")
        running.process.communicate()
        assert any(key.endswith("trace.json.gz") for key in bucket.objects())
    assert files(running.root / "outgoing") == []


def test_status_of_an_ended_job_names_what_it_waits_for(tmp_path: Path, bucket: Bucket) -> None:
    """Until its capture has arrived, the job is ending, not stuck, and accepts no requests."""
    with job(tmp_path, bucket) as running:
        running.edit(prof_dir=PLACE, active=2)
        wait_for("the warning", lambda: "is not in s3://runs/job/" in log(running.root) or None)
        (tmp_path / "enough").touch()
        status = running.when("its end", lambda status: bool(status.ending))
        assert (status.state, status.health(status.heartbeat)) == ("sending", "ending")
        code, said, _ = dynprof("status", running.root)
        assert code == 0
        assert "rank 0: the process ended; it waits up to 600 s for what is being saved" in said
        code, _, errors = dynprof("arm", running.root, "--wait")
        assert (code, "any more: the process is ending (rank 0, " in errors) == (3, True)
        with bucket.served():
            running.process.communicate()
            assert any(key.endswith("trace.json.gz") for key in bucket.objects())


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("s3://elsewhere/job", "is none of the URLs that init() allowed"),
        ("s3://key:hush@runs/job", "a URL with credentials"),
        ("gs://runs/job", "gs:// needs gcsfs"),
    ],
)
def test_an_unusable_url_is_refused(tmp_path: Path, bucket: Bucket, place: str, why: str) -> None:
    """The refusal repeats no secret. Users who may edit the config may not choose the bucket."""
    with job(tmp_path, bucket, f"{PLACE}:gs://runs/job") as running:
        running.root.chmod(0o770)
        running.edit(prof_dir=place)
        status = running.when("a refusal", lambda status: bool(status.problems))
        code, output, _ = dynprof("validate", running.config)
    assert why in "\n".join(status.problems)
    assert "hush" not in "\n".join(status.problems) + log(running.root)
    assert (code, why in output) == (1, True)


def test_a_capture_is_written_in_the_scratch_directory_first(tmp_path: Path) -> None:
    """The capture is then moved: nothing stays there, and all files are in the usual place."""
    scratch = tmp_path / "scratch"
    with RunningJob(tmp_path, UNTIL_ENOUGH, DYNPROF_PROF_DIRS=str(scratch)) as running:
        running.when("training", lambda status: status.state == "idle")
        storage = {"scratch_dir": str(scratch)}
        running.edit(prof_dir="captures", active=2, storage=storage, metadata={"run": 7})
        status = running.when("the capture", lambda status: bool(status.last_capture))
        path = running.root / str(status.last_capture)
        manifest = load_manifest(path)
        wait_for("the cost", lambda: load_manifest(path).cost.step_after_ms)
        end(running)
    assert manifest.complete
    here = path.parent.parent
    assert here.parent == running.root / "captures"
    assert files(here) == [
        "info",
        "info/rank_0.info.json",
        "profiler_metadata.json",
        manifest.trace,
    ]
    expected = list(range(manifest.steps.first, manifest.steps.last + 1))
    assert steps_of((here / str(manifest.trace)).read_bytes()) == expected
    assert files(scratch) == []
    assert {oct(p.stat().st_mode & 0o007) for p in below(here, "*") if p.is_file()} == {"0o0"}


def test_captures_of_the_same_steps_have_different_names(tmp_path: Path) -> None:
    """Two processes of one rank share a scratch directory: both captures arrive, whole."""
    settings = {"start_step": 2000, "active": 2, "storage": {"scratch_dir": "scratch"}}
    script = LOOP.replace('"prof_config"', '"prof_config", rank=3').replace("0.01", "0.002")
    found = []
    with RunningJob(tmp_path, script) as one, RunningJob(tmp_path, script) as other:
        assert other.root == one.root
        wait_for("both", lambda: log(one.root).count("watches") >= 2 or None)
        one.edit(prof_dir="captures", **settings)
        wait_for("both", lambda: log(one.root).count("saved captures/") >= 2 or None)
    for path in (one.root / "captures").glob("*/info/*.info.json"):
        manifest = load_manifest(path)
        found.append((path.name, manifest.complete))
        assert (path.parent.parent / str(manifest.trace)).is_file()
    assert sorted(found) == [("rank_3.2.info.json", True), ("rank_3.info.json", True)]


def test_status_names_a_capture_that_waits_for_its_turn(tmp_path: Path) -> None:
    """The rank is not idle, and the status names the reason; another window may open."""
    storage = {"scratch_dir": "scratch", "spread_s": 2000}
    with RunningJob(tmp_path, LOOP, RANK="1", WORLD_SIZE="2") as running:
        running.when("training", lambda status: status.state == "idle", 1)
        running.edit(active=2, storage=storage)
        running.when("its turn", lambda status: status.state == "sending", 1)
        _, output, _ = dynprof("status", running.root)
        assert "after 1,000 s: the ranks take turns, storage.spread_s" in " ".join(output.split())
        running.edit(active=10**6, storage=storage)
        running.when("another window", lambda status: status.state == "recording", 1)


RANKS = """
import os, time, torch, torch.distributed as dist, dynprof as dp
dist.init_process_group("gloo")
dp.init("prof_config")
flag = torch.zeros(1)
while not flag.item():
    time.sleep(0.005)
    flag.fill_(os.path.exists("enough"))
    dist.all_reduce(flag)
    dp.step()
dist.destroy_process_group()
"""


def test_all_ranks_and_the_record_of_their_window_go_to_s3(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One folder there has both traces and the window's record; arm waits for their arrival."""
    pytest.importorskip("torch", reason="torch is not installed")
    for name, value in {**bucket.env, "DYNPROF_PROF_DIRS": PLACE}.items():
        monkeypatch.setenv(name, value)
    with bucket.served(), ranks(tmp_path, RANKS, 2) as running:
        root = tmp_path / "prof_config"
        wait_for(
            "the ranks",
            lambda: (log(root).count("agree on") == 2) or None,
        )
        code, output, errors = dynprof("arm", root, "--prof-dir", PLACE, "--active", "2", "--wait")
        assert code == 0, output + errors
        assert "2 of 2 ranks saved it" in output + errors
        wait_for(
            "the record", lambda: any("window.json" in key for key in bucket.objects()) or None
        )
        found = bucket.objects()
        Path(tmp_path, "enough").touch()
        end_well(running)
    (key,) = [key for key in found if key.endswith("/info/window.json")]
    record = WindowRecord.model_validate_json(found[key])
    assert record.complete
    captures = [one.capture.removeprefix("s3://runs/") for one in record.ranks.values()]
    folder = key.removesuffix("/info/window.json")
    assert sorted(captures) == [f"{folder}/info/rank_{rank}.info.json" for rank in (0, 1)]
    for capture in captures:
        manifest = Manifest.model_validate_json(found[capture])
        assert steps_of(found[f"{folder}/{manifest.trace}"]) == [record.first, record.last]
