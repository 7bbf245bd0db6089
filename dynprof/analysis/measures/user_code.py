"""Where in the user's own code something happened: the innermost frame of no other package."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import open_at
from dynprof.analysis.measures.timeline.operators import is_step
from dynprof.analysis.measures.timeline.overhead import is_dynprof_frame, profiler_of
from dynprof.analysis.reading.events import CALLS, FRAMES, OPERATORS
from dynprof.analysis.reading.spans import ROOT
from dynprof.runtime.stacks import is_of_a_library

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.operators import Calls
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

_KINETO = re.compile(r"(?P<file>[^<>]+)\((?P<line>\d+)\): (?P<function>.+)")
"""Kineto's names of frames: the file, the line at which the function was entered, its name."""
_VIZTRACER = re.compile(r"(?P<function>\S+) \((?P<file>[^<>]+):(?P<line>\d+)\)")
"""VizTracer's names of frames, with the whole path; functions in C have only a name."""
_BUILT_IN = re.compile(r"<built-in (?:function|method) (?P<function>[^\s>]*)(?P<of>.*)>")
_FOLDERS = re.compile(r"[\\/]")
_GENERATED = re.compile(r"[\\/](\w\w)[\\/]c\1[a-z2-7]{40,}\.py$")
"""Files that torch.compile writes. Each is in a folder named like the start of its own name."""
_INSTALLED_PACKAGES = """
dynprof torch torchvision torchaudio torchdata torchtext torchao torch_npu torch_xla triton
functorch torchgen numpy scipy pandas sklearn matplotlib PIL cv2 tqdm einops psutil yaml
transformers accelerate datasets tokenizers safetensors huggingface_hub peft trl diffusers timm
evaluate lightning pytorch_lightning lightning_fabric lightning_utilities torchmetrics ignite
deepspeed apex flash_attn xformers bitsandbytes transformer_engine fairscale colossalai
composer wandb mlflow tensorboard tensorboardX hydra omegaconf fsspec pyarrow ray dill
monai kornia albumentations webdataset ffcv viztracer
vllm vllm_ascend sglang sgl_kernel xfuser yunchang megatron nemo tensorrt_llm flashinfer deep_ep
verl torchtitan
"""
"""Kineto removes the folders of ``sys.path``, so packages are known by their names only."""
_FOLDERS_OF_PYTHON = """
asyncio collections compression concurrent ctypes curses dbm distutils email encodings
ensurepip html http idlelib importlib json lib2to3 logging multiprocessing pathlib pydoc_data
re sqlite3 string sysconfig tkinter tomllib turtledemo unittest urllib venv wsgiref xml xmlrpc
zoneinfo
"""
"""Folders of the standard library. A user's folder may have the name of one of its modules."""
_PACKAGES = frozenset(_INSTALLED_PACKAGES.split())
_OF_PYTHON = frozenset(_FOLDERS_OF_PYTHON.split())


@dataclass(frozen=True)
class CodePlaces:
    """Where in the code moments are, as indices among the trace's spans; -1 if unknown.

    Attributes:
        frame: The innermost frame of the user's own code.
        operator: The outermost operator in that frame, which the user's code called.
        called: The outermost function of another package in that frame, likewise.
    """

    frame: Numbers
    operator: Numbers
    called: Numbers


def is_user_frame(name: str) -> bool:
    """Return whether a frame is the user's own code, as far as its name tells."""
    found = _frame(name)
    if not found or profiler_of(name) or is_dynprof_frame(name):
        return False
    file = found["file"]
    if is_of_a_library(file) or _GENERATED.search(file):
        return False
    first, *inner = _FOLDERS.split(file)
    if inner:
        return first not in _PACKAGES | _OF_PYTHON
    return first.removesuffix(".py") not in _PACKAGES | sys.stdlib_module_names


def place_of(name: str, *, open_at_start: bool = False) -> str:
    """Return a frame's place in the code for a sentence, such as ``train.py:22 (main)``.

    Args:
        name: Its name in the trace.
        open_at_start: Whether it was entered before the recording began. Its line is then not the
            definition but where it was executing, so it is left out, as for every module.
    """
    found = _frame(name)
    if not found:
        return _built_in(name)
    line = "" if open_at_start or found["function"] == "<module>" else f":{found['line']}"
    return f"{_shown(found)}{line} ({found['function']})"


def function_of(name: str, *, open_at_start: bool = False) -> str:
    """Return the same with the function first, since its line is that of the definition.

    Examples: ``main (defined at train.py:22)``, and ``sleep`` for a built-in function.
    """
    found = _frame(name)
    if not found or found["function"] == "<module>":
        return place_of(name)
    if open_at_start:
        return f"{found['function']} ({_shown(found)})"
    return f"{found['function']} (defined at {_shown(found)}:{found['line']})"


def _frame(name: str) -> re.Match[str] | None:
    return _KINETO.fullmatch(name) or _VIZTRACER.fullmatch(name)


def _shown(frame: re.Match[str]) -> str:
    """Return a frame's file for a sentence; of a whole path only the name."""
    return _FOLDERS.split(frame["file"])[-1] if frame.re is _VIZTRACER else frame["file"]


def _built_in(name: str) -> str:
    """Return the short name of a built-in function or method; other names unchanged."""
    found = _BUILT_IN.fullmatch(name)
    if not found:
        return name
    if "pybind11" in found["of"]:
        return f"pybind11 method {found['function']}".rstrip()
    return found["function"] or name


def user_frames(trace: Trace) -> NDArray[np.bool_]:
    """Return the spans that are frames of the user's own code."""
    return trace.category(FRAMES, CALLS) & trace.named(is_user_frame)


def open_at_start(trace: Trace, marked: list[MarkedStep]) -> NDArray[np.bool_]:
    """Return the frames that began before the first step, such as those open at the start.

    Frames of VizTracer are excluded: their lines are those of definitions, whenever a call began.
    """
    first = marked[0][1] if marked else 0
    return trace.category(FRAMES) & (trace.spans["start"] < first)


def code_at(trace: Trace, calls: Calls, thread: Numbers, when: Numbers) -> CodePlaces:
    """Return where in the user's code moments are.

    Args:
        trace: The trace.
        calls: Its operators and frames.
        thread: The thread of each moment; -1 for none.
        when: The moments, in ns.
    """
    users = user_frames(trace)[calls.span]
    step = trace.named(is_step)
    operators = (trace.category(OPERATORS) & ~step)[calls.span]
    others = (trace.category(FRAMES, CALLS) & ~trace.named(is_dynprof_frame))[calls.span] & ~users
    place = open_at(trace, calls.span, calls.parent, thread, when)
    frame, operator, called = np.full((3, len(when)), ROOT, np.int64)
    left = np.flatnonzero(place != ROOT)
    while len(left):
        here = place[left]
        frame[left] = np.where(users[here], here, ROOT)
        operator[left] = np.where(operators[here], here, operator[left])
        called[left] = np.where(others[here], here, called[left])
        place[left] = np.where(users[here], ROOT, calls.parent[here])
        left = left[place[left] != ROOT]
    spans = np.append(calls.span, ROOT)
    return CodePlaces(spans[frame], spans[operator], spans[called])
