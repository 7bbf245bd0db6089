"""Iterations of inference servers, found by the labels of vLLM, SGLang and TensorRT-LLM.

A server marks no steps. It labels each pass over a batch of requests with what is in the batch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dynprof.analysis.reading.events import RANGES, STEP_LABELS
from dynprof.analysis.reading.spans import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.reading.trace import Trace

PREFILL, DECODE, MIXED, IDLE = "prefill", "decode", "mixed", "idle"
"""Kinds of iterations; SGLang has more, such as ``target verify``. ``idle`` is an empty batch."""
_PREFIXES = ("execute_", "step[", "[Executor] _forward_step")
"""Starts of all labels; few names of a trace have one of them."""
_NUMBER = "([0-9]{1,18})"
"""Digits that fit into 64 bits."""
_VLLM = re.compile(
    rf"execute_context_{_NUMBER}\({_NUMBER}\)_generation_{_NUMBER}\({_NUMBER}\)"
).fullmatch
_SUMS = rf"\(sq{_NUMBER}sk[0-9]+sqsq[0-9]+sqsk[0-9]+\)"
"""Sums over the requests; ``sq`` is that of their tokens in this iteration."""
_VLLM_ON_ROCM = re.compile(
    rf"execute_[0-9]+_context_{_NUMBER}{_SUMS}_generation_{_NUMBER}{_SUMS}"
).fullmatch
_SGLANG = re.compile(
    rf"step\[([A-Z][A-Z_]*)(?: bs={_NUMBER})?(?: toks={_NUMBER})?(?: [a-z_]+=[^\s\]]+)*\]"
).fullmatch
_SGLANG_KINDS = {"EXTEND": PREFILL, "SPLIT_PREFILL": PREFILL}
"""SGLang's forward modes that have another name here."""
_TENSORRT = re.compile(
    rf"\[Executor\] _forward_step(?: {_NUMBER})?: "
    rf"{_NUMBER} ctx reqs, (?:{_NUMBER} ctx tokens, )?{_NUMBER} gen reqs"
).fullmatch


class Iteration(NamedTuple):
    """What the label of an iteration says.

    Attributes:
        kind: What it does with its requests, such as ``decode``.
        requests: The number of requests, the batch size; None if unknown.
        tokens: The number of tokens that go through the model; None if unknown.
        number: The server's own number of the iteration; None if the label has none.
    """

    kind: str
    requests: int | None
    tokens: int | None
    number: int | None = None


def read_label(name: str) -> Iteration | None:
    """Return what the label of an iteration says; None for any other name."""
    if not name.startswith(_PREFIXES):
        return None
    if found := _VLLM(name) or _VLLM_ON_ROCM(name):
        prefills, prefilled, decodes, decoded = map(int, found.groups())
        kind = _kind(prefills, decodes)
        return Iteration(kind, prefills + decodes, prefilled + decoded)
    if found := _SGLANG(name):
        mode, requests, tokens = found[1], _count(found[2]), _count(found[3])
        kind = _SGLANG_KINDS.get(mode, mode.lower().replace("_", " "))
        if tokens is None and kind == DECODE:
            tokens = requests
        return Iteration(kind, requests, tokens)
    if found := _TENSORRT(name):
        prefills, decodes = int(found[2]), int(found[4])
        return _of_tensorrt(_count(found[1]), prefills, _count(found[3]), decodes)
    return None


def _of_tensorrt(
    number: int | None, prefills: int, prefilled: int | None, decodes: int
) -> Iteration:
    """Return an iteration of TensorRT-LLM; each decoding request counts as one token."""
    known = prefilled if prefills else 0
    tokens = None if known is None else known + decodes
    return Iteration(_kind(prefills, decodes), prefills + decodes, tokens, number)


def _count(text: str | None) -> int | None:
    return None if text is None else int(text)


def _kind(prefills: int, decodes: int) -> str:
    if prefills and decodes:
        return MIXED
    return PREFILL if prefills else DECODE if decodes else IDLE


def iterations(trace: Trace) -> dict[tuple[int | None, int, int], Iteration]:
    """Return the labels of the iterations of a trace, by number, start and length, in order.

    Their numbers are the server's if each has one, else they are counted from 0. Of nested labels
    the outermost counts.
    """
    names = {
        code: label
        for code, name in enumerate(trace.tables["name"])
        if (label := read_label(name)) is not None
    }
    spans = trace.spans
    chosen = np.isin(spans["name"], list(names)) & trace.category(STEP_LABELS, RANGES)
    found = _outermost(trace, np.flatnonzero(chosen))
    labels = [names[code] for code in spans["name"][found].tolist()]
    counted = any(label.number is None for label in labels)
    times = zip(spans["start"][found].tolist(), spans["length"][found].tolist(), strict=True)
    return {
        (place if counted else label.number, begin, length): label
        for place, (label, (begin, length)) in enumerate(zip(labels, times, strict=True))
    }


def _outermost(trace: Trace, chosen: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the spans that are inside no other one of their thread, in order of start."""
    start, length = trace.spans["start"][chosen], trace.spans["length"][chosen]
    chosen = chosen[np.lexsort((-length, start))]
    thread, end = trace.spans["thread"][chosen], trace.spans["start"][chosen]
    end = end + trace.spans["length"][chosen]
    outer = np.ones(len(chosen), bool)
    for one in distinct(thread).tolist():
        own = np.flatnonzero(thread == one)
        outer[own[1:]] = end[own[1:]] > np.maximum.accumulate(end[own])[:-1]
    return chosen[outer]
