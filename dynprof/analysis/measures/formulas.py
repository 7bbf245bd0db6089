"""Arithmetic and memory traffic of an operator, computed from its inputs.

A multiplication and an addition are two operations. Memory counts once for each tensor that is
read or written, as if caches kept all reused data. This is the minimum that must be moved.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynprof.analysis.reading.events import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Counted = tuple[int, int]
"""Arithmetic operations, and the elements of the result."""
PRODUCT, NORM, ELEMENTWISE, MOVE = 3, 2, 1, 0
"""Kinds of work, the heaviest first: an operator nested in a heavier one is a part of it."""
_MAX_PLAUSIBLE = 1 << 50
"""Limit of operations, bytes or elements of one call; above it a shape is wrong."""
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
LIST = "TensorList"
"""Kineto's type of a list of tensors. It does not tell the type of the tensors."""

SIZES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
    "c10::complex<float>": 8, "c10::complex<double>": 16, "bool": 1, "signed char": 1,
    "unsigned char": 1, "short int": 2, "short": 2, "short unsigned int": 2, "unsigned short": 2,
    "int": 4, "unsigned int": 4, "long int": 8, "long": 8, "long unsigned int": 8,
    "unsigned long": 8,
}  # fmt: skip
"""Bytes of an element by Kineto's names of types."""
_WIDEST = 1 << 62
"""Limit of a dimension or number that counts as valid."""
Shape = tuple[int, ...]


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape of the result of an elementwise operation.

    Raises:
        UnknownInputError: The shapes cannot be broadcast.
    """
    longest = max(map(len, shapes), default=0)
    padded = [(1,) * (longest - len(shape)) + shape for shape in shapes]
    found = []
    for sizes in zip(*padded, strict=True):
        several = {size for size in sizes if size != 1}
        if len(several) > 1:
            raise UnknownInputError
        found.append(several.pop() if several else 1)
    return tuple(found)


def _matmul(one: Shape, other: Shape) -> Counted:
    left = one if len(one) > 1 else (1, *one)
    right = other if len(other) > 1 else (*other, 1)
    if min(len(one), len(other)) < 1 or left[-1] != right[-2]:
        raise UnknownInputError
    batch = math.prod(broadcast(left[:-2], right[:-2]))
    written = batch * left[-2] * right[-1]
    return 2 * written * left[-1], written


def product(first: int, ndim: int | None = None) -> Callable[[Inputs], Counted]:
    """Return the formula of a product of the two tensors from position ``first`` on."""
    return lambda given: _matmul(given.shape(first, ndim), given.shape(first + 1, ndim))


def matrix_vector(first: int) -> Callable[[Inputs], Counted]:
    """Return the formula of a matrix times a vector, from position ``first`` on."""
    return lambda given: _matmul(given.shape(first, 2), given.shape(first + 1, 1))


def linear(given: Inputs) -> Counted:
    """Return the work of ``linear(input, weight, bias)``."""
    left, weight = given.shape(0), given.shape(1, 2)
    if not left or left[-1] != weight[1]:
        raise UnknownInputError
    written = math.prod(left[:-1]) * weight[0]
    return 2 * written * weight[1], written


def convolution(given: Inputs) -> Counted:
    """Return the work of ``convolution(input, weight, bias, stride, padding, dilation, ...)``."""
    image = given.shape(0)
    weight, sides = given.shape(1, len(image)), len(image) - 2
    if sides < 1:
        raise UnknownInputError
    stride, padding, dilation, more = (given.numbers(place, sides) for place in (3, 4, 5, 7))
    transposed = given.number(6)
    channels = weight[1] * given.number(8) if transposed else weight[0]
    if min(stride) < 1:
        raise UnknownInputError
    result = []
    for axis, side in enumerate(image[2:]):
        reach = dilation[axis] * (weight[2 + axis] - 1)
        if transposed:
            grown = (side - 1) * stride[axis] - 2 * padding[axis]
            result.append(grown + reach + more[axis] + 1)
        else:
            result.append((side + 2 * padding[axis] - reach - 1) // stride[axis] + 1)
    written = image[0] * channels * math.prod(result)
    times = math.prod(image) if transposed else written
    if min(result) < 0:
        raise UnknownInputError
    return 2 * times * math.prod(weight[1:]), written


def convolution_backward(given: Inputs) -> Counted:
    """Return the work of ``convolution_backward(grad, input, weight, ..., transposed, ..., mask)``.

    The gradient of the input takes as much as the convolution, and so does the weight's.
    """
    grad, image, weight = given.shape(0), given.shape(1), given.shape(2)
    of_image, of_weight, of_bias = given.numbers(10, 3)
    once = 2 * math.prod(image if given.number(7) else grad) * math.prod(weight[1:])
    written = of_image * math.prod(image) + of_weight * math.prod(weight)
    return once * (of_image + of_weight), written + of_bias * math.prod(grad[1:2])


def attention(causal: int, first: int = 0) -> Callable[[Inputs], Counted]:
    """Return the formula of attention.

    Args:
        causal: Position of the ``is_causal`` argument.
        first: Position of the queries; keys and values follow. 1 for a backward pass, where the
            gradient is first.
    """

    def formula(given: Inputs) -> Counted:
        query, key, value = (given.shape(first + place) for place in range(3))
        if not len(query) == len(key) == len(value) > 1:
            raise UnknownInputError
        rows, columns = query[-2], key[-2]
        pairs = rows * columns
        if given.number(causal):
            full = min(rows, columns)
            pairs = full * (full + 1) // 2 + (rows - full) * columns
        heads = math.prod(query[:-2])
        scores, mixes = 2 * heads * pairs * query[-1], 2 * heads * pairs * value[-1]
        if not first:
            return scores + mixes, heads * rows * value[-1]
        written = sum(math.prod(shape) for shape in (query, key, value))
        return 3 * scores + 2 * mixes, written

    return formula


@dataclass(frozen=True)
class OperatorCost:
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


def operator_cost(name: str, given: Inputs) -> OperatorCost | None:
    """Return the work of one call of an operator; None for an operator without a formula."""
    rule = _RULES.get(name)
    if rule is None:
        return None
    dtype = given.common_type() if rule.kind == ELEMENTWISE else given.first_type()
    try:
        flops, written = rule.formula(given)
    except UnknownInputError:
        return OperatorCost(rule.kind, None, None, dtype, 0)
    try:
        moved, dtype, elements = _touched(rule, given, written, dtype)
    except UnknownInputError:
        return OperatorCost(rule.kind, flops if flops < _MAX_PLAUSIBLE else None, None, dtype, 0)
    if max(flops, moved, elements) >= _MAX_PLAUSIBLE:
        return OperatorCost(rule.kind, None, None, dtype, 0)
    return OperatorCost(rule.kind, flops, moved, dtype, elements)


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


class UnknownInputError(Exception):
    """The trace lacks a value that a formula needs."""


class Inputs:
    """The inputs of an operator.

    Args:
        dims: Kineto's shapes, as JSON.
        types: Kineto's types, as JSON.
        values: Kineto's values of arguments that are no tensors, as JSON; not kept for every
            operator.
        strides: Kineto's strides of tensors, as JSON; not kept if none is 0.
    """

    def __init__(self, dims: bytes, types: bytes, values: bytes, strides: bytes = b"") -> None:
        self.dims, self.types, self.values = map(listed, (dims, types, values))
        self._strides = listed(strides)

    def is_tensor(self, place: int) -> bool:
        """Return whether an argument is a tensor, as far as the trace tells."""
        if place >= len(self.dims) or not _is_shape(self.dims[place]):
            return False
        return self.type(place) in SIZES if self.types else bool(self.dims[place])

    def type(self, place: int) -> str:
        """Return Kineto's name of an argument's type; empty if there is none."""
        return str(self.types[place]) if place < len(self.types) else ""

    def shape(self, place: int, ndim: int | None = None) -> Shape:
        """Return the shape of a tensor that is an argument.

        Raises:
            UnknownInputError: It is no tensor, or has another number of dimensions.
        """
        if not self.is_tensor(place) or ndim not in (None, len(self.dims[place])):
            raise UnknownInputError
        return tuple(self.dims[place])

    def tensors(self) -> Iterator[int]:
        """Return the positions of the arguments that are tensors."""
        return filter(self.is_tensor, range(len(self.dims)))

    def lists(self) -> list[list[Shape]]:
        """Return the shapes in each argument that is a list of tensors."""
        found = [d for place, d in enumerate(self.dims) if self.type(place) == LIST]
        if not all(isinstance(many, list) and all(map(_is_shape, many)) for many in found):
            raise UnknownInputError
        return [[tuple(one) for one in many] for many in found]

    def size(self, place: int) -> int:
        """Return the bytes of a tensor. Dimensions of stride 0 (expanded tensors) count once.

        Raises:
            UnknownInputError: Its type is unknown.
        """
        if self.type(place) not in SIZES:
            raise UnknownInputError
        shape = self.shape(place)
        strides = self._strides[place] if place < len(self._strides) else []
        if isinstance(strides, list) and len(strides) == len(shape) and 0 not in shape:
            shape = tuple(size for size, apart in zip(shape, strides, strict=True) if apart != 0)
        return math.prod(shape) * SIZES[self.type(place)]

    def number(self, place: int) -> int:
        """Return an integer argument, or 1 or 0 for a boolean one.

        Raises:
            UnknownInputError: The trace does not have it.
        """
        return self.numbers(place, 1)[0]

    def numbers(self, place: int, count: int | None = None) -> list[int]:
        """Return an argument that is a list of integers. A single one is repeated ``count`` times.

        Raises:
            UnknownInputError: The trace does not have it, or their number is not ``count``.
        """
        value = self.values[place] if place < len(self.values) else ""
        try:
            found = json.loads(str(value).lower())
        except ValueError as error:
            raise UnknownInputError from error
        found = found if isinstance(found, list) else [found]
        if not all(isinstance(one, int) and abs(one) < _WIDEST for one in found):
            raise UnknownInputError
        if count is not None and len(found) == 1:
            found *= count
        if count not in (None, len(found)):
            raise UnknownInputError
        return [int(one) for one in found]

    def first_type(self) -> str:
        """Return the type of the first tensor; empty if unknown."""
        return next(map(self.type, self.tensors()), "")

    def common_type(self) -> str:
        """Return the type to which its tensors are promoted before the computation.

        Tensors with dimensions take precedence over those without.
        """
        types = [(bool(self.dims[p]), self.type(p)) for p in self.tensors() if self.types]
        return max(types, key=_rank, default=(False, ""))[1]


def _rank(one: tuple[bool, str]) -> tuple[bool, bool, int]:
    large, name = one
    return large, name.startswith(("c10::", "float", "double")), SIZES[name]


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, int) and 0 <= one < _WIDEST for one in value
    )
