"""Where a config's data comes from, and whether it is there: asked before anything is loaded."""

from pathlib import Path

from tfpipe.config import DataConfig, Source
from tfpipe.data.filelist import check_filelists
from tfpipe.errors import ConfigError

# Of the names of files, as the scripts of TensorFlow's models have them.
PREFIX = {"train": "train", "test": "validation"}


def manifest_path(folder: Path, split: str) -> Path:
    """Where `tfpipe pack` says what is packed of `split`."""
    return folder / f"{PREFIX[split]}.json"


def record_files(folder: Path, split: str) -> list[Path]:
    """The TFRecords of `split` in a folder, sorted: train-00000-of-01024 ..."""
    return sorted(path for path in folder.glob(f"{PREFIX[split]}-*-of-*") if not path.name.endswith(".npy"))


def source_of(config: DataConfig) -> Source:
    """What is packed, of a config that reads packed data."""
    assert config.source is not None, "data.source is set"
    return config.source


def has_test(config: DataConfig) -> bool:
    """Whether there is test data."""
    if config.source is None:
        return config.test_filelist is not None
    if config.source.kind == "packed":
        return manifest_path(config.source.path, "test").exists()
    return bool(record_files(config.source.path, "test"))


def check_data(config: DataConfig, test: bool = False) -> None:
    """Makes sure, without reading it, that the training data is there; and the test data, where there should be.

    Raises:
        ConfigError: it is not; says what is missing, and how to make it.
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
    """What to call the training data in a message."""
    if config.source is not None:
        return str(config.source.path)
    return " + ".join(map(str, config.train_lists))
