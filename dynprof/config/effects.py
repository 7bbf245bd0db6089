"""The effect of a setting on each backend: metadata that each key of the model carries."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

PATH_PATTERN = r"""^[^\x00-\x1f\x7f"\\]+$"""
"""Paths without quotes and backslashes: torch writes a path to the trace without escapes."""
_RANKS = (
    "([0-9]{1,7}( *- *[0-9]{1,7})?|every [1-9][0-9]{0,6}(st|nd|rd|th)|one per host|slowest|median)"
)
RANKS_PATTERN = f"^(all|{_RANKS}(( *, *| and ){_RANKS})*)$"


class Section(BaseModel):
    """Base of all sections: frozen, strict, and without unknown keys."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


class NoEffect(str):
    """The reason why a setting has no effect on a backend."""

    __slots__ = ()


@dataclass(frozen=True)
class Effect:
    """The effect of a setting on each backend.

    Attributes:
        torch: What ``torch.profiler`` does with it, or a :class:`NoEffect`.
        python: What VizTracer does with it, or a :class:`NoEffect`.
        npu: What ``torch_npu.profiler`` does with it, or a :class:`NoEffect`.
        marks: What a recording of only marks does with it, or a :class:`NoEffect`.
    """

    torch: str
    python: str
    npu: str = "passed to torch_npu"
    marks: str = NoEffect("Level_none records only marks")

    def why_no_effect(self, backend: str) -> str | None:
        """Return why the setting has no effect on ``backend``; None if it has one."""
        text = getattr(self, backend, None)
        return str(text) if isinstance(text, NoEffect) else None


SAME = Effect(torch="yes", python="yes", npu="yes", marks="yes")
"""A setting that means the same on every backend."""

_COUNTED = "only an Ascend NPU measures this while it records"
COUNTERS = Effect(
    torch=NoEffect(f"{_COUNTED}; on CUDA, Nsight Compute does it by running each kernel again"),
    python=NoEffect(_COUNTED),
)
"""A setting for hardware counters of the device's cores."""

ASCEND_ONLY = Effect(
    torch=NoEffect("only an Ascend NPU measures this"),
    python=NoEffect("only an Ascend NPU measures this"),
)
NO_TENSORS = "a Python trace has no tensors"
