"""Test passes of a trained model: the images that it is shown, a config's test data or others, and its scores."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfpipe.config import Config
from tfpipe.data.catalog.class_folders import SUFFIXES
from tfpipe.data.catalog.filelist import read_filelist
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.loader import Loader
from tfpipe.data.sources.catalogs import apply_settings, images_catalog
from tfpipe.data.sources.files import kind_of
from tfpipe.data.sources.registry import open_source
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.tools.trained.confusion import Confusion
from tfpipe.training.evaluate import Evaluator, Scores
from tfpipe.training.saved import check_meaning, check_outputs, load_model, read_classes

# Settings of data that has a list, labels, boxes or workers of its own, which images given by path do not have.
BY_PATH = {"source": None, "test_filelist": None, "annotations": "none", "label_source": "directory"}
BY_PATH |= {"service": None, "cache": None}


def open_test(config: Config, world: World) -> Loader:
    """Opens the config's test data by name; every rank must call. Raises ConfigError if there is none."""
    source = open_source(config.data)
    if not source.has_test():
        raise ConfigError(
            "the config has no test data: set data.test_filelist, or with data.source its test_path or test_share"
        )
    return Loader(config, "test", world, timeout_s=math.inf, named=True, max_bad_fraction=math.inf)


def open_images(config: Config, inputs: Sequence[Path], classes: tuple[str, ...], world: World) -> Loader:
    """Opens images as the config's test data are, but used whole and all with label 0; every rank must call.

    `inputs` are filelists, folders and images, `classes` the model's. Raises ConfigError if an input has no image.
    """
    paths = world.from_rank0(lambda: FileList.joined([read_input(path) for path in inputs]))
    # The crop follows from the label source if it is not set.
    test = config.data.for_split("test").model_copy(update={"test_crop": config.data.crop_for("test"), **BY_PATH})
    data = test.model_copy(update={"batch_size": test.phases[-1][1].batch_size})
    catalog = images_catalog("test", paths, np.zeros(len(paths), np.int32), classes)
    catalog = replace(catalog, display_name=" + ".join(map(str, inputs)))
    catalog = apply_settings(data, catalog, show=world.rank == 0)
    split = kind_of(paths)(data, catalog, world)
    config = config.model_copy(update={"data": data})
    return Loader(config, "test", world, timeout_s=math.inf, named=True, max_bad_fraction=math.inf, data=split)


def read_input(path: Path) -> FileList:
    """Returns the images of a filelist or a folder, or an image itself. Raises ConfigError if there is none."""
    if path.suffix.lower() in SUFFIXES and not path.is_dir():
        if not path.is_file():
            raise ConfigError(f"there is no image {path}")
        return FileList.of([str(path.absolute())])
    return read_filelist(path)


class Evaluated(NamedTuple):
    """Result of a test pass over all ranks."""

    scores: Scores
    confusion: Confusion
    names: tuple[str, ...]  # class names, by number


def evaluate(config: Config, model_path: Path, world: World) -> Evaluated:
    """Runs the test pass of a saved model over the config's test data; every rank must call.

    Images that are left out are listed in bad_files.txt next to the model. Raises ConfigError if the model cannot be
    loaded, or was trained on other classes or images; TfpipeError if a file cannot be used.
    """
    meaning = read_classes(model_path)
    loader = open_test(config, world)
    check_meaning(meaning, model_path, loader.data.classes, config.data)
    model = load_model(model_path, config)
    check_outputs(model, model_path, loader.data.outputs)
    confusion = Confusion(loader.data.outputs)

    def count(_: Any, labels: np.ndarray, predicted: np.ndarray) -> None:
        confusion.add(labels, predicted)

    with loader:
        evaluator = Evaluator(loader, loader.data.outputs, model_path.parent, count, show=world.rank == 0)
        scores = evaluator.run(model)
    assert scores is not None, "nothing stops the pass"
    return Evaluated(scores, confusion.over(world), loader.data.classes)
