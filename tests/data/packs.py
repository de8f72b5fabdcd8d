"""What tests of packed data share: a sample packed, and its config."""

from pathlib import Path

from tests.conftest import SampleData
from tfpipe import Config, World, build_dataset, load_config
from tfpipe.data.pack import Plan, pack

LOOSE = {"train_filelist": None, "test_filelist": None, "test_label_file": None}


def config_of(sample: SampleData, folder: Path, kind: str | None = None, source: Path | None = None, **data) -> Config:
    """Of the loose files, or of what is packed at `source`."""
    if kind is not None:
        data = {**LOOSE, "source": {"kind": kind, "path": str(source)}, **data}
    return load_config(sample.config(folder / "config.json", data=data))


def packed(config: Config, out: Path, kind: str, shards: int = 5, splits: tuple[str, ...] = ("train", "test")) -> Path:
    """Packs both splits into `out`."""
    for split in splits:
        pack(config.data, split, out, Plan(kind, shards), World())
    return out


def crops(config: Config, split: str, world: World = World(), steps: int = -1, **how: object) -> list[tuple]:
    """(position, crop, label, pixels) of each crop in the first `steps` batches, or in all."""
    seen = []
    for images, labels, positions in (
        build_dataset(config, split, world, with_positions=True, **how).take(steps).as_numpy_iterator()
    ):
        seen += [
            (int(position), int(crop), int(label), image.tobytes())
            for (position, crop), label, image in zip(positions, labels, images, strict=True)
        ]
    return seen
