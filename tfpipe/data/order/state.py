"""The state of a Loader as plain data: where all ranks are in the stream, and what was counted; checked when loaded."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tfpipe.config import DataConfig
from tfpipe.config.by_epoch import by_epoch
from tfpipe.data.order.schedule import Schedule
from tfpipe.data.order.stream import END, Cursor, Stream
from tfpipe.errors import ConfigError, counted

FORMAT = 2
Sizes: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LoaderState:
    """The point that the ranks of a Loader have reached; the same on every rank."""

    split: str
    stream: Stream
    batch_size: Sizes
    """(First epoch, crops per batch and rank from there on), ascending; of most configs one."""
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
            "batch_size": self.batch_size if len(self.batch_size) > 1 else self.batch_size[0][1],
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
            return cls._check(values)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            problem = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise _damage(problem) from error

    @classmethod
    def _check(cls, values: Any) -> "LoaderState":
        if not isinstance(values, Mapping):
            raise TypeError(f"it is of the type {type(values).__name__}")
        if values["format"] != FORMAT:
            raise ValueError(f"its format is {values['format']!r}, and this version of tfpipe reads {FORMAT}")
        batches = [_whole(count, "batches") for count in values["batches"]]
        crops, batch_size = _whole(values["crops"], "crops"), _batch_size(values["batch_size"])
        cursors = [*values["frontiers"], *values["pending"]]
        for cursor in cursors:
            if not isinstance(cursor, Sequence) or len(cursor) != 2:
                raise ValueError(f"a cursor is {cursor!r}, not [position, crop]")
            _whole(cursor[0], "position", most=END - 1)
            # All crops of an image before the cursor's were used.
            _whole(cursor[1], f"crop at position {cursor[0]}", most=crops)
        if not batches or len(batches) != len(values["frontiers"]):
            raise ValueError(f"batches of {counted(len(batches), 'rank')} and frontiers of {len(values['frontiers'])}")
        positions = [position for position, _ in values["pending"]]
        rest = _whole(values["rest"], "rest", most=END - 1)
        if positions != sorted(set(positions)) or (positions and positions[-1] >= rest):
            raise ValueError("pending positions are not in ascending order below rest")
        stream = Stream.from_dict(values).at([Cursor(*cursor) for cursor in values["frontiers"]])
        if not isinstance(values["contract"], Mapping):
            raise TypeError("its contract is no dictionary")
        if not isinstance(values["ended"], bool):
            raise TypeError(f"ended is {values['ended']!r}, not true or false")
        counts = (batch_size, tuple(batches), crops, values["ended"])
        return cls(str(values["split"]), stream, *counts, values["contract"])

    def check(self, split: str, size: int, data: DataConfig, broken: list[str]) -> None:
        """Checks that `size` ranks with these data can continue; `broken` are the differences of the contract.

        Raises ConfigError, with all reasons, if they cannot.
        """
        then, now = self.stream.size, by_epoch(data.batch_size)
        different = [] if split == self.split else [f"split {self.split} then, {split} now"]
        different += broken
        if now != self.batch_size and over_all(now, size) != over_all(self.batch_size, then):
            texts = [json.dumps(sizes if len(sizes) > 1 else sizes[0][1]) for sizes in (self.batch_size, now)]
            different.append(
                f"data.batch_size {texts[0]} on {counted(then, 'rank')} then, {texts[1]} on {size} now; accepted: "
                "the same per rank, or over all ranks"
            )
        if data.scope == "shard" and then != size:
            different.append(f'with data.scope "shard": {counted(then, "rank")} then, {size} now')
        if different:
            raise ConfigError("\n  ".join(["the state belongs to other data:", *different]))

    def check_counts(self, least: int | None, most: int | None, whole: int | None, *, has_phases: bool = False) -> None:
        """Checks that frontiers, batches and `ended` belong to the number of crops.

        A sample gives `least` to `most` crops, a pass over test data `whole`, if known. Raises ConfigError otherwise.
        """
        crops, size, (after, begun) = self.crops, self.stream.size, self.stream.used
        low = 0 if least is None else least * after + begun
        if crops < low or (most is not None and crops > most * after + begun):
            between = f"at least {low}" if most is None else f"{low} to {most * after + begun}"
            raise _damage(f"crops is {crops}, and before its frontiers and pending positions are {between}")
        done = sum(self.batches)
        if len(self.batch_size) == 1 and not has_phases:
            # Other numbers of ranks have rounded the batches down, with phases in each epoch; the last batches of test
            # data are smaller.
            rows = self.batch_size[0][1]
            low = rows * done if self.split == "train" else 0
            if not low <= crops < rows * (done + size):
                raise _damage(f"crops is {crops}, and its batches, {done}, have {low} to {rows * (done + size) - 1}")
        if self.ended and self.split == "train":
            raise _damage("ended is true, and training data never end")
        if whole is not None and self.ended != (crops == whole):
            raise _damage(f"ended is {json.dumps(self.ended)}, and crops is {crops} of {whole}")

    def steps(self, rank: int, size: int, data: DataConfig, schedule_of: Callable[[int], Schedule]) -> int:
        """Returns the batches of `rank` of `size` ranks that the state counts as done.

        The same number of ranks resumes each at its batch; otherwise crops count, rounded down: those of the open epoch
        if sizes change with the epochs, else all. `schedule_of` returns the schedule of a number of ranks.
        """
        then, batch_size = self.stream.size, by_epoch(data.batch_size)
        if size == then and batch_size == self.batch_size:
            return self.batches[rank]
        if not data.has_phases:
            return self.crops // (batch_size[0][1] * size)
        if over_all(batch_size, size) == over_all(self.batch_size, then):
            return min(self.batches)
        return schedule_of(size).resume_step(schedule_of(then), min(self.batches), then, size)


def _damage(problem: str) -> ConfigError:
    return ConfigError(f"this is no whole state of a Loader: {problem}; expected the value of Loader.state_dict()")


def over_all(batch_size: Sizes, size: int) -> list[tuple[int, int]]:
    """Returns the crops of a batch over all of `size` ranks, by first epoch."""
    return [(epoch, crops * size) for epoch, crops in batch_size]


def _batch_size(value: Any) -> Sizes:
    parts = value if isinstance(value, list | tuple) else [(0, value)]
    if not parts or not all(isinstance(part, list | tuple) and len(part) == 2 for part in parts):
        raise ValueError(f"batch_size is {value!r}, not a number or [epoch, number] of each phase")
    return tuple((_whole(epoch, "epoch"), _whole(crops, "batch_size", 1)) for epoch, crops in parts)


def _whole(value: Any, name: str, least: int = 0, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}, not a whole number")
    if value < least or (most is not None and value > most):
        limit = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} is {value}, expected {limit}")
    return value
