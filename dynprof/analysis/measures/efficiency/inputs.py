"""Inputs of an operator: shapes, types and values, as Kineto writes them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from dynprof.analysis.reading.events import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

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
