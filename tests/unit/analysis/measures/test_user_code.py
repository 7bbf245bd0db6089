"""The owner of a frame's code, and its display name, for names of Kineto and VizTracer."""

from __future__ import annotations

import pytest

from dynprof.analysis.measures.user_code import function_of, is_user_frame, place_of

USERS = [
    ("train.py(22): main", "train.py:22 (main)", "main (defined at train.py:22)"),
    ("src/data.py(7): <lambda>", "src/data.py:7 (<lambda>)", "<lambda> (defined at src/data.py:7)"),
    ("train.py(25): <module>", "train.py (<module>)", "train.py (<module>)"),
    ("lookup (/home/me/job.py:6)", "job.py:6 (lookup)", "lookup (defined at job.py:6)"),
    ("Net.fit.<locals>.<lambda> (/home/me/run (2)/net.py:9)",
     "net.py:9 (Net.fit.<locals>.<lambda>)", "Net.fit.<locals>.<lambda> (defined at net.py:9)"),
    ("<module> (/home/me/queue.py:1)", "queue.py (<module>)", "queue.py (<module>)"),
    ("load (/home/me/dynprof/datasets/json.py:3)",
     "json.py:3 (load)", "load (defined at json.py:3)"),
    ("serve (/home/me/app/vllm/serve.py:3)", "serve.py:3 (serve)", "serve (defined at serve.py:3)"),
]  # fmt: skip
OTHERS = [
    "queue.py(154): get",
    "torch/nn/modules/linear.py(130): forward",
    "Queue.get (/usr/lib/python3.12/queue.py:154)",
    "get (/usr/lib64/python3.10/queue.py:154)",
    "get (/opt/free/lib/python3.13t/queue.py:154)",
    "dumps (/venv/lib/python3.11/site-packages/simplejson/__init__.py:183)",
    "step (/home/me/clone/dynprof/dynamic_profile.py:50)",
    "_find_and_load (<frozen importlib._bootstrap>:1349)",
    "call (/tmp/torchinductor_me/ab/cabxyzabcdefghijklmnopqrstuvwxyz234567abcdefghijklmn.py:40)",
    "vllm/v1/worker/gpu_model_runner.py(3380): execute_model",
    "/vllm-workspace/vllm/v1/engine/core.py(12): step",
    "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py(99): event_loop_overlap",
    "xDiT/xfuser/core/base.py(8): __call__",
    "forward (/opt/Megatron-LM/megatron/core/transformer/block.py:5)",
    "step (/home/me/DeepSpeed/deepspeed/runtime/engine.py:9)",
    "fit (/src/pytorch-lightning/src/lightning/pytorch/trainer/trainer.py:9)",
    "prepare (/home/me/accelerate/src/accelerate/accelerator.py:9)",
    "time.sleep",
    "<built-in function sleep>",
    "aten::mm",
]


@pytest.mark.parametrize(("name", "place", "function"), USERS)
def test_frames_of_the_users(name: str, place: str, function: str) -> None:
    """The file's name replaces the whole path; a module has no line."""
    assert is_user_frame(name)
    assert place_of(name) == place
    assert function_of(name) == function


@pytest.mark.parametrize("name", OTHERS)
def test_frames_of_others(name: str) -> None:
    """Code of Python, packages, the profiler, C, or without a file is not the user's."""
    assert not is_user_frame(name)
