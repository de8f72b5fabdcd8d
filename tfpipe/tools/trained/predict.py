"""Predicts the classes of images with a trained model, by the pipeline that its test pass has."""

import csv
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.batch import split_weights
from tfpipe.data.failures.missing import DroppedSample
from tfpipe.data.loader import Loader
from tfpipe.data.split import sample_names
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError, counted
from tfpipe.tools.trained.passes import class_name, open_images, open_test
from tfpipe.training.evaluate import whole_pass
from tfpipe.training.saved import CLASSES, check_meaning, check_outputs, load_model, read_classes
from tfpipe.util.atomic_write import atomic_write, writing

logger = logging.getLogger(__name__)

USER, TOP = "tfpipe predict", 5
PROBABILITY_DIGITS = 6


class Predictions(NamedTuple):
    """Predictions for n crops, in the order of the images."""

    positions: np.ndarray  # int64 [n, 2]: number of the image, and of the crop in it
    labels: np.ndarray  # int32 [n]: classes; 0 if the images have no labels
    classes: np.ndarray  # int32 [n, top]: predicted classes, the most probable first
    probabilities: np.ndarray  # float32 [n, top]


class Prediction(NamedTuple):
    """Result of a prediction over all ranks."""

    loader: Loader  # closed; knows the images' names
    predictions: Predictions
    names: tuple[str, ...]  # class names, by number
    labelled: bool  # whether the images have labels
    dropped: Sequence[DroppedSample]  # images that `data.on_error` "skip" has left out
    seconds: float  # from the start of the pass to its end on the slowest rank


def predict(config: Config, model_path: Path, inputs: Sequence[Path], top: int | None, world: World) -> Prediction:
    """Predicts the `top` most probable classes of the images `inputs`, or of the config's test data if there are none.

    Without `top` they are TOP classes, or all if there are fewer. Every rank must call. Raises ConfigError if the model
    cannot be loaded or was trained on other data, or an input holds no image; TfpipeError if a file cannot be used.
    """
    meaning = read_classes(model_path)
    model = load_model(model_path, config)
    top = chosen_top(top, model.output_shape[-1], model_path)
    if inputs:
        names = () if meaning is None else meaning.classes
        if meaning is None:
            logger.warning("no %s lies next to %s: classes are written as their numbers", CLASSES, model_path)
        else:
            check_meaning(meaning, model_path, names, config.data)
        loader = open_images(config, inputs, names, world)
    else:
        loader = open_test(config, world)
        names = loader.data.classes
        check_meaning(meaning, model_path, names, config.data)
        check_outputs(model, model_path, loader.data.outputs)
    started_s = time.monotonic()
    with loader:
        parts = list(_predict(model, loader, top))
        dropped = loader.dropped()
    seconds = time.monotonic() - started_s
    predictions = Predictions(*map(np.concatenate, zip(*parts, strict=True)))
    ranks = world.gather((predictions, dropped, seconds))
    total = Predictions(*map(np.concatenate, zip(*(part for part, *_ in ranks), strict=True)))
    order = np.lexsort(total.positions.T[::-1])
    total = Predictions(*(column[order] for column in total))
    left_out = sorted((sample for _, part, _ in ranks for sample in part), key=lambda sample: sample.position)
    images = int((total.positions[:, 1] == 0).sum())
    if not loader.catalog.by_object and images + len(left_out) != len(loader.catalog):
        raise TfpipeError(f"the pass saw {images} of {len(loader.catalog)} images")
    return Prediction(loader, total, names, not inputs, left_out, max(spent for *_, spent in ranks))


def chosen_top(top: int | None, outputs: int, model: Path) -> int:
    """Returns the number of classes to write; raises ConfigError if a model has not so many outputs."""
    if top is not None and top > outputs:
        raise ConfigError(f"--top {top}: {model} has {counted(outputs, 'output')}; accepted: 1 to {outputs}")
    return min(TOP, outputs) if top is None else top


def write_predictions(predicted: Prediction, path: Path) -> None:
    """Writes a row for each crop to the CSV at `path`: path, class and probability, of several classes by their place.

    Images with labels have a column with the crop's number in its image, and one with its class. Raises ConfigError if
    the file cannot be written.
    """
    rows, names = predicted.predictions, predicted.names
    items, crops = rows.positions.T.tolist()
    columns: dict[str, Sequence[Any]] = {"path": sample_names(predicted.loader.data, items)}
    if predicted.labelled:
        columns |= {"crop": crops, "label": [class_name(names, label) for label in rows.labels.tolist()]}
    for place in range(rows.classes.shape[1]):
        suffix = f"_{place + 1}" if place else ""
        columns[f"class{suffix}"] = [class_name(names, number) for number in rows.classes[:, place].tolist()]
        probabilities = rows.probabilities[:, place].tolist()
        columns[f"probability{suffix}"] = [f"{value:.{PROBABILITY_DIGITS}g}" for value in probabilities]
    with writing(path), atomic_write(path) as partial:
        # A path need not be UTF-8.
        with partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(columns)
            table.writerows(zip(*columns.values(), strict=True))


def _predict(model: keras.Model, loader: Loader, top: int) -> Iterator[Predictions]:
    """Yields the predictions for no image, and then for each of this rank's batches."""
    of_top = np.zeros((0, top), np.int32)
    yield Predictions(np.zeros((0, 2), np.int64), np.zeros(0, np.int32), of_top, of_top.astype(np.float32))
    run = _top_classes(model, top)
    for batch in whole_pass(loader, "predicting", show=loader.world.rank == 0):
        images, labels, _ = split_weights(batch.data, USER)
        probabilities, classes = run(images)
        yield Predictions(batch.positions.numpy(), labels.numpy(), classes.astype(np.int32), probabilities)


def _top_classes(model: keras.Model, top: int) -> Callable[[tf.Tensor], tuple[np.ndarray, np.ndarray]]:
    """Returns a function from images to the probabilities and numbers of the `top` classes, [batch, top] each."""

    def best(logits: Any) -> Any:
        return keras.ops.top_k(keras.ops.softmax(keras.ops.cast(logits, "float32")), top)

    if keras.backend.backend() == "tensorflow":
        # The last batch may be smaller than the others: one trace serves both.
        traced = tf.function(lambda images: best(model(images, training=False)), reduce_retracing=True, autograph=False)
        return lambda images: tuple(part.numpy() for part in traced(images))

    def run(images: tf.Tensor) -> Any:
        logits = keras.ops.convert_to_tensor(model.predict_on_batch(images.numpy()))
        return tuple(keras.ops.convert_to_numpy(part) for part in best(logits))

    return run
