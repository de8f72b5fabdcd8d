"""The state of a Loader as plain data: where all ranks are in the stream, and what was counted; checked when loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfpipe.data.order.stream import END, Cursor, Stream
from tfpipe.errors import ConfigError

FORMAT = 2


@dataclass(frozen=True)
class LoaderState:
    """The point that the ranks of a Loader have reached; the same on every rank."""

    split: str
    stream: Stream
    batch_size: int
    """Crops per batch and rank."""
    batches: tuple[int, ...]
    """Batches that count as used, by rank, since the stream began."""
    crops: int
    """Crops in the batches of all ranks, also those before a resume, of other numbers of ranks."""
    ended: bool
    """Whether no rank has a batch left: of a pass over test data that is over."""
    contract: Mapping[str, Any]
    """Values that a continuation must share: see contract.data_contract."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the state as plain data for JSON."""
        fields = {
            "format": FORMAT,
            "split": self.split,
            "crops": self.crops,
            "batch_size": self.batch_size,
            "batches": list(self.batches),
            "ended": self.ended,
            "contract": dict(self.contract),
        }
        return fields | self.stream.to_dict()

    @classmethod
    def from_dict(cls, values: Any) -> "LoaderState":
        """Returns the state of which `values` is the `to_dict`.

        Raises ConfigError, which says what is wrong, for values that no Loader has written.
        """
        try:
            return cls._checked(values)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            problem = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigError(
                f"this is no whole state of a Loader: {problem}; expected the value of Loader.state_dict()"
            ) from error

    @classmethod
    def _checked(cls, values: Any) -> "LoaderState":
        if not isinstance(values, Mapping):
            raise TypeError(f"it is of the type {type(values).__name__}")
        if values["format"] != FORMAT:
            raise ValueError(f"its format is {values['format']!r}, and this version of tfpipe reads {FORMAT}")
        batches = [_whole(count, "batches") for count in values["batches"]]
        crops, batch_size = _whole(values["crops"], "crops"), _whole(values["batch_size"], "batch_size", 1)
        cursors = [*values["frontiers"], *values["pending"]]
        for cursor in cursors:
            if not isinstance(cursor, Sequence) or len(cursor) != 2:
                raise ValueError(f"a cursor is {cursor!r}, not [position, crop]")
            _whole(cursor[0], "position", most=END - 1)
            # All crops of an image before the cursor's were used.
            _whole(cursor[1], f"crop at position {cursor[0]}", most=crops)
        if not batches or len(batches) != len(values["frontiers"]):
            raise ValueError(f"batches of {len(batches)} ranks and frontiers of {len(values['frontiers'])}")
        positions = [position for position, _ in values["pending"]]
        rest = _whole(values["rest"], "rest", most=END - 1)
        if positions != sorted(set(positions)) or (positions and positions[-1] >= rest):
            raise ValueError("pending positions are not in ascending order below rest")
        stream = Stream.from_dict(values).at([Cursor(*cursor) for cursor in values["frontiers"]])
        if not isinstance(values["contract"], Mapping):
            raise TypeError("its contract is no dictionary")
        counts = (batch_size, tuple(batches), crops, bool(values["ended"]))
        return cls(str(values["split"]), stream, *counts, values["contract"])

    def steps(self, rank: int, size: int, batch_size: int) -> int:
        """Returns the batches of `rank` of `size` ranks, with `batch_size` crops each, that the state counts as done.

        The same number of ranks continues each at its own batch; otherwise crops are what counts, rounded down.
        """
        if size == self.stream.size and batch_size == self.batch_size:
            return self.batches[rank]
        return self.crops // (batch_size * size)


def _whole(value: Any, name: str, least: int = 0, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}, not a whole number")
    if value < least or (most is not None and value > most):
        limit = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} is {value}, expected {limit}")
    return value
