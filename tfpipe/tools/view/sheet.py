"""Draws sheets with Pillow: pictures in rows with captions, and the helpers that draw on them."""

import colorsys
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfpipe.errors import ConfigError
from tfpipe.util.atomic_write import atomic_write, writing
from tfpipe.util.retry import retried

Color = tuple[int, int, int]

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
    """Checks the suffix and the folder of `path`; raises ConfigError if nothing can be written there."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f'cannot write {path}: its suffix is "{path.suffix}"; accepted: {", ".join(SUFFIXES)}')
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}; make it first")


def save(sheet: Image.Image, path: Path) -> None:
    """Writes a PNG or a JPEG, depending on the suffix.

    Raises ConfigError if the suffix is neither, or `path` cannot be written.
    """
    check_target(path)
    with writing(path, "name another file with -o"), atomic_write(path) as partial:
        retried(sheet.save)(partial, **SUFFIXES[path.suffix.lower()])


def picture(pixels: np.ndarray) -> Image.Image:
    """Converts uint8 [height, width, 1 or 3] to an RGB picture."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")


def magnified(pixels: np.ndarray, at_most_px: int = SMALL_PX) -> Image.Image:
    """Returns `picture`, enlarged by the largest integer factor that fits into a square of `at_most_px`."""
    small = picture(pixels)
    times = max(1, at_most_px // max(small.size))
    return small.resize((times * small.width, times * small.height), Image.Resampling.NEAREST)


def fitted(image: Image.Image, width: int, height: int) -> Image.Image:
    """Scales the image to the largest size that fits into width and height."""
    scale = min(width / image.width, height / image.height)
    size = max(1, round(scale * image.width)), max(1, round(scale * image.height))
    return image.resize(size, Image.Resampling.LANCZOS)


def class_color(number: int) -> Color:
    """Returns the bright colour of a class number, the same in every picture."""
    red, green, blue = colorsys.hsv_to_rgb(0.13 + number * GOLDEN, 0.95 - 0.3 * (number // 8 % 2), 0.98)
    return round(255 * red), round(255 * green), round(255 * blue)


def ink_on(color: Color) -> Color:
    """Returns the dark or the light text colour, whichever is easier to read on `color`."""
    red, green, blue = color
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else PAPER


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
    kept = next(
        (count for count in range(len(text) - 1, 0, -1) if text_width(_cut(text, count, keep), size_px) <= width), 0
    )
    return _cut(text, kept, keep)


def _cut(text: str, count: int, keep: str) -> str:
    return f"...{text[len(text) - count :]}" if keep == "end" else f"{text[:count].rstrip(' ,')}..."


def wrap(text: str, width: int, lines: int) -> list[str]:
    """Wraps `text` between words into at most `lines` lines of `width` pixels; shortens the last one if necessary."""
    result = [""]
    for word in text.split():
        longer = f"{result[-1]} {word}".strip()
        if result[-1] and len(result) < lines and text_width(longer) > width:
            result.append(word)
        else:
            result[-1] = longer
    return [shorten(line, width) for line in result]
