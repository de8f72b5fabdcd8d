"""Draws with Pillow: sheets of pictures with captions, and panels, an image with its boxes and its crops below."""

import colorsys
import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfpipe.errors import ConfigError
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.retry import retried

Color = tuple[int, int, int]
Rectangle = tuple[int, int, int, int]  # left, top, right, bottom; right and bottom are exclusive

JPEG = {"format": "JPEG", "quality": 92}
SUFFIXES: dict[str, dict[str, Any]] = {".png": {"format": "PNG"}, ".jpg": JPEG, ".jpeg": JPEG}
TEXT_PX, TITLE_PX, LINE_PX = 13, 17, 17
MARGIN_PX, GAP_PX, SWATCH_PX = 20, 12, 9
# Smaller pictures are magnified by an integer factor, so that their pixels stay square.
SMALL_PX = 128
SHAPE = 4 / 3
PAPER, INK, FAINT = (255, 255, 255), (32, 33, 36), (218, 220, 224)
# Hues a golden angle apart: near class numbers differ most, and a class always has the same colour.
GOLDEN = (math.sqrt(5) - 1) / 2
# Largest image of a panel.
WIDTH_PX, HEIGHT_PX = 440, 330
# Four crops in a row; more if they are small, but columns stay wide enough for class names.
CROP_PX = (WIDTH_PX - 3 * GAP_PX) // 4
LEAST_PX = 72
HEADING_PX = LINE_PX + 3
PAD_PX = 3
LABEL_PX = TEXT_PX + 5


class Tile(NamedTuple):
    """A picture and its caption."""

    picture: Image.Image
    caption: Sequence[str]  # lines of any number, each cut to the width of the column
    color: Color | None = None  # colour of a small square before the caption; None draws none


class Grid(NamedTuple):
    """Positions of tiles in pixels; the tiles of a row share their top."""

    columns: int
    width: int  # width of a column
    left: int
    tops: tuple[int, ...]  # tops of the rows, and of the row after the last

    @classmethod
    def of(cls, tiles: Sequence[Tile], columns: int, width: int, left: int, top: int) -> "Grid":
        """Returns the grid of tiles, from a corner of the picture on."""
        tops = [top]
        for start in range(0, len(tiles), columns):
            tops.append(tops[-1] + max(map(_height, tiles[start : start + columns])) + GAP_PX)
        return cls(columns, width, left, tuple(tops))

    def corner(self, number: int) -> tuple[int, int]:
        """Returns left and top of a tile."""
        row, column = divmod(number, self.columns)
        return self.left + column * (self.width + GAP_PX), self.tops[row]

    def draw(self, tiles: Sequence[Tile], image: Image.Image) -> None:
        """Draws the tiles on an image."""
        pen = ImageDraw.Draw(image)
        for number, tile in enumerate(tiles):
            left, top = self.corner(number)
            image.paste(tile.picture, (left, top))
            top += tile.picture.height + 5
            if tile.color is not None and tile.caption:
                pen.rectangle((left, top + 3, left + SWATCH_PX - 1, top + 2 + SWATCH_PX), tile.color)
            indent = 0 if tile.color is None else SWATCH_PX + 5
            for line in tile.caption:
                pen.text((left + indent, top), shorten(line, self.width - indent), INK, font())
                top += LINE_PX


def _height(tile: Tile) -> int:
    return tile.picture.height + 5 + LINE_PX * len(tile.caption)


def lay_out(tiles: Sequence[Tile]) -> Grid:
    """Computes the grid of a sheet: columns as wide as the widest tile, as many as make the sheet about 4:3."""
    width = max(tile.picture.width for tile in tiles)
    across = (width + GAP_PX) / (sum(map(_height, tiles)) / len(tiles) + GAP_PX)
    rows = math.ceil(len(tiles) / max(1, round(math.sqrt(SHAPE * len(tiles) / across))))
    return Grid.of(tiles, math.ceil(len(tiles) / rows), width, MARGIN_PX, MARGIN_PX + TITLE_PX + GAP_PX)


def draw(title: str, tiles: Sequence[Tile]) -> Image.Image:
    """Draws an RGB sheet: `title` on top, then the tiles row by row; there must be at least one tile."""
    grid = lay_out(tiles)
    inner = grid.columns * (grid.width + GAP_PX) - GAP_PX
    sheet = Image.new("RGB", (inner + 2 * MARGIN_PX, grid.tops[-1] - GAP_PX + MARGIN_PX), PAPER)
    place = (MARGIN_PX, MARGIN_PX - 4)
    ImageDraw.Draw(sheet).text(place, shorten(title, inner, TITLE_PX), INK, font(TITLE_PX))
    grid.draw(tiles, sheet)
    return sheet


def check_target(path: Path) -> None:
    """Raises ConfigError if the suffix of `path` is of no picture."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f'cannot write {path}: its suffix is "{path.suffix}"; accepted: {", ".join(SUFFIXES)}')


def save(sheet: Image.Image, path: Path) -> None:
    """Writes a PNG or a JPEG, by a suffix that check_target accepts; raises ConfigError if `path` cannot be written."""
    with writing(path, "name another file with -o"), atomic_write(path) as partial:
        retried(sheet.save)(partial, **SUFFIXES[path.suffix.lower()])


def picture(pixels: np.ndarray) -> Image.Image:
    """Converts uint8 [height, width, 1 or 3] to an RGB picture; floats from their lowest to their highest value."""
    if pixels.dtype != np.uint8:
        low, high = (float(value) for value in (pixels.min(), pixels.max()))
        pixels = ((pixels.astype(np.float32) - low) * (255 / max(high - low, 1e-6))).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")


def magnify(pixels: np.ndarray, at_most_px: int = SMALL_PX) -> Image.Image:
    """Returns `picture`, enlarged by the largest integer factor that fits into a square of `at_most_px`."""
    small = picture(pixels)
    times = max(1, at_most_px // max(small.size))
    return small.resize((times * small.width, times * small.height), Image.Resampling.NEAREST)


def fit(image: Image.Image, width: int, height: int) -> Image.Image:
    """Scales the image to the largest size that fits into width and height."""
    scale = min(width / image.width, height / image.height)
    size = max(1, round(scale * image.width)), max(1, round(scale * image.height))
    return image.resize(size, Image.Resampling.LANCZOS)


def class_color(number: int) -> Color:
    """Returns the bright colour of a class number; a class has the same one in every picture."""
    red, green, blue = colorsys.hsv_to_rgb(0.13 + number * GOLDEN, 0.95 - 0.3 * (number // 8 % 2), 0.98)
    return round(255 * red), round(255 * green), round(255 * blue)


@cache
def font(size_px: int = TEXT_PX) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Returns Pillow's default font."""
    return ImageFont.load_default(size_px)


def text_width(text: str, size_px: int = TEXT_PX) -> int:
    """Returns the width of `text` in pixels, rounded up."""
    return math.ceil(font(size_px).getlength(text))


def shorten(text: str, width: int, size_px: int = TEXT_PX, keep: str = "start") -> str:
    """Returns `text`, or as much of its "start" or "end" as fits into `width` pixels, with "..." for the rest."""
    if text_width(text, size_px) <= width:
        return text
    for count in reversed(range(len(text))):
        short = f"...{text[len(text) - count :]}" if keep == "end" else f"{text[:count].rstrip(' ,')}..."
        if text_width(short, size_px) <= width:
            break
    return short


class Scene(NamedTuple):
    """An image with its boxes, its windows and its crops."""

    path: str
    pixels: np.ndarray  # uint8 [height, width, channels]
    boxes: np.ndarray  # float32 [k, 4] relative: ymin, xmin, ymax, xmax in [0, 1]
    labels: np.ndarray  # int32 [k]
    windows: np.ndarray  # [m, 4], in pixels: top, left, height, width of the windows to draw
    crops: Sequence[np.ndarray]  # c of uint8 [height, width, channels]
    crop_labels: np.ndarray  # int32 [c]
    numbers: np.ndarray  # int64 [c]: crop numbers within the image; with one crop per box, the box's number


def draw_panel(scene: Scene, names: Sequence[str], numbered: bool) -> Image.Image:
    """Draws an RGB panel, WIDTH_PX wide: the end of the path, the image, then its crops in rows.

    With `numbered`, numbers boxes and crops, so that a crop can be matched to its box.
    """
    image = draw_boxes(scene, names, numbered)
    crops = [magnify(crop, CROP_PX) for crop in scene.crops]
    crops = [fit(crop, CROP_PX, CROP_PX) if max(crop.size) > CROP_PX else crop for crop in crops]
    tiles = [
        Tile(crop, (f"{number + 1} {names[label]}" if numbered else names[label],), class_color(label))
        for crop, label, number in zip(crops, scene.crop_labels.tolist(), scene.numbers.tolist(), strict=True)
    ]
    in_a_row = (WIDTH_PX + GAP_PX) // (max([LEAST_PX, *(crop.width for crop in crops)]) + GAP_PX)
    top = HEADING_PX + image.height + GAP_PX
    grid = Grid.of(tiles, in_a_row, (WIDTH_PX + GAP_PX) // in_a_row - GAP_PX, 0, top)
    panel = Image.new("RGB", (WIDTH_PX, max(grid.tops[-1], top + LINE_PX)), PAPER)
    pen = ImageDraw.Draw(panel)
    pen.text((0, 0), shorten(scene.path, WIDTH_PX, keep="end"), INK, font())
    panel.paste(image, (0, HEADING_PX))
    grid.draw(tiles, panel)
    if not tiles:
        pen.text((0, top), "no crop: no box of a known class", INK, font())
    return panel


def draw_boxes(scene: Scene, names: Sequence[str], numbered: bool) -> Image.Image:
    """Draws the image, fitted into WIDTH_PX x HEIGHT_PX, with boxes in their classes' colours and windows in white."""
    image = fit(picture(scene.pixels), WIDTH_PX, HEIGHT_PX)
    pen = ImageDraw.Draw(image)
    boxes = [to_pixels(box, image.size) for box in scene.boxes]
    for window in scene.windows.astype(np.float64):
        top, left, height, width = window / np.tile(scene.pixels.shape[:2], 2)
        _outline(pen, to_pixels((top, left, top + height, left + width), image.size), PAPER)
    for box, label in zip(boxes, scene.labels.tolist(), strict=True):
        _outline(pen, box, class_color(label))
    labels = [names[label] for label in scene.labels.tolist()]
    texts = [(f"{number} {name}", str(number)) if numbered else (name,) for number, name in enumerate(labels, start=1)]
    for number, text, place in place_labels(boxes, texts, image.size):
        red, green, blue = color = class_color(int(scene.labels[number]))
        pen.rectangle((*place[:2], place[2] - 1, place[3] - 1), color)
        ink = INK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else PAPER  # the easier one to read
        pen.text((place[0] + PAD_PX, place[1] + 1), text, ink, font())
    return image


def place_labels(
    boxes: Sequence[Rectangle], texts: Sequence[Sequence[str]], size: tuple[int, int]
) -> Iterator[tuple[int, str, Rectangle]]:
    """Places labels at boxes without overlap, inside an image of `size`; yields box number, text and rectangle.

    A box's label is the first of its `texts` that fits above it, below it or inside it; a box without room gets none.
    """
    taken: list[Rectangle] = []
    for number, ((left, top, right, bottom), wanted) in enumerate(zip(boxes, texts, strict=True)):
        places = (
            (text, (x, y, x + width, y + LABEL_PX))
            for text, width in ((text, text_width(text) + 2 * PAD_PX) for text in wanted)
            for y in (top - LABEL_PX, bottom, top, bottom - LABEL_PX)
            for x in (left, right - width)
        )
        for text, place in places:
            inside = min(place) >= 0 and place[2] <= size[0] and place[3] <= size[1]
            if inside and all(
                any(place[side + 2] <= other[side] or other[side + 2] <= place[side] for side in (0, 1))
                for other in taken
            ):
                taken.append(place)
                yield number, text, place
                break


def to_pixels(box: Sequence[float], size: tuple[int, int]) -> Rectangle:
    """Converts a relative box (ymin, xmin, ymax, xmax) to pixels of an image of `size` (width, height)."""
    top, left, bottom, right = box
    width, height = size
    return round(left * width), round(top * height), round(right * width), round(bottom * height)


def _outline(pen: ImageDraw.ImageDraw, box: Rectangle, color: Color) -> None:
    """Draws two pixels of `color` inside the box and a dark one around, visible on any background."""
    left, top, right, bottom = box
    right, bottom = max(left, right - 1), max(top, bottom - 1)
    pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=INK)
    pen.rectangle((left, top, right, bottom), outline=color, width=2)
