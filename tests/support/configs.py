"""Configs of the sample, and changes to them."""

from pathlib import Path

from tests.support.sample import SampleData
from tfpipe import Config, load_config


def changed(config: Config, **data: object) -> Config:
    """Another config, with these keys of its data section."""
    return config.model_copy(update={"data": config.data.model_copy(update=data)})


def config_here(sample: SampleData, tmp_path: Path, **data: object) -> Config:
    """A config of the sample's files where they lie."""
    return load_config(sample.config(tmp_path / "local.json", data=data))


def config_of(sample: SampleData, tmp_path: Path, root: str, remote: dict | None = None, **data: object) -> Config:
    """A config of the sample's lists, with `root` in the place of its folder."""
    for split, path in (("train", sample.train), ("val", sample.val)):
        (tmp_path / f"{split}.txt").write_text(path.read_text().replace(str(sample.root), root))
    lists = {"train_filelist": "train.txt", "test_filelist": "val.txt", "remote": remote or {}}
    return load_config(sample.config(tmp_path / "remote.json", data={**lists, **data}))
