"""Pictures of a pipeline's input and output: a batch with its targets, images with boxes, or an image's epochs."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from PIL import Image

from tfpipe.config import Config, DataConfig
from tfpipe.data.annotations.masks import VOID
from tfpipe.data.batch import split_weights
from tfpipe.data.catalog.labels import read_words
from tfpipe.data.catalog.locate import find_targets
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.crop_counts import count_crops
from tfpipe.data.failures.batches import Batches
from tfpipe.data.failures.diagnose import to_named_error
from tfpipe.data.images.crops import choose_windows, from_first
from tfpipe.data.images.headers import as_file
from tfpipe.data.images.whole import Decoding, decode_image
from tfpipe.data.images.windows import place_windows, target_of
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.pipeline import Crops, Encoded, build_batches, crop, read, visit
from tfpipe.data.runtime.cancellable import Cancellable
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.data.targets.labels import needs_origin
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.tools.view import sheet
from tfpipe.tools.view.sheet import Scene, Tile, class_color, magnify
from tfpipe.util.retry import retried

SYNSETS = "LOC_synset_mapping.txt"
# Default counts, by kind of view.
COUNTS = {"batch": 64, "boxes": 12, "epochs": 8}
ALONE = World()
# Positions looked up at a time; an epoch of ImageNet takes a second.
POSITIONS = 2**16
OVERLAY = 0.5  # share of a class's colour in the pixels that a mask says are of it


@dataclass(frozen=True)
class ViewRequest:
    """A request for a view."""

    kind: Literal["batch", "boxes", "epochs"] = "batch"
    """"batch": crops as training sees them; "boxes": images with boxes and crops; "epochs": the first crop of one image
    in several epochs, before and after its augmentation."""
    split: str = "train"
    count: int | None = None  # maximum number of crops, images or epochs; None: the default of the kind
    first: int = 0  # first stream position, as `tfpipe order` prints it


def view(config: Config, what: ViewRequest, path: Path) -> str:
    """Writes a picture; returns a line that describes it. Raises ConfigError if that is not possible with these
    arguments, TfpipeError if a file cannot be used.
    """
    title, tiles = _samples(config, what, COUNTS[what.kind] if what.count is None else what.count)
    sheet.save(sheet.draw(title, tiles), path)
    return f"{path}: {title}"


def class_names(config: DataConfig, catalog: Catalog) -> tuple[str, ...]:
    """Returns a name for each class: `tench` for LOC_synset_mapping.txt's `n01440764 tench, Tinca tinca`.

    The file is `data.classes`, or else one in a folder above the images; a class that is not in it keeps its name.
    """
    above = (folder / SYNSETS for folder in Path(catalog.paths[0]).parents)
    file = config.classes if isinstance(config.classes, Path) else next(filter(Path.is_file, above), None)
    words = read_words(file) if file else {}
    return tuple(words[name].split(",")[0] if name in words else name for name in catalog.classes)


def _samples(config: Config, what: ViewRequest, count: int) -> tuple[str, list[Tile]]:
    # A cache does not change the pixels, and would be filled for only a few images. A transform is for one type.
    levels = {"dtype": "uint8", "normalize": None} if config.data.transform is None else {}
    data = config.data.model_copy(update={**levels, "cache": None})
    config = config.model_copy(update={"data": data})
    split = load_split(data, what.split, ALONE)
    catalog = split.catalog
    if what.split == "test" and what.first >= len(catalog):
        raise ConfigError(f"--first: received {what.first}, of {counted(len(catalog), 'image')} of test data")
    if what.kind == "boxes" and data.targets.kind != "label":
        raise ConfigError(
            f'view --boxes shows crops of one class, and data.targets is "{data.targets.kind}": use tfpipe view alone, '
            "which shows each crop with its targets"
        )
    if split.crops_objects and count_crops(split).crops == 0:
        raise ConfigError(
            f"the {what.split} data gives no crop: none of its {len(catalog)} images has an XML with an object of the "
            f"classes {', '.join(catalog.classes)}"
        )
    stream = Stream.start(1).at([Cursor(what.first)])
    names = class_names(data, catalog)
    try:
        if what.kind == "batch":
            shown = _batch(config, split, stream, count, names)
        elif what.kind == "epochs":
            shown = draw_epochs(config, split, what.first, count)
        else:
            scenes = retried(find_scenes)(split, stream, count)
            shown = [Tile(sheet.draw_panel(scene, names, len(scene.boxes) > 1), ()) for scene in scenes]
    except tf.errors.OpError as error:
        raise to_named_error(error, split, stream, None) from error
    if what.kind == "epochs":
        (item,) = split.visits(stream, 1).item.tolist()
        name = split.name(catalog.image_and_box(item)[0])
        return f"{name} in {counted(len(shown), 'epoch')}, before data.augment and, below, after it", shown
    things = counted(len(shown), "crop") if what.kind == "batch" else f"{counted(len(shown), 'image')} with crops"
    seen = "training" if what.split == "train" else "testing"
    cut = '", "'.join(dict.fromkeys(view.crop_for(catalog.split) for view in split.config.by_view))
    frames = "; in white, what is cut out" if what.kind == "boxes" and _draws_windows(split) else ""
    return f'{things}, {split.config.shapes}, as {seen} sees them: "{cut}", from position {what.first}{frames}', shown


def _batches(config: Config, split: Split, stream: Stream) -> Iterator[tuple[Any, ...]]:
    """Yields the images and the targets of batches, without weights, from the stream's position on."""
    batches = Batches(lambda rest, _: build_batches(config, split.catalog.split, ALONE, rest, split), split, stream)
    plain = split.config.views or (needs_origin(split) and config.data.transform is None)
    for batch in batches:
        yield batch.data if plain else split_weights(batch.data, "tfpipe view")[:2]


def _batch(config: Config, split: Split, stream: Stream, count: int, names: Sequence[str]) -> list[Tile]:
    data = _batches(config, split, stream)
    tiles = (
        tile
        for images, *labels in (tf.nest.map_structure(lambda part: part.numpy(), each) for each in data)
        for row in zip(*(target_tiles(view, labels, names, split.config) for view in _views(images)), strict=True)
        for tile in row
    )
    return list(itertools.islice(tiles, count))


def _views(images: Any) -> tuple[Any, ...]:
    return images if isinstance(images, tuple) else (images,)


def find_scenes(split: Split, stream: Stream, count: int) -> list[Scene]:
    """Returns the next `count` images of a one-rank `stream` with their boxes and crops."""
    config, catalog = split.config, split.catalog
    encoded = read(visit(split, stream).take(count), split)
    crops: Crops = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *Cancellable(crop(encoded, split)))
    views = len(config.by_view)
    tiles = [view for of_image in zip(*_views(crops.images), strict=True) for view in of_image]
    positions, crop_labels = (np.repeat(part, views, axis=0) for part in (crops.positions, crops.labels))
    numbers = np.arange(len(tiles)) % views if views > 1 else positions[:, 1]
    images: Encoded = next(Cancellable(encoded.batch(count)))
    targets = find_targets(catalog, split.object_classes)(images, images.size)
    chosen = choose_windows(targets, images.size, images.visit.position, config, catalog.split, split.crops_objects)
    windows = from_first(chosen, images.visit.first_crop)
    cut = _visible(windows.windows.numpy(), config, catalog.split)
    framed, how = _draws_windows(split), Decoding.of(config)
    scenes = []
    for number, position in enumerate(images.visit.position.numpy()):
        item, _ = catalog.image_and_box(int(images.visit.item[number]))
        # An image without annotation is its own target, and has no box to draw.
        annotated = (targets.images.numpy() == number) & bool(catalog.annotated[item])
        image_crops = np.flatnonzero(positions[:, 0] == position)
        scenes.append(
            Scene(
                catalog.paths[item],
                decode_image(as_file(images.jpeg[number].numpy()), config.num_channels, how).numpy(),
                targets.boxes.numpy()[annotated],
                targets.labels.numpy()[annotated],
                cut[(windows.images.numpy() == number) & framed].reshape(-1, 4),
                [tiles[crop] for crop in image_crops],
                crop_labels[image_crops],
                numbers[image_crops],
            )
        )
    return scenes


def _visible(windows: np.ndarray, config: DataConfig, split: str) -> np.ndarray:
    """Returns float64 [k, views, 4]: the parts of windows (int32 [k, 4] or [k, views, 4]) that are in their crops."""
    by_view = windows.reshape(len(windows), -1, 4).astype(np.float64)
    for number, view in enumerate(config.by_view):
        target, window = target_of(view, split), by_view[:, number]
        place = place_windows(tf.constant(windows.reshape(len(windows), -1, 4)[:, number, 2:]), target).numpy()
        scale, first = window[:, 2:] / place[:, 2:], np.maximum(-place[:, :2], 0)
        window[:, 2:] = (np.minimum(place[:, 2:], target.size - place[:, :2]) - first) * scale
        window[:, :2] += first * scale
    return by_view


def _draws_windows(split: Split) -> bool:
    """Returns whether to draw windows: if they are not the boxes, and one per image; more would hide the image."""
    return split.config.crop_for(split.catalog.split) != "boxes" and not split.crops_objects


def find_visits(split: Split, first: int) -> Iterator[tuple[int, int]]:
    """Yields (epoch, position) of each epoch's first visit of the image at position `first`, from there on."""
    order = split.order
    (item,) = order.items(np.array([first], np.int64))
    for epoch in itertools.count(first // len(order.positions(0, ALONE))):
        positions = order.positions(epoch, ALONE)
        for start in range(max(first, positions.start), positions.stop, POSITIONS):
            block = np.arange(start, min(start + POSITIONS, positions.stop))
            visits = block[order.items(block) == item]
            if visits.size:  # a sample that is weighted or repeated comes several times
                yield epoch, int(visits[0])
                break


def draw_epochs(config: Config, split: Split, first: int, epochs: int) -> list[Tile]:
    """Returns a tile for each of the first `epochs` epochs in which the image at position `first` comes, from its own.

    A tile has the image's first crop, or its first view, before `data.augment`, and below it after.
    """
    data = config.data.by_view[0].model_copy(update={"batch_size": 1, "mix": None})
    plain = data.model_copy(update={"augment": []})
    configs = [config.model_copy(update={"data": each}) for each in (plain, data)]
    tiles = []
    for epoch, position in itertools.islice(find_visits(split, first), epochs):
        stream = Stream.start(1).at([Cursor(position)])
        batches = (_batches(each, split.adapt(each.data, ALONE), stream) for each in configs)
        before, after = (np.asarray(magnify(np.asarray(images[0]))) for images, *_ in map(next, batches))
        gap = np.full((sheet.GAP_PX, before.shape[1], 3), sheet.PAPER, np.uint8)
        picture = Image.fromarray(np.concatenate([before, gap, after]))
        tiles.append(Tile(picture, (f"epoch {epoch}", f"position {position}")))
    return tiles


def target_tiles(images: np.ndarray, labels: list[Any], names: Sequence[str], config: DataConfig) -> Iterator[Tile]:
    """Yields a tile for each crop of a batch; `labels` holds those of `data.targets`, or is empty."""
    kind = config.targets.kind if config.transform is None else "label"
    parts = next((part if isinstance(part, dict) else {kind: part} for part in labels), {})
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
                yield Tile(magnify(image), (*(classes or ["no class"]), *further))
            case "label":
                yield tile_of(image, row["label"], names, further)
            case _:
                yield Tile(magnify(image), (*([_text(row[kind])] if kind in row else []), *further))


def tile_of(image: np.ndarray, label: np.ndarray, names: Sequence[str], further: Sequence[str] = ()) -> Tile:
    """Returns a crop with its class, int32 [], or with those that have a share in it, float32 [classes]."""
    if label.ndim == 0:
        return Tile(magnify(image), (names[int(label)], *further), class_color(int(label)))
    classes = [int(number) for number in np.argsort(-label, kind="stable") if label[number] > 0]
    lines = [f"{label[number]:.0%} {names[number]}" for number in classes]
    caption = lines if len(lines) > 1 else [names[classes[0]]]
    return Tile(magnify(image), (*caption, *further), class_color(classes[0]))


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
    return Tile(sheet.draw_boxes(scene, names, numbered=False), (caption or "no box", *further))


def _mask(image: np.ndarray, mask: np.ndarray, names: Sequence[str], further: Sequence[str]) -> Tile:
    colors = np.array([sheet.FAINT if level == VOID else class_color(level) for level in range(VOID + 1)], np.float32)
    pixels = np.repeat(image, 3, 2) if image.shape[2] == 1 else image
    shown = np.where(mask[..., None] > 0, (1 - OVERLAY) * pixels + OVERLAY * colors[mask], pixels)
    classes = [str(level) if level >= len(names) else names[level] for level in np.unique(mask).tolist()]
    return Tile(magnify(np.round(shown).astype(np.uint8)), (", ".join(classes), *further))


def _text(value: np.ndarray) -> str:
    if value.dtype == object or value.dtype.kind == "S":
        return value.item().decode().replace("\n", " ")
    return np.array2string(value, precision=4)
