"""Finds the data of a config and checks that it exists, before anything is loaded."""

from pathlib import Path

from tfpipe.config import DataConfig, Source
from tfpipe.data.filelist import check_filelists
from tfpipe.errors import ConfigError

# Prefixes of file names by split, as in the scripts of TensorFlow's models.
PREFIX = {"train": "train", "test": "validation"}


def manifest_path(folder: Path, split: str) -> Path:
    """Returns the path of the manifest that `tfpipe pack` writes for `split`."""
    return folder / f"{PREFIX[split]}.json"


def record_files(folder: Path, split: str) -> list[Path]:
    """Returns the TFRecord files of `split` in a folder, sorted: train-00000-of-01024 ..."""
    return sorted(path for path in folder.glob(f"{PREFIX[split]}-*-of-*") if not path.name.endswith(".npy"))


def source_of(config: DataConfig) -> Source:
    """Returns `data.source`, which must be set."""
    assert config.source is not None, "data.source is set"
    return config.source


def has_test(config: DataConfig) -> bool:
    """Returns whether the config has test data."""
    if config.source is None:
        return config.test_filelist is not None
    if config.source.kind == "packed":
        return manifest_path(config.source.path, "test").exists()
    return bool(record_files(config.source.path, "test"))


def check_data(config: DataConfig, test: bool = False) -> None:
    """Checks, without reading them, that the training data exists and, with `test`, the test filelist too.

    Raises:
        ConfigError: data is missing; the message says which, and how to make it.
    """
    source = config.source
    if source is None:
        check_filelists([*config.train_lists, *([config.test_filelist] if test else [])])
    elif source.kind == "packed" and not manifest_path(source.path, "train").exists():
        raise ConfigError(
            f"data.source: there is no {manifest_path(source.path, 'train')}; an interrupted pack goes on with the "
            f"same command: tfpipe pack -c CONFIG --out {source.path}"
        )
    elif source.kind == "tfrecord" and not record_files(source.path, "train"):
        raise ConfigError(f"data.source: there is no {source.path}/train-*-of-*, as TFRecords of ImageNet are named")


def where(config: DataConfig) -> str:
    """Returns the name of the training data for a message: paths of the packed folder or of the filelists."""
    if config.source is not None:
        return str(config.source.path)
    return " + ".join(map(str, config.train_lists))
