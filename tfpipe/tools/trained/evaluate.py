"""Tests a trained model as its training did: every test sample once, with the same counts."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfpipe.config import Config
from tfpipe.distributed import World
from tfpipe.tools.trained.confusion import Confusion
from tfpipe.tools.trained.loading import open_test
from tfpipe.training.evaluate import Evaluator, Scores
from tfpipe.training.saved import check_meaning, check_outputs, load_model, read_classes


class Evaluated(NamedTuple):
    """Result of a test pass over all ranks."""

    scores: Scores
    confusion: Confusion
    names: tuple[str, ...]  # class names, by number


def evaluate(config: Config, model_path: Path, world: World) -> Evaluated:
    """Runs the test pass of a saved model over the config's test data; every rank must call.

    Images that `data.on_error` "skip" leaves out are listed in bad_files.txt next to the model.

    Raises:
        ConfigError: the model cannot be loaded, or was trained on other classes or other images.
        TfpipeError: a file cannot be used, or the number of images seen differs from the filelist's.
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
