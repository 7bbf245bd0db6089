"""What each backend makes of a setting: the column that a key of the model carries."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

PATH_PATTERN = r"""^[^\x00-\x1f\x7f"\\]+$"""
"""Of paths, without quotes and backslashes: torch writes the path into the trace as it is."""
_RANKS = (
    "([0-9]{1,7}( *- *[0-9]{1,7})?|every [1-9][0-9]{0,6}(st|nd|rd|th)|one per host|slowest|median)"
)
RANKS_PATTERN = f"^(all|{_RANKS}(( *, *| and ){_RANKS})*)$"


class Section(BaseModel):
    """Frozen, strict, and closed to keys that nobody knows."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


class NoEffect(str):
    """The reason why a backend cannot serve a setting."""

    __slots__ = ()


@dataclass(frozen=True)
class Effect:
    """What a setting does, backend by backend.

    Attributes:
        torch: What ``torch.profiler`` does with it, or a :class:`NoEffect`.
        python: What VizTracer does with it, or a :class:`NoEffect`.
        npu: What ``torch_npu.profiler`` does with it, or a :class:`NoEffect`.
        marks: What a recording of marks alone does with it, or a :class:`NoEffect`.
    """

    torch: str
    python: str
    npu: str = "handed over"
    marks: str = NoEffect("Level_none records marks alone")

    def why_no_effect(self, backend: str) -> str | None:
        """Return why the setting does nothing on ``backend``, or None where it does something."""
        text = getattr(self, backend, None)
        return str(text) if isinstance(text, NoEffect) else None


SAME = Effect(torch="yes", python="yes", npu="yes", marks="yes")
"""For a setting that means the same on every backend."""

_COUNTED = "only an Ascend NPU measures this as it records"
COUNTERS = Effect(
    torch=NoEffect(f"{_COUNTED}; on CUDA Nsight Compute does, by running each kernel again"),
    python=NoEffect(_COUNTED),
)
"""For counters of the cores themselves."""

ASCEND_ONLY = Effect(
    torch=NoEffect("only an Ascend NPU measures this"),
    python=NoEffect("only an Ascend NPU measures this"),
)
NO_TENSORS = "a Python trace knows no tensors"
