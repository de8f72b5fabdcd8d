"""What every format holds: the crops of one pack, the same JPEGs for all; and whether a reader delivers them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

SIDE = 224
BATCH = 128
CELLS = 4  # a crop is known by the mean levels of 4x4 cells
TOLERANCE = 4.0  # levels of 255 in a cell: between decoders, and between a JPEG and what it was made of

Batch = tuple[np.ndarray, np.ndarray]  # uint8 [n, 224, 224, 3], labels [n]


@dataclass(frozen=True)
class Given:
    """Of n crops: their JPEGs in one file, what these decode to, and class numbers."""

    folder: Path
    jpegs: np.ndarray = field(init=False)  # uint8: one JPEG after the other, a memory map
    offsets: np.ndarray = field(init=False)  # int64 [n + 1]
    pixels: np.ndarray = field(init=False)  # uint8 [n, 224, 224, 3], a memory map
    labels: np.ndarray = field(init=False)  # int64 [n]

    def __post_init__(self) -> None:
        for name, mode in (("jpegs", "r"), ("offsets", None), ("pixels", "r"), ("labels", None)):
            object.__setattr__(self, name, np.load(self.folder / f"{name}.npy", mode))

    def __len__(self) -> int:
        return len(self.labels)

    def jpeg(self, item: int) -> bytes:
        """One of them."""
        return self.jpegs[self.offsets[item] : self.offsets[item + 1]].tobytes()

    @staticmethod
    def write(folder: Path, jpegs: list[bytes], pixels: Iterable[np.ndarray], labels: list[int]) -> None:
        """Into a folder that is there."""
        np.save(folder / "jpegs.npy", np.frombuffer(b"".join(jpegs), np.uint8))
        np.save(folder / "offsets.npy", np.cumsum([0, *map(len, jpegs)]))
        np.save(folder / "labels.npy", np.array(labels))
        shape = (len(jpegs), SIDE, SIDE, 3)
        kept = np.lib.format.open_memmap(folder / "pixels.npy", mode="w+", dtype=np.uint8, shape=shape)
        for item, each in enumerate(pixels):
            kept[item] = each
        kept.flush()


class Work(NamedTuple):
    """What a row does."""

    given: Given
    raw: bool  # otherwise JPEGs
    passes: int
    threads: int


def shuffles(count: int, passes: int) -> Iterator[np.ndarray]:
    """Item numbers in random order, a batch at a time."""
    for seed in range(passes):
        order = np.random.default_rng(seed).permutation(count)
        yield from (order[start : start + BATCH] for start in range(0, count, BATCH))


def check(batches: Iterable[Batch], given: Given) -> dict[str, float]:
    """That they are one epoch: every crop once, in another order than given, with its label.

    Raises:
        SystemExit: they are not.
    """
    known = _cells(np.asarray(given.pixels))
    found, labels, farthest = [], [], 0.0
    for images, some in batches:
        cells = _cells(np.asarray(images))
        # Of (a - b)^2 what depends on b: the least is at the nearest.
        nearest = np.argmin((known**2).sum(1) - 2 * cells @ known.T, axis=1)
        farthest = max(farthest, float(np.abs(cells - known[nearest]).max()))
        found.append(nearest)
        labels.append(np.array(some).reshape(-1))  # copied: FFCV's are overwritten
    order, delivered = np.concatenate(found), np.concatenate(labels)
    # An image that is in the list several times may be taken for any of its copies.
    copies = np.unique(known, axis=0, return_inverse=True)[1].reshape(-1)
    if (
        len(order) != len(given)
        or (np.bincount(copies[order], minlength=len(given)) != np.bincount(copies, minlength=len(given))).any()
    ):
        raise SystemExit(f"delivers {len(order)} crops, {len(np.unique(order))} different, of {len(given)}")
    if farthest > TOLERANCE:
        raise SystemExit(f"delivers other pixels: {farthest:.1f} levels away")
    if (delivered != given.labels[order]).any():
        raise SystemExit("delivers other labels")
    if np.mean(np.diff(order) == 1) > 0.5:
        raise SystemExit("delivers the crops in the order that they were given")
    return {"crops": len(order), "levels_away": farthest}


def _cells(images: np.ndarray) -> np.ndarray:
    """Float32 [n, 48]."""
    step, kept = SIDE // CELLS, []
    for start in range(0, len(images), BATCH):
        some = images[start : start + BATCH].reshape(-1, CELLS, step, CELLS, step, 3)
        kept.append(some.mean((2, 4), dtype=np.float32).reshape(len(some), -1))
    return np.concatenate(kept)
