"""The work of matrix products, convolutions and attention, from their inputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynprof.analysis.measures.efficiency.inputs import UnknownInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.analysis.measures.efficiency.inputs import Inputs, Shape

Counted = tuple[int, int]
"""Arithmetic operations, and the elements of the result."""


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
