"""Sizes that change at epochs: `[[0, 128], [6, 192]]` in the place of one size.

A value is the last size, which the test data, the model and the tools take, and knows those before it.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import PlainSerializer, PositiveInt, ValidatorFunctionWrapHandler, WrapValidator

from tfpipe.config.section import CropSide, Form, square

T = TypeVar("T")
EPOCHS = "the first epoch is 0, and each one after it is a later one"


class SizeByEpoch(tuple[int, int]):
    """The height and width of crops in the last epochs, and those of earlier ones."""

    by_epoch: tuple[tuple[int, tuple[int, int]], ...]
    """(First epoch, its size), ascending."""


class CountByEpoch(int):
    """A number in the last epochs, and those of earlier ones."""

    by_epoch: tuple[tuple[int, int], ...]
    """(First epoch, its number), ascending."""


def by_epoch(value: T) -> tuple[tuple[int, T], ...]:
    """Returns a value's sizes, each with its first epoch."""
    result: tuple[tuple[int, T], ...] = getattr(value, "by_epoch", ((0, value),))
    return result


def at_epoch(value: T, epoch: int) -> T:
    """Returns the size of an epoch, plain."""
    return [size for first, size in by_epoch(value) if first <= epoch][-1]


def _size(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    if not (isinstance(value, list | tuple) and any(isinstance(part, list | tuple) for part in value)):
        return handler(square(value))
    return _by_epoch(SizeByEpoch, [(epoch, handler(square(size))) for epoch, size in _pairs(value)])


def _count(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    if not isinstance(value, list | tuple):
        return handler(value)
    return _by_epoch(CountByEpoch, [(epoch, handler(size)) for epoch, size in _pairs(value)])


def _by_epoch(kind: Any, parts: list[tuple[int, Any]]) -> Any:
    """Returns the last of several sizes, which knows all of them; a single one is as it is."""
    result = kind(parts[-1][1])
    result.by_epoch = tuple(parts)
    return result if len(parts) > 1 else parts[0][1]


def _pairs(value: Sequence[Any]) -> Sequence[Any]:
    """Returns (first epoch, size) of each phase. Raises ValueError if `value` is no list of them in ascending order."""
    for pair in value:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or type(pair[0]) is not int:
            raise ValueError(
                f"received {pair!r} in a list by epoch; accepted: [epoch, size], e.g. [[0, 128], [6, 192]]"
            )
    epochs = [epoch for epoch, _ in value]
    if epochs != sorted(set(epochs)) or epochs[:1] != [0]:
        raise ValueError(f"received the epochs {epochs}; accepted: {EPOCHS}")
    return value


_BY_EPOCH = PlainSerializer(lambda value: getattr(value, "by_epoch", value))
CropSize = Annotated[
    tuple[CropSide, CropSide],
    WrapValidator(_size),
    _BY_EPOCH,
    Form("a side, [height, width], or by epoch [[0, 128], [6, 192]]"),
]
BatchSize = Annotated[PositiveInt, WrapValidator(_count), _BY_EPOCH]
