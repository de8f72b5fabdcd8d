"""Configs and lists of the small data set that the tests train on."""

import json
from pathlib import Path
from typing import Any, NamedTuple

# The ALCF tutorial's own config, as it stands there.
TUTORIAL = {
    "data": {
        "handler": "ilsvrc_dataset",
        "batch_size": 128,
        "train_filelist": "/lus/theta-fs0/software/datascience/ImageNet/ILSVRC/ilsvrc_train_filelist.txt",
        "test_filelist": "/lus/theta-fs0/software/datascience/ImageNet/ILSVRC/ilsvrc_val_filelist.txt",
        "shuffle_buffer": 200000,
        "reshuffle_each_iteration": True,
        "num_parallel_readers": 1,
        "prefectch_buffer_size": 0,
        "crop_image_size": [256, 256],
        "num_classes": 1000,
        "num_channels": 3,
    }
}


TINY = {"name": "tests.support.models:tiny"}


class SampleData(NamedTuple):
    """A small data set in ImageNet's layout, with its filelists."""

    root: Path
    train: Path
    val: Path

    @property
    def classes(self) -> list[str]:
        """The names of its folders, sorted."""
        return sorted(path.name for path in (self.root / "Data/CLS-LOC/train").iterdir())

    def config(self, path: Path, **sections: Any) -> Path:
        """Writes a config for it at `path`: small and quick unless `sections` say otherwise."""
        data = {
            "train_filelist": str(self.train),
            "test_filelist": str(self.val),
            "test_label_file": str(self.root / "LOC_val_solution.csv"),
            "crop_image_size": [32, 32],
            "batch_size": 16,
            **sections.pop("data", {}),
        }
        whole = {"model": TINY, "training": {"epochs": 1}, **sections, "data": data}
        path.write_text(json.dumps(whole))
        return path


def make_sample(root: Path, images: int, val_images: int, scale: float = 0.2) -> SampleData:
    """Draws images of 8 classes at a share of the size into `root`, and writes their filelists."""
    from tfpipe.data.catalog.filelist import write_filelist
    from tfpipe.prepare.trees import scan
    from tfpipe.tools.sample.sample import write_sample

    write_sample(root / "tree", images=images, val_images=val_images, scale=scale)
    lists = {split: root / f"{split}.txt" for split in ("train", "val")}
    for split, paths in scan(root / "tree", show=False).items():
        write_filelist(lists[split], paths)
    return SampleData(root / "tree", lists["train"], lists["val"])
