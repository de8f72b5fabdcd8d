"""What a data set holds, as text and as a picture: python docs/examples/inspect_dataset.py -c CONFIG -o report.png

Of up to --images images, spread evenly over the list. Needs matplotlib: pip install 'tfpipe[profile]'
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pyarrow import Table, parquet

import tfpipe
from tfpipe.config import DataConfig
from tfpipe.data.catalog.filelist import index_path
from tfpipe.data.catalog.index import index_of
from tfpipe.data.catalog.types import Catalog
from tfpipe.prepare.index_rows import Images, read_rows
from tfpipe.tools.view.sheet import draw_boxes
from tfpipe.util.console import without_chatter

PICTURES, IN_A_ROW, MOST_BARS = 8, 4, 30


def evenly(count: int, at_most: int) -> np.ndarray:
    """Numbers below `count`, all or so many, ascending."""
    return np.unique(np.linspace(0, count - 1, at_most).astype(int))


def read_table(data: DataConfig, catalog: Catalog, images: int) -> Table:
    """Returns the index columns (docs/formats.md) of some images: from the index if there is one, else from XMLs."""
    if data.source is not None:
        raise SystemExit("data.source is packed, and this reads the files: give their filelist")
    chosen = evenly(len(catalog), images)
    if catalog.boxes is not None:
        return parquet.read_table(index_path(data, getattr(data, f"{catalog.split}_filelist"))).take(chosen)
    paths, xmls = zip(*((catalog.paths[item], catalog.annotation(item)) for item in chosen), strict=True)
    numbers = {name: number for number, name in enumerate(catalog.classes)}
    table, errors = read_rows(
        Images(paths, xmls, catalog.labels[chosen], remote=data.remote if catalog.paths.remote else None), numbers
    )
    if table is None:
        raise SystemExit(f"{len(errors)} of {len(chosen)} images cannot be read, e.g. {errors[0]}")
    return table


class Found:
    """What a table says, as arrays."""

    def __init__(self, table: Table, classes: int) -> None:
        index = index_of(table)
        annotated, (image, edges, labels) = index.annotated, index.boxes
        sides = edges[:, [3, 2]] - edges[:, [1, 0]]  # [crops, 2]: width and height, in [0, 1]
        odd = table["odd"].to_pylist()
        # An image without an object is a crop, but has no box.
        is_box = (annotated & ["no object" not in codes for codes in odd])[image]
        self.annotated = int(annotated.sum())
        self.sizes = np.stack([table["width"], table["height"]], axis=1)  # [images, 2], pixels
        self.counts = np.bincount(labels, minlength=classes)  # [classes], crops
        self.ascending = np.argsort(self.counts, kind="stable")
        self.shapes = np.divide(*(sides * self.sizes[image]).T)  # [crops]: width / height
        self.areas = sides.prod(axis=1)[is_box]  # [boxes]: share of the image
        self.boxes_each = np.unique(image[is_box], return_counts=True)[1]  # [images that have boxes]
        self.odd = Counter(code for codes in odd for code in codes)


def describe(found: Found, catalog: Catalog, names: Sequence[str]) -> str:
    """A line for each thing."""

    def usual(values: np.ndarray) -> str:
        low, median, high = np.percentile(values, (5, 50, 95)) if len(values) else [np.nan] * 3
        return f"{median:.3g} in the median, 9 of 10 from {low:.3g} to {high:.3g}"

    each, (least, most) = found.boxes_each, found.ascending[[0, -1]]
    odd = ", ".join(f"{count} {code}" for code, count in found.odd.most_common())
    return f"""{catalog.split}: {len(found.sizes)} of {len(catalog)} images, {found.annotated} of them annotated
width: {usual(found.sizes[:, 0])} pixels
height: {usual(found.sizes[:, 1])} pixels
boxes: {each.sum()} in {len(each)} images, at most {each.max(initial=0)} in one
area of a box, as a share of its image: {usual(found.areas)}
width / height of a crop: {usual(found.shapes)}
crops: {found.counts.sum()} of {len(names)} classes, from {found.counts[least]} ({names[least]}) \
to {found.counts[most]} ({names[most]})
odd: {odd or "nothing"}"""


def draw(found: Found, scenes: Sequence[Any], names: Sequence[str], title: str) -> Figure:
    """Pictures with their boxes above, figures below."""
    figure = Figure((14, 13), dpi=90, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    figure.suptitle(title, size=15, weight="bold")
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.15))
    for number, scene in enumerate(scenes, start=1):
        ax = above.add_subplot(PICTURES // IN_A_ROW, IN_A_ROW, number)
        held = ", ".join(names[each] for each in np.unique(scene.crop_labels))
        ax.set_title(f"{Path(scene.path).name}: {held}", size=9)
        ax.imshow(draw_boxes(scene, names, numbered=False))
        ax.axis("off")
    grid = below.add_gridspec(2, 3)

    def panel(place: Any, title: str, across: str, up: str = "") -> Any:
        ax = below.add_subplot(place)
        ax.set(title=title, xlabel=across, ylabel=up)
        ax.spines[["top", "right"]].set_visible(False)
        return ax

    shown = found.ascending[evenly(len(names), MOST_BARS)]
    ax = panel(grid[:, 0], f"{len(shown)} of {len(names)} classes", "crops")
    bars = ax.barh(range(len(shown)), found.counts[shown], tick_label=[names[each] for each in shown])
    ax.bar_label(bars, padding=3, size=9)
    ax.margins(x=0.15, y=0.02)
    sizes, counts = np.unique(found.sizes, axis=0, return_counts=True)
    ax = panel(grid[0, 1], "Image sizes", "width, pixels", "height, pixels")
    ax.scatter(*sizes.T, 8 + 600 * counts / counts.sum(), alpha=0.4, linewidth=0)
    ax.set(xlim=(0, 1.1 * sizes[:, 0].max()), ylim=(0, 1.1 * sizes[:, 1].max()))
    ax = panel(grid[0, 2], "Boxes in an image that has any", "boxes", "images")
    ax.bar(*np.unique(found.boxes_each, return_counts=True))
    ax.xaxis.get_major_locator().set_params(integer=True)
    panel(grid[1, 1], "Area of a box", "share of its image", "boxes").hist(found.areas, 40)
    ax = panel(grid[1, 2], "Shape of a crop, before it is resized", "width / height", "crops")
    ax.hist(found.shapes, np.geomspace(0.98 * found.shapes.min(), 1.02 * found.shapes.max(), 40))
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:g}")
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the picture to write")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="[%(default)s]")
    parser.add_argument("--images", type=int, default=2000, help="to look at, at most [%(default)s]")
    args = parser.parse_args(argv)
    with without_chatter():
        from tfpipe.tools.view.view import class_names, find_scenes

        # All boxes, whatever training makes of them.
        plain = {"crop": "boxes", "test_crop": "boxes", "unit": "image", "cache": None}
        data = tfpipe.load_config(args.config).data.model_copy(update=plain)
        split = tfpipe.stages.load_split(data, args.split, tfpipe.World())
        catalog = split.catalog
        names = class_names(data, catalog)
        found = Found(read_table(data, catalog, args.images), len(names))
        said = describe(found, catalog, names)
        scenes = find_scenes(split, tfpipe.Stream.start(1), min(PICTURES, len(catalog)))
        draw(found, scenes, names, f"{args.config.stem}, {said.splitlines()[0]}").savefig(args.out)
    print(said)


if __name__ == "__main__":
    main()
