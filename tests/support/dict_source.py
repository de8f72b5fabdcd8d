"""A source of the user's own: pictures in a dict in memory, as `data.source.kind` names it."""

import functools

import numpy as np

from tests.support.images import encoded, picture
from tests.support.routes import CLASSES, Sample, samples
from tfpipe import Source, World
from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import Boxes
from tfpipe.data.catalog.filelist import FileList
from tfpipe.data.catalog.types import Catalog

BOXES = np.array([[0.1, 0.1, 0.9, 0.6], [0.2, 0.3, 0.7, 1.0]], np.float32)


class Pictures(Source):
    """48 pictures, of which the dogs have two boxes each, the cats one. `args`: cut, bytes left by name."""

    def __init__(self, config: DataConfig) -> None:
        super().__init__(config)
        self.args = config.source.args
        self.pictures = {f"{number}.jpg": encoded(picture(24, 32, number)) for number in range(48)}
        for name, size in self.args.get("cut", {}).items():
            self.pictures[name] = self.pictures[name][:size]

    def catalog(self, split: str, world: World) -> Catalog:
        paths = FileList.of(self.pictures)
        labels = np.arange(len(paths), dtype=np.int32) % 2
        images = np.repeat(np.arange(len(paths), dtype=np.int32), 1 + labels)
        first = np.diff(images, prepend=-1) > 0
        boxes = Boxes(images, np.where(first[:, None], *BOXES), labels[images])
        annotated, by_box = np.ones(len(paths), bool), split == "train" and self.config.unit == "box"
        return Catalog(split, paths, [""], annotated, labels, ("cat", "dog"), boxes, by_box=by_box)

    def image(self, catalog: Catalog, item: int) -> bytes:
        return self.pictures[catalog.paths[item]]


class Samples(Source):
    """The pictures of tests/support/routes.py, whole."""

    def catalog(self, split: str, world: World) -> Catalog:
        chosen = self.samples(split)
        paths, labels = FileList.of(sample.name for sample in chosen), [CLASSES.index(one.label) for one in chosen]
        boxes = Boxes(np.arange(len(paths), dtype=np.int32), np.float32([[0, 0, 1, 1]] * len(paths)), np.int32(labels))
        return Catalog(split, paths, [""], np.zeros(len(paths), bool), np.int32(labels), CLASSES, boxes)

    def image(self, catalog: Catalog, item: int) -> bytes:
        return self.samples(catalog.split)[item].file

    @staticmethod
    @functools.cache
    def samples(split: str) -> list[Sample]:
        return samples(12) if split == "train" else [samples(45)[number] for number in (13, 16, 31)]
