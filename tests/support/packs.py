"""Packs of the sample, and configs that read them."""

from pathlib import Path

from tests.support.sample import SampleData
from tfpipe import Config, World, load_config
from tfpipe.prepare.pack import PackPlan, pack

LOOSE = {"train_filelist": None, "test_filelist": None, "test_label_file": None}


def config_of(sample: SampleData, folder: Path, kind: str | None = None, source: Path | None = None, **data) -> Config:
    """A config of the loose files, or of what is packed at `source`."""
    if kind is not None:
        data = {**LOOSE, "source": {"kind": kind, "path": str(source)}, **data}
    return load_config(sample.config(folder / "config.json", data=data))


def packed(config: Config, out: Path, kind: str, shards: int = 5, splits: tuple[str, ...] = ("train", "test")) -> Path:
    """Packs both splits into `out`."""
    for split in splits:
        pack(config.data, split, out, PackPlan(kind, shards), World())
    return out
