"""Test passes of a trained model: the images that it is shown, its scores, and the confusion of classes."""

import math
from collections import Counter, defaultdict
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
from tfpipe.training.evaluate import Evaluator, Scores
from tfpipe.training.saved import check_meaning, check_outputs, load_model, read_classes
from tfpipe.util.console import line

# Settings of data that has a list, labels, boxes or workers of its own, which images given by path do not have.
BY_PATH = {"source": None, "test_filelist": None, "annotations": "none", "label_source": "directory"}
BY_PATH |= {"service": None, "cache": None}
# Up to this many classes, the table has all of them; above, the worst.
NAMED = 40


class ClassScores(NamedTuple):
    """A class in the test data."""

    name: str
    crops: int  # crops of the class
    predicted: int  # crops that are predicted as the class
    recall: float | None  # share of its crops that are predicted as it; None without a crop
    precision: float | None  # share of the crops predicted as it that are of it; None without one
    mistaken_for: str | None  # the class that its crops are most often mistaken for; None if none is
    mistaken: int  # crops that are


class Confusion:
    """The number of crops of each pair of a class and a predicted class; pairs without a crop take no memory."""

    def __init__(self, classes: int) -> None:
        """Takes the number of the model's outputs."""
        self.classes = classes
        self._counts = Counter[tuple[int, int]]()

    def add(self, labels: np.ndarray, predicted: np.ndarray) -> None:
        """Counts the crops of a batch: their classes and the predicted ones, int [batch]."""
        self._counts.update(zip(labels.tolist(), predicted.tolist(), strict=True))

    def over(self, world: World) -> "Confusion":
        """Returns the sum over all ranks; every rank must call."""
        total = Confusion(self.classes)
        for counts in world.gather(self._counts):
            total._counts.update(counts)
        return total

    def pairs(self) -> np.ndarray:
        """Returns the pairs that have crops, sorted: class, predicted class and number of crops, int64 [n, 3]."""
        return np.array([(*pair, count) for pair, count in sorted(self._counts.items())], np.int64).reshape(-1, 3)

    def by_class(self, names: Sequence[str]) -> list[ClassScores]:
        """Returns the scores of every class; `names` by number, and a number itself beyond them."""
        crops, taken = Counter[int](), Counter[int]()
        mistakes: dict[int, Counter[int]] = defaultdict(Counter)
        for truth, predicted, count in self.pairs().tolist():
            crops[truth] += count
            taken[predicted] += count
            if truth != predicted:
                mistakes[truth][predicted] = count
        scores = []
        for number in range(self.classes):
            hits = self._counts[number, number]
            recall = hits / crops[number] if crops[number] else None
            precision = hits / taken[number] if taken[number] else None
            # Of equal counts, the smallest class comes first.
            other, count = next(iter(mistakes[number].most_common(1)), (None, 0))
            mistaken_for = None if other is None else class_name(names, other)
            name = class_name(names, number)
            scores.append(ClassScores(name, crops[number], taken[number], recall, precision, mistaken_for, count))
        return scores


def class_name(names: Sequence[str], number: int) -> str:
    """Returns the name of an output, or its number if no class has it."""
    return names[number] if number < len(names) else str(number)


def class_table(scores: Sequence[ClassScores]) -> list[str]:
    """Returns the lines of the table of classes: all, or those with the lowest recall if they are many."""
    there = [each for each in scores if each.crops]
    shown = sorted(there, key=lambda each: each.recall or 0.0) if len(there) > NAMED else there
    widths = (28, 8, 8, 10)
    lines = [line(widths, "class", "crops", "recall", "precision", "   most often mistaken for")]
    for each in shown[:NAMED]:
        name = each.name if len(each.name) <= 26 else f"{each.name[:25]}…"
        mistake = f"   {each.mistaken_for} ({each.mistaken})" if each.mistaken_for else ""
        precision = "-" if each.precision is None else f"{each.precision:.3f}"
        lines.append(line(widths, name, each.crops, f"{each.recall:.3f}", precision, mistake))
    if len(there) > NAMED:
        lines.append(f"the {NAMED} of {len(there)} classes with the lowest recall; --json OUT writes all")
    return lines


def as_json(confusion: Confusion, scores: Sequence[ClassScores]) -> dict[str, Any]:
    """Returns the scores of all classes, and the pairs of classes that have crops: [class, predicted, crops]."""
    return {"classes": [each._asdict() for each in scores], "confusion": confusion.pairs().tolist()}


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
    paths = world.from_rank0(lambda: FileList.concat([read_input(path) for path in inputs]))
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


def evaluate(config: Config, model_path: Path, world: World) -> tuple[Scores, Confusion, tuple[str, ...]]:
    """Runs the test pass of a saved model over the config's test data; every rank must call.

    Returns the scores and the confusion over all ranks, and the names of the classes, by number.
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
    return scores, confusion.over(world), loader.data.classes
