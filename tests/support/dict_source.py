"""A source of the user's own: pictures in a dict in memory, as `data.source.kind` names it."""

import time

import numpy as np

from tests.support.images import encoded, picture
from tfpipe import Source, World
from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import Boxes
from tfpipe.data.catalog.filelist import FileList
from tfpipe.data.catalog.types import Catalog

BOXES = np.array([[0.1, 0.1, 0.9, 0.6], [0.2, 0.3, 0.7, 1.0]], np.float32)


class Pictures(Source):
    """48 pictures, of which the dogs have two boxes each, the cats one. `args`: cut, bytes left by name; delay_s."""

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
        time.sleep(self.args.get("delay_s", 0))
        return self.pictures[catalog.paths[item]]
