"""The script's code in a trace: the user's own lines, and operators and frames by call path."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import open_at
from dynprof.analysis.measures.timeline.operators import device_time, is_step
from dynprof.analysis.measures.timeline.overhead import is_dynprof_frame, overhead, profiler_of
from dynprof.analysis.reading.events import CALLS, FRAMES, LABELS, OPERATORS
from dynprof.analysis.reading.spans import ROOT, distinct, self_time
from dynprof.runtime.stacks import is_of_a_library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.operators import Calls, Operators
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

MAX_LEVELS = 400
"""Depth limit of the tree. Deeper calls, in recursion, count for their ancestor on this level."""
MAX_FRAMES = 100
"""Number of innermost frames that are named: in deep recursion each call has its own stack."""
SEPARATOR = ";\r\n"
"""The vendor's separator between two frames."""
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
class CallTree:
    """Every path of frames and operators once, parents first.

    Attributes:
        name: Index in the trace's names of the last element of each path.
        parent: Index here of the parent path of each; -1 for none.
        self_ns: Time without that of children.
    """

    name: list[int]
    parent: list[int]
    self_ns: list[int]


@dataclass(frozen=True)
class CallPaths:
    """The path of each operator and frame of threads that ran an operator.

    A thread that runs no operator mostly waits. The work of a profiler itself is one path, under
    the profiler's name.

    Attributes:
        span: Indices into the trace's spans.
        within: Index here of the parent of each; -1 for none.
        path: The path of each.
        name: Index in the trace's names of the last element of each path.
        parent: The parent of each path; -1 for none.
    """

    span: NDArray[np.int64]
    within: NDArray[np.int64]
    path: NDArray[np.int64]
    name: list[int]
    parent: list[int]


def call_paths(trace: Trace, calls: Calls) -> CallPaths:
    """Return the paths of operators and frames."""
    chosen, parent = _working(trace, calls)
    known = dict[int, int]()
    path, levels = list[int](), list[int]()
    names, owners = _names(trace, chosen)
    count = len(trace.tables["name"])
    for own, outer in zip(names, parent.tolist(), strict=True):
        above = ROOT if outer == ROOT else path[outer]
        if above != ROOT and levels[above] == MAX_LEVELS:
            path.append(above)
            continue
        place = known.setdefault(above * count + own, len(levels))
        if place == len(levels):
            level = 1 if above == ROOT else levels[above] + 1
            levels.append(MAX_LEVELS if own in owners else level)
        path.append(place)
    return CallPaths(
        span=chosen,
        within=parent,
        path=np.array(path, np.int64),
        name=[key % count for key in known],
        parent=[key // count for key in known],
    )


def call_tree(
    trace: Trace, paths: CallPaths, steps: Sequence[MarkedStep], on_device: Launches | None = None
) -> CallTree:
    """Return the paths of all threads together, with the time within the steps.

    Frames outside the steps, or beyond their ends, come from switching the profiler on and off.

    Args:
        trace: The trace.
        paths: The paths of its operators and frames.
        steps: The steps.
        on_device: Device activities, to count the device time launched instead of host time.
    """
    chosen, parent = paths.span, paths.within
    begin = min((step[1] for step in steps), default=0)
    end = max((step[1] + step[2] for step in steps), default=0)
    if on_device:
        time_ns, _ = device_time(trace, on_device, chosen, parent)
    else:
        start, length = trace.spans["start"][chosen], trace.spans["length"][chosen]
        lasts = np.minimum(start + length, end) - np.maximum(start, begin)
        time_ns = np.maximum(self_time(np.maximum(lasts, 0), parent), 0)
    total = np.bincount(paths.path, weights=time_ns, minlength=len(paths.name))
    return CallTree(paths.name, paths.parent, total.astype(np.int64).tolist())


def _names(trace: Trace, chosen: NDArray[np.int64]) -> tuple[list[int], set[int]]:
    """Return the names of spans, with those of a profiler's frames replaced; and the new names."""
    names, frames = trace.spans["name"][chosen], overhead(trace)[chosen]
    owners = dict[int, int]()
    for name in distinct(names[frames]).tolist():
        owners[name] = trace.place_of_name(profiler_of(trace.tables["name"][name]))
    return [owners.get(name, name) for name in names.tolist()], set(owners.values())


def _working(trace: Trace, calls: Calls) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the spans of threads that ran operators, and the parent of each."""
    thread = trace.spans["thread"]
    working = distinct(thread[trace.category(OPERATORS, CALLS)])
    kept = np.isin(thread[calls.span], working)
    if not len(working) or kept.all():
        return calls.span, calls.parent
    places = np.cumsum(kept) - 1
    parent = calls.parent[kept]
    return calls.span[kept], np.where(parent == ROOT, ROOT, places[parent])


class CallStacks:
    """The frames around each operator, the innermost first.

    Labels have none: they may begin in a frame and end after it.

    Args:
        trace: The trace.
        found: Its operators.
        calls: Its operators and frames.

    Attributes:
        number: The number of each operator's stack; 0 for none.
    """

    def __init__(self, trace: Trace, found: Operators, calls: Calls) -> None:
        self.number = np.zeros(len(found.span), np.int64)
        self._stacks = [("", 0)]
        frames = trace.category(FRAMES)
        if not frames.any():
            return
        self._parent, self._names = calls.parent.tolist(), trace.tables["name"]
        self._code = trace.spans["name"][calls.span].tolist()
        self._is_frame = frames[calls.span].tolist()
        self._known, self._longer = {ROOT: 0}, dict[tuple[int, int], int]()
        named = ~trace.category(LABELS)[found.span]
        outer = calls.parent[np.searchsorted(calls.span, found.span[named])]
        self.number[named] = [self._number(place) for place in outer.tolist()]

    def __call__(self, operator: int) -> str:
        """Return the frames of an operator."""
        return self.text(int(self.number[operator]))

    def text(self, number: int) -> str:
        """Return the frames of a stack."""
        text, count = self._stacks[number]
        more = count - MAX_FRAMES
        return f"{text}{SEPARATOR}({more:,} more)" if more > 0 else text

    def _number(self, place: int) -> int:
        """Return the number of the stack of a call, given by its index."""
        chain, known = [], self._known
        while place not in known:
            chain.append(place)
            place = self._parent[place]
        number = known[place]
        for inner in reversed(chain):
            if self._is_frame[inner]:
                number = self._under(number, self._code[inner])
            known[inner] = number
        return number

    def _under(self, number: int, code: int) -> int:
        """Return the number of the stack of a frame inside another stack."""
        found = self._longer.setdefault((number, code), len(self._stacks))
        if found == len(self._stacks):
            text, count = self._stacks[number]
            self._stacks.append((_under(self._names[code], text, count), count + 1))
        return found


def _under(frame: str, text: str, count: int) -> str:
    """Return the text of a frame and the frames around it, up to the limit."""
    if count >= MAX_FRAMES:
        text = text[: text.rfind(SEPARATOR)]
    return f"{frame}{SEPARATOR}{text}" if text else frame


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
