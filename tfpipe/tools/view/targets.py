"""Crops with what comes with them by `data.targets`: boxes, masks, several classes, numbers and further columns."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from tfpipe.config import DataConfig
from tfpipe.data.annotations.masks import VOID
from tfpipe.tools.view.sheet import FAINT, Scene, Tile, class_color, draw_boxes, magnified

# Share of a class's colour in the pixels that a mask says are of it.
OVERLAY = 0.5


def target_tiles(images: np.ndarray, labels: Any, names: Sequence[str], config: DataConfig) -> Iterator[Tile]:
    """Yields a tile for each crop of a batch, its labels being those of `data.targets`."""
    kind = config.targets.kind if config.transform is None else "label"
    parts = labels if isinstance(labels, dict) else {kind: labels}
    for number, image in enumerate(images):
        row = {name: np.asarray(part[number]) for name, part in parts.items()}
        further = [f"{name}: {_text(value)}" for name, value in row.items() if name not in (kind, "boxes", "labels")]
        match kind:
            case "boxes":
                yield _boxes(image, row, names, further, config)
            case "mask":
                yield _mask(image, row["mask"], names, further)
            case "labels":
                classes = [names[number] for number in np.flatnonzero(row["labels"]).tolist()]
                yield Tile(magnified(image), (*(classes or ["no class"]), *further))
            case "label":
                yield tile_of(image, row["label"], names, further)
            case _:
                yield Tile(magnified(image), (_text(row[kind]), *further))


def tile_of(image: np.ndarray, label: np.ndarray, names: Sequence[str], further: Sequence[str] = ()) -> Tile:
    """Returns a crop with its class, int32 [], or with those that have a share in it, float32 [classes]."""
    if label.ndim == 0:
        return Tile(magnified(image), (names[int(label)], *further), class_color(int(label)))
    classes = [int(number) for number in np.argsort(-label, kind="stable") if label[number] > 0]
    lines = [f"{label[number]:.0%} {names[number]}" for number in classes]
    caption = lines if len(lines) > 1 else [names[classes[0]]]
    return Tile(magnified(image), (*caption, *further), class_color(classes[0]))


def _boxes(
    image: np.ndarray, row: dict[str, np.ndarray], names: Sequence[str], further: Sequence[str], config: DataConfig
) -> Tile:
    there = row["labels"] >= 0
    boxes, labels = row["boxes"][there], row["labels"][there]
    height, width = image.shape[:2]
    if config.targets.box_unit == "pixels":
        boxes = boxes / np.array([width, height, width, height], np.float32)
    nothing = np.zeros((0, 4), np.int32)
    scene = Scene("", image, boxes[:, [1, 0, 3, 2]], labels, nothing, [], labels[:0], labels[:0])
    counts = Counter(names[label] for label in labels.tolist())
    caption = ", ".join(f"{count} {name}" for name, count in counts.items())
    return Tile(draw_boxes(scene, names, numbered=False), (caption or "no box", *further))


def _mask(image: np.ndarray, mask: np.ndarray, names: Sequence[str], further: Sequence[str]) -> Tile:
    colors = np.array([FAINT if level == VOID else class_color(level) for level in range(VOID + 1)], np.float32)
    pixels = np.repeat(image, 3, 2) if image.shape[2] == 1 else image
    shown = np.where(mask[..., None] > 0, (1 - OVERLAY) * pixels + OVERLAY * colors[mask], pixels)
    picture = magnified(np.round(shown).astype(np.uint8))
    classes = [str(level) if level >= len(names) else names[level] for level in np.unique(mask).tolist()]
    return Tile(Image.fromarray(np.asarray(picture)), (", ".join(classes), *further))


def _text(value: np.ndarray) -> str:
    if value.dtype == object or value.dtype.kind == "S":
        return value.item().decode().replace("\n", " ")
    return np.array2string(value, precision=4)
