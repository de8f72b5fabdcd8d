"""Draws a panel: an image with its boxes, and its crops below."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from tfpipe.tools.view import sheet
from tfpipe.tools.view.sheet import GAP_PX, INK, LINE_PX, PAPER, TEXT_PX, Color, Grid, Tile

WIDTH_PX, HEIGHT_PX = 440, 330
# Four crops in a row; more if they are small, but columns stay wide enough for class names.
CROP_PX = (WIDTH_PX - 3 * GAP_PX) // 4
LEAST_PX = 72
HEADING_PX = LINE_PX + 3
PAD_PX = 3
LABEL_PX = TEXT_PX + 5

Rectangle = tuple[int, int, int, int]  # left, top, right, bottom; right and bottom are exclusive


class Scene(NamedTuple):
    """An image with its boxes, its windows and its crops."""

    path: str
    pixels: np.ndarray  # uint8 [height, width, channels]
    boxes: np.ndarray  # float32 [k, 4] relative: ymin, xmin, ymax, xmax in [0, 1]
    labels: np.ndarray  # int32 [k]
    windows: np.ndarray  # int32 [m, 4]: top, left, height, width of the windows to draw
    crops: np.ndarray  # uint8 [c, height, width, channels]
    crop_labels: np.ndarray  # int32 [c]
    numbers: np.ndarray  # int64 [c]: crop numbers within the image; with one crop per box, the box's number


def draw_panel(scene: Scene, names: Sequence[str], numbered: bool) -> Image.Image:
    """Draws an RGB panel, WIDTH_PX wide: the end of the path, the image, then its crops in rows.

    With `numbered`, numbers boxes and crops, so that a crop can be matched to its box.
    """
    image = draw_boxes(scene, names, numbered)
    crops = [sheet.magnified(crop, CROP_PX) for crop in scene.crops]
    crops = [sheet.fitted(crop, CROP_PX, CROP_PX) if max(crop.size) > CROP_PX else crop for crop in crops]
    tiles = [
        Tile(crop, (f"{number + 1} {names[label]}" if numbered else names[label],), sheet.class_color(label))
        for crop, label, number in zip(crops, scene.crop_labels.tolist(), scene.numbers.tolist(), strict=True)
    ]
    in_a_row = (WIDTH_PX + GAP_PX) // (max([LEAST_PX, *(crop.width for crop in crops)]) + GAP_PX)
    top = HEADING_PX + image.height + GAP_PX
    grid = Grid.of(tiles, in_a_row, (WIDTH_PX + GAP_PX) // in_a_row - GAP_PX, 0, top)
    panel = Image.new("RGB", (WIDTH_PX, max(grid.tops[-1], top + LINE_PX)), PAPER)
    pen = ImageDraw.Draw(panel)
    pen.text((0, 0), sheet.shorten(scene.path, WIDTH_PX, keep="end"), INK, sheet.font())
    panel.paste(image, (0, HEADING_PX))
    grid.draw(tiles, panel)
    if not tiles:
        pen.text((0, top), "no crop: no box of a known class", INK, sheet.font())
    return panel


def draw_boxes(scene: Scene, names: Sequence[str], numbered: bool) -> Image.Image:
    """Draws the image, fitted into WIDTH_PX x HEIGHT_PX, with boxes in their classes' colours and windows in white."""
    image = sheet.fitted(sheet.picture(scene.pixels), WIDTH_PX, HEIGHT_PX)
    pen = ImageDraw.Draw(image)
    boxes = [to_pixels(box, image.size) for box in scene.boxes]
    for window in scene.windows.astype(np.float64):
        top, left, height, width = window / np.tile(scene.pixels.shape[:2], 2)
        _outline(pen, to_pixels((top, left, top + height, left + width), image.size), PAPER)
    for box, label in zip(boxes, scene.labels.tolist(), strict=True):
        _outline(pen, box, sheet.class_color(label))
    labels = [names[label] for label in scene.labels.tolist()]
    texts = [(f"{number} {name}", str(number)) if numbered else (name,) for number, name in enumerate(labels, start=1)]
    for number, text, place in place_labels(boxes, texts, image.size):
        color = sheet.class_color(int(scene.labels[number]))
        pen.rectangle((*place[:2], place[2] - 1, place[3] - 1), color)
        pen.text((place[0] + PAD_PX, place[1] + 1), text, sheet.ink_on(color), sheet.font())
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
            for text, width in ((text, sheet.text_width(text) + 2 * PAD_PX) for text in wanted)
            for y in (top - LABEL_PX, bottom, top, bottom - LABEL_PX)
            for x in (left, right - width)
        )
        for text, place in places:
            inside = min(place) >= 0 and place[2] <= size[0] and place[3] <= size[1]
            if inside and not any(_overlap(place, other) for other in taken):
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


def _overlap(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
