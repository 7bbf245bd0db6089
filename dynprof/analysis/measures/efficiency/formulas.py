"""Arithmetic and memory traffic of an operator, computed from its inputs.

A multiplication and an addition are two operations. Memory counts once for each tensor that is
read or written, as if caches kept all reused data. This is the minimum that must be moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.analysis.measures.efficiency.inputs import SIZES, UnknownInputError
from dynprof.analysis.measures.efficiency.products import (
    attention,
    broadcast,
    convolution,
    convolution_backward,
    linear,
    matrix_vector,
    product,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.analysis.measures.efficiency.inputs import Inputs, Shape
    from dynprof.analysis.measures.efficiency.products import Counted

PRODUCT, NORM, ELEMENTWISE, MOVE = 3, 2, 1, 0
"""Kinds of work, the heaviest first: an operator nested in a heavier one is a part of it."""
_MAX_PLAUSIBLE = 1 << 50
"""Limit of operations, bytes or elements of one call; above it a shape is wrong."""


@dataclass(frozen=True)
class Effort:
    """The work of one call of an operator.

    Attributes:
        kind: The kind of work, by weight.
        flops: Arithmetic operations; None if the trace does not tell.
        moved: Bytes that must be read or written; None if the trace does not tell.
        dtype: Kineto's name of the type that it computes in; empty if the trace does not tell.
        elements: Elements read or written in lists of tensors. Kineto does not tell their type, so
            they are missing from ``moved``.
    """

    kind: int
    flops: int | None
    moved: int | None
    dtype: str
    elements: int

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product, a convolution or attention."""
        return self.kind == PRODUCT


def _each(
    operations: int, reads: Callable[[Inputs], Shape] | None = None
) -> Callable[[Inputs], Counted]:
    """Return a formula with ``operations`` for each element of the result."""

    def formula(given: Inputs) -> Counted:
        places = list(given.tensors())
        if not places:
            raise UnknownInputError
        shape = reads(given) if reads else broadcast(*map(given.shape, places))
        return operations * math.prod(shape), math.prod(shape)

    return formula


def _of_first(operations: int) -> Callable[[Inputs], Counted]:
    """Return such a formula for a result of the size of the first argument."""
    return _each(operations, lambda given: given.shape(0))


def _reduction(given: Inputs) -> Counted:
    """Return the work of ``sum(input, dims, keep, type)`` or ``sum(input, type)``."""
    shape = given.shape(0)
    dims = given.numbers(1) if len(given.dims) > 2 else []
    if any(not -len(shape) <= place < len(shape) for place in dims):
        raise UnknownInputError
    gone = {place % len(shape) for place in dims} or set(range(len(shape)))
    left = [size for place, size in enumerate(shape) if place not in gone]
    return math.prod(shape), math.prod(left)


def _norm(plain: int, with_weight: int, weight: int) -> Callable[[Inputs], Counted]:
    """Return a formula with ``plain`` operations an element, or ``with_weight`` with a weight."""
    return lambda given: _of_first(with_weight if given.is_tensor(weight) else plain)(given)


def _embedding(given: Inputs) -> Counted:
    table, places = given.shape(0, 2), given.shape(1)
    return 0, math.prod(places) * table[1]


def _lists(operations: int) -> Callable[[Inputs], Counted]:
    """Return a formula with ``operations`` for each element of the first list."""

    def formula(given: Inputs) -> Counted:
        many = given.lists()
        if not many:
            raise UnknownInputError
        count = sum(map(math.prod, many[0]))
        return operations * count, count

    return formula


@dataclass(frozen=True)
class _Rule:
    """A formula, and how much memory its operators read and write.

    Attributes:
        kind: The kind of work, by weight.
        formula: Its work.
        reads: Which tensors are read, by argument position; None for all.
        writes: How often it touches each element of its result; None if the result's type
            differs from that of the inputs.
    """

    kind: int
    formula: Callable[[Inputs], Counted]
    reads: Callable[[int], bool] | None = None
    writes: int | None = 1


def _named(
    kind: int, formula: Callable[[Inputs], Counted], *names: str, operands: int | None = None
) -> dict[str, _Rule]:
    """Return the rule of some operators. A tensor after the operands holds the result."""
    reads = None if operands is None else operands.__gt__
    return dict.fromkeys((f"aten::{name}" for name in names), _Rule(kind, formula, reads))


_UNARY = (
    "sqrt", "rsqrt", "exp", "log", "neg", "abs", "reciprocal", "relu", "sigmoid", "tanh", "silu",
    "gelu", "leaky_relu", "hardtanh", "elu", "softplus", "sin", "cos", "erf",
)  # fmt: skip
_BINARY = (
    "add", "sub", "rsub", "mul", "div", "pow", "clamp_min", "clamp_max", "maximum", "minimum",
)  # fmt: skip
_BACKWARD = (
    "threshold_backward", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward",
)  # fmt: skip
_OPERANDS = {**dict.fromkeys(_UNARY, 1), **dict.fromkeys(_BINARY, 2), "clamp": 3}
"""Maximum number of input tensors of elementwise operators, without the one for the result."""
_FOREACH = {
    "add": 1, "sub": 1, "mul": 1, "div": 1, "sqrt": 1, "neg": 1, "pow": 1, "exp": 1, "abs": 1,
    "maximum": 1, "minimum": 1, "addcmul": 3, "addcdiv": 3, "lerp": 3,
}  # fmt: skip
_RULES: dict[str, _Rule] = {
    **_named(PRODUCT, product(0, 2), "mm", operands=2),
    **dict.fromkeys(("aten::_int_mm", "aten::_scaled_mm"),
                    _Rule(PRODUCT, product(0, 2), writes=None)),
    **_named(PRODUCT, product(0, 3), "bmm", operands=2),
    **_named(PRODUCT, product(0), "matmul", operands=2),
    **_named(PRODUCT, product(0, 1), "dot", "vdot", operands=2),
    **_named(PRODUCT, matrix_vector(0), "mv", operands=2),
    **_named(PRODUCT, matrix_vector(1), "addmv", "addmv_", operands=3),
    **_named(PRODUCT, product(1, 2), "addmm", "addmm_", "_addmm_activation", operands=3),
    **_named(PRODUCT, product(1, 3), "baddbmm", "baddbmm_", operands=3),
    **_named(PRODUCT, linear, "linear"),
    **_named(PRODUCT, convolution, "convolution", "_convolution"),
    **_named(PRODUCT, convolution_backward, "convolution_backward"),
    **_named(PRODUCT, attention(5), "scaled_dot_product_attention"),
    **_named(PRODUCT, attention(5), "_scaled_dot_product_fused_attention_overrideable"),
    **_named(PRODUCT, attention(4), "_scaled_dot_product_flash_attention",
             "_scaled_dot_product_flash_attention_for_cpu"),
    **_named(PRODUCT, attention(6), "_scaled_dot_product_efficient_attention",
             "_scaled_dot_product_cudnn_attention"),
    **_named(PRODUCT, attention(11, first=1), "_scaled_dot_product_flash_attention_backward",
             "_scaled_dot_product_efficient_attention_backward"),
    **_named(PRODUCT, attention(7, first=1),
             "_scaled_dot_product_flash_attention_for_cpu_backward"),
    **_named(PRODUCT, attention(14, first=1), "_scaled_dot_product_cudnn_attention_backward"),
    **_named(NORM, _norm(6, 8, 2), "native_layer_norm"),
    **_named(NORM, _norm(6, 8, 1), "native_group_norm", "native_batch_norm", "cudnn_batch_norm",
             "miopen_batch_norm"),
    **_named(NORM, _norm(3, 4, 2), "_fused_rms_norm"),
    **_named(NORM, _norm(9, 13, 5), "native_layer_norm_backward"),
    **_named(NORM, _norm(9, 13, 4), "native_group_norm_backward"),
    **_named(NORM, _norm(9, 13, 2), "native_batch_norm_backward", "cudnn_batch_norm_backward",
             "miopen_batch_norm_backward"),
    **_named(NORM, _of_first(5), "_softmax", "_log_softmax"),
    **_named(NORM, _of_first(4), "_softmax_backward_data", "_log_softmax_backward_data"),
    **{f"aten::{name}{end}": _Rule(ELEMENTWISE, _each(1), count.__gt__)
       for name, count in _OPERANDS.items() for end in ("", "_")},
    **_named(ELEMENTWISE, _each(1), *_BACKWARD, operands=2),
    **_named(ELEMENTWISE, _each(3), "addcmul", "addcmul_", "addcdiv", "addcdiv_", "lerp", "lerp_",
             operands=3),
    **_named(ELEMENTWISE, _reduction, "sum", "mean"),
    **{f"aten::_foreach_{name}{end}": _Rule(ELEMENTWISE, _lists(count))
       for name, count in _FOREACH.items() for end in ("", "_")},
    "aten::_fused_adam_": _Rule(NORM, _lists(13), writes=3),
    "aten::_fused_adamw_": _Rule(NORM, _lists(14), writes=3),
    "aten::copy_": _Rule(MOVE, _of_first(0), lambda place: place == 1),
    "aten::embedding": _Rule(MOVE, _embedding, lambda place: place == 1, writes=2),
    **dict.fromkeys(("aten::fill_", "aten::zero_"), _Rule(MOVE, _of_first(0), lambda _: False)),
    "aten::_foreach_zero_": _Rule(MOVE, _lists(0), lambda _: False),
}  # fmt: skip


def effort(name: str, given: Inputs) -> Effort | None:
    """Return the work of one call of an operator; None for an operator without a formula."""
    rule = _RULES.get(name)
    if rule is None:
        return None
    dtype = given.common_type() if rule.kind == ELEMENTWISE else given.first_type()
    try:
        flops, written = rule.formula(given)
    except UnknownInputError:
        return Effort(rule.kind, None, None, dtype, 0)
    try:
        moved, dtype, elements = _touched(rule, given, written, dtype)
    except UnknownInputError:
        return Effort(rule.kind, flops if flops < _MAX_PLAUSIBLE else None, None, dtype, 0)
    if max(flops, moved, elements) >= _MAX_PLAUSIBLE:
        return Effort(rule.kind, None, None, dtype, 0)
    return Effort(rule.kind, flops, moved, dtype, elements)


def _touched(rule: _Rule, given: Inputs, written: int, dtype: str) -> tuple[int, str, int]:
    """Return the bytes that a call touches, its type, and the elements it touches in lists."""
    if rule.writes is None:
        raise UnknownInputError
    read = sum(given.size(p) for p in given.tensors() if rule.reads is None or rule.reads(p))
    lists = given.lists()
    if lists:
        elements = sum(math.prod(shape) for many in lists for shape in many)
        return read, "", rule.writes * written + (elements if rule.reads is None else 0)
    if dtype not in SIZES:
        raise UnknownInputError
    return read + rule.writes * written * SIZES[dtype], dtype, 0
