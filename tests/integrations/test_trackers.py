"""Captures in real runs of Weights & Biases, MLflow and TensorBoard, all without a network."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integrations.jobs import Window, log, windows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS = """
def analysed(count):
    "Return whether the log has the analysis of this number of captures."
    text = "".join(path.read_text() for path in Path("prof_config/log").iterdir())
    return text.count(": analysed ") == count

def steps(record):
    "Run 30 steps of which steps 11 and 12, then 21 and 22, are recorded; ``record`` is a step."
    for step in range(30):
        if step in (9, 19):
            ask(analyse=True)
        torch.ones(8).sum()
        record(step)
        dp.step()
        if step in (12, 22):
            wait(lambda: analysed(step // 10))

dp.init("prof_config")
"""
WANDB = """
import dynprof.integrations, wandb
run = wandb.init(project="p", mode="offline", settings=wandb.Settings(x_disable_stats=True))
dp.integrations.wandb.log_captures()
steps(lambda step: run.log({"loss": 0.5}))
dp.shutdown()
run.finish()
"""
MLFLOW = """
import dynprof.integrations, mlflow
with mlflow.start_run():
    dp.integrations.mlflow.log_captures()
    steps(lambda step: mlflow.log_metric("loss", 0.5, step=step))
    dp.shutdown()
"""
TENSORBOARD = """
import dynprof.integrations
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter("runs") as writer:
    dp.integrations.tensorboard.log_captures(writer)
    steps(lambda step: writer.add_scalar("loss", 0.5, step))
    dp.shutdown()
"""
BLOCK, HEADER = 32768, 7  # Bytes; the layout of LevelDB's logs, in which W&B keeps records.


def records(path: Path) -> Iterator[Any]:
    """Yield the records of a run of W&B, which has no reader of its own."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # the only or the last part
            yield Record.FromString(whole)
            whole = b""


def captures(folder: Path, found: list[Window]) -> list[tuple[int | None, str, str]]:
    """Return the last step, the manifest's path and the window's folder of each capture."""
    paths = sorted((folder / "prof_config").rglob("*.info.json"))
    steps = [window.manifest.steps.last for window in found]
    assert steps == [12, 22]
    return [
        (step, str(path), path.parent.parent.name) for step, path in zip(steps, paths, strict=True)
    ]


def test_run_of_wandb_has_captures_and_keeps_its_steps(tmp_path: Path) -> None:
    """The run has the script's own 30 steps; the captures are in rows of it."""
    pytest.importorskip("wandb", reason="wandb is not installed; make integrations has it")
    first, second = captures(tmp_path, windows(tmp_path, STEPS + WANDB, WANDB_SILENT="true"))
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    read = [one for one in records(file) if one.HasField("history") or one.HasField("metric")]
    rows = [
        {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in one.history.item
        }
        for one in read
        if one.HasField("history")
    ]
    assert [row["_step"] for row in rows if "loss" in row] == list(range(30))
    for step, path, _ in (first, second):
        verdicts = [
            row for row in rows if row.get("dynprof/verdict") and row["dynprof/step"] == step
        ]
        (row,) = verdicts
        assert row["dynprof/capture"] == path
        assert "step" in row["dynprof/verdict"]
    named = {
        one.metric.name or one.metric.glob_name: one.metric
        for one in read
        if one.HasField("metric")
    }
    assert named["dynprof/*"].step_metric == "dynprof/step"
    assert "W&B failed" not in log(tmp_path)


def test_run_of_mlflow_has_captures_as_artifacts_and_tags(tmp_path: Path) -> None:
    """Each capture has an artifact with its verdict; the tags are those of the last one."""
    pytest.importorskip("mlflow", reason="mlflow is not installed; make integrations has it")
    store = tmp_path / "mlruns"
    env = {"MLFLOW_TRACKING_URI": store.as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    first, second = captures(tmp_path, windows(tmp_path, STEPS + MLFLOW, **env))
    (tags,) = store.glob("0/*/tags")
    read = {path.name: path.read_text() for path in tags.glob("dynprof.*")}
    assert (read["dynprof.step"], read["dynprof.capture"]) == ("22", second[1])
    assert read["dynprof.verdict"]
    for step, path, window in (first, second):
        (artifact,) = store.glob(f"0/*/artifacts/dynprof/{window}.rank0.json")
        facts = json.loads(artifact.read_text())
        assert (facts["step"], facts["capture"]) == (step, path)
        assert facts["verdict"]
    assert "MLflow failed" not in log(tmp_path)


def test_texts_of_tensorboard_have_captures_at_their_steps(tmp_path: Path) -> None:
    """TensorBoard's own reader finds path and verdict of both captures."""
    pytest.importorskip(
        "tensorboard", reason="tensorboard is not installed; make integrations has it"
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = captures(tmp_path, windows(tmp_path, STEPS + TENSORBOARD))
    events = EventAccumulator(str(tmp_path / "runs")).Reload()
    written = events.Tensors("dynprof/capture/text_summary")
    texts = [(one.step, one.tensor_proto.string_val[0].decode().strip()) for one in written]
    assert texts == [(step, path) for step, path, _ in found]
    verdicts = events.Tensors("dynprof/verdict/text_summary")
    assert [one.step for one in verdicts] == [12, 22]
    assert len(events.Scalars("loss")) == 30
    assert "TensorBoard failed" not in log(tmp_path)


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_missing_run_is_an_error_before_the_training(tracker: str) -> None:
    """The message says which call begins one."""
    pytest.importorskip(tracker, reason=f"{tracker} is not installed; make integrations has it")
    import dynprof.integrations

    with pytest.raises(ValueError, match=r"call log_captures\(\) after (wandb.init|mlflow.start)"):
        getattr(dynprof.integrations, tracker).log_captures()
