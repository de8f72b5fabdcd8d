"""The exact test pass: every sample once, divided over the ranks, with one reduction of the sums."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfpipe.data.batch import Batch, split_weights
from tfpipe.data.loader import Loader
from tfpipe.errors import TfpipeError, counted
from tfpipe.training.checkpointing.resume import Checkpoints, inner_optimizer
from tfpipe.training.compile import build_loss
from tfpipe.training.monitor.metrics import end_process
from tfpipe.training.monitor.record import Logs
from tfpipe.training.monitor.stalls import StallWatch
from tfpipe.training.run_model import RunCallback, RunModel, class_numbers
from tfpipe.training.skipping import BadFiles
from tfpipe.util.progress import progress

logger = logging.getLogger(__name__)

SCALARS = 6


class Scores(NamedTuple):
    """Result of a test pass: means over all crops of all ranks, and the number of images and crops."""

    loss: float  # without the crops of the class `loss.args.ignore_class`
    top1: float
    top5: float
    macro_recall: float  # share of a class's crops whose class is predicted, averaged over the classes in the test data
    images: int
    crops: int


class Evaluator:
    """The test pass, to run repeatedly."""

    def __init__(
        self,
        loader: Loader,
        classes: int,
        run_dir: Path,
        observe: Callable[[Any, np.ndarray, np.ndarray], None] | None = None,
        *,
        show: bool = False,
        end: Callable[[str], None] = end_process,
    ) -> None:
        """Takes the test data by name, the number of outputs, and the run's directory.

        `observe` is called with the images, the labels and the predicted classes, int [batch], of each of this rank's
        batches; `show` shows the progress; `end` ends the process with a message if the pass hangs.
        """
        self.loader, self.classes, self.observe, self.show, self.end = loader, classes, observe, show, end
        self.bad_files = BadFiles(run_dir, loader)
        self.loss = build_loss(loader.config, classes, reduction="none")
        # The last batch may be smaller than the others: one trace serves both.
        self.tested = tf.function(
            lambda model, images, labels: self._compare(model(images, training=False), labels),
            reduce_retracing=True,
            autograph=False,
        )

    def run(self, model: keras.Model, stop: Callable[[], bool] = lambda: False) -> Scores | None:
        """Runs one test pass over all ranks' shares; every rank must call it.

        `model` has logits as outputs; `stop`, called before each batch, ends the pass early if it returns True. Returns
        the scores, None if any rank ended early. Raises TfpipeError if a file cannot be used, or the number of images
        seen differs from the filelist's.
        """
        stopped = 0.0
        sums = np.zeros(SCALARS + 2 * self.classes)
        for batch in whole_pass(self.loader, "testing", show=self.show, end=self.end):
            if stop():
                stopped = 1.0
                break
            images, labels, _ = split_weights(batch.data, "the test pass of tfpipe")
            sums += self._sums(model, images, labels, batch.positions)
        *summed, stopped = self.loader.world.sum(np.append(sums, stopped))
        if stopped:
            return None
        result = summarise(np.array(summed), self.classes)
        catalog, dropped = self.loader.catalog, self._list_dropped(model)
        if not catalog.by_object and result.images + dropped != len(catalog):
            raise TfpipeError(f"the test pass saw {result.images} of {len(catalog)} images of {catalog.display_name}")
        return result

    def _list_dropped(self, model: keras.Model) -> int:
        """Lists and counts the images that all ranks left out."""
        if self.loader.config.data.on_error != "skip":
            return 0
        images = self.bad_files.add(model.meter.steps if isinstance(model, RunModel) and model.meter else 0)
        if images:
            logger.warning("%s left out, see %s", counted(images, "test image"), self.bad_files.path)
        self.bad_files.check(images)
        return images

    def _sums(self, model: keras.Model, images: tf.Tensor, labels: tf.Tensor, positions: tf.Tensor) -> np.ndarray:
        """Returns the sums over one batch, float64 [SCALARS + 2 * classes], in the order that `summarise` expects."""
        if keras.backend.backend() == "tensorflow":
            tested, truth = self.tested(model, images, labels), labels.numpy()
        else:
            truth = labels.numpy()
            logits = keras.ops.convert_to_tensor(model.predict_on_batch(images.numpy()))
            tested = self._compare(logits, keras.ops.convert_to_tensor(truth))
        losses, predicted, hits5 = (keras.ops.convert_to_numpy(values) for values in tested)
        truth = truth.argmax(axis=1) if truth.ndim == 2 else truth
        hits = predicted == truth
        if self.observe is not None:
            self.observe(images, truth, predicted)
        first = positions.numpy()[:, 1] == 0
        ignored = getattr(self.loss, "ignore_class", None)
        counted = len(truth) if ignored is None else int((truth != ignored).sum())
        scalars = [losses.sum(dtype=np.float64), counted, hits.sum(), hits5.sum(), first.sum(), len(truth)]
        counts = (np.bincount(some, minlength=self.classes) for some in (truth, truth[hits]))
        return np.concatenate([scalars, *counts])

    def _compare(self, logits: Any, labels: Any) -> tuple[Any, Any, Any]:
        """Returns loss, float [batch], predicted class, int [batch], and top-5 hits, bool [batch], of each crop."""
        top5 = keras.ops.in_top_k(class_numbers(labels), logits, min(5, self.classes))
        return self.loss(labels, logits), keras.ops.argmax(logits, axis=1), top5


def whole_pass(
    loader: Loader, label: str, *, show: bool = False, end: Callable[[str], None] = end_process
) -> Iterator[Batch]:
    """Yields the batches of one pass over this rank's test data, watched for stalls, which `end` ends.

    `label` names the work for the progress, which `show` shows.
    """
    meter, batch_size = loader.meter, loader.data.config.batch_size
    meter.open, meter.steps = None, 0
    with StallWatch(loader, name="test batch", end=end):
        loader.restart()
        batches = -(-loader.data.order.length // (loader.world.size * batch_size))
        for batch in progress(loader.this_pass(), batches, label, "batch", show):
            yield batch
            meter.steps += 1


def summarise(sums: np.ndarray, classes: int) -> Scores:
    """Computes the means from sums over crops, float64 [SCALARS + 2 * classes]: loss, crops that it counts, top-1 hits,
    top-5 hits, images, crops, then the crops of each class, then the top-1 hits of each class.
    """
    loss, counted, top1, top5, images, crops = sums[:SCALARS]
    of_class, hits = sums[SCALARS : SCALARS + classes], sums[SCALARS + classes :]
    there = of_class > 0
    if crops == 0:
        raise TfpipeError("the test pass saw no crop: no test image holds an object of a known class")
    recall = float(np.mean(hits[there] / of_class[there]))
    return Scores(loss / max(counted, 1), top1 / crops, top5 / crops, recall, int(images), int(crops))


class Evaluation(RunCallback):
    """Runs the test pass every `every` epochs and after the last, and adds test_*; a run that stops postpones it.

    It tests the weights that model.keras would have: with `use_ema` the optimizer's averages.
    """

    def __init__(self, evaluator: Evaluator, every: int, checkpoints: Checkpoints) -> None:
        super().__init__()
        self.evaluator, self.every, self.checkpoints = evaluator, every, checkpoints

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if (epoch + 1) % self.every and epoch + 1 != self.checkpoints.epochs:
            return
        with averaged_weights(self.model):
            scores = self.evaluator.run(self.model, lambda: self.model.granted.stop or bool(self.checkpoints.stop))
        if scores is None:
            self.checkpoints.stop_untested(epoch, logs)
        logs.update({f"test_{name}": value for name, value in scores._asdict().items()})


@contextmanager
def averaged_weights(model: RunModel) -> Iterator[None]:
    """Gives `model` the weights that its optimizer averages (`use_ema`), if it does, inside `with`.

    Weights that change inside keep their new values.
    """
    if not inner_optimizer(model).use_ema:
        yield
        return
    weights = model.trainable_weights
    before = [weight.numpy() for weight in weights]
    model.optimizer.finalize_variable_values(weights)
    averages = [weight.numpy().tobytes() for weight in weights]
    try:
        yield
    finally:
        for weight, value, average in zip(weights, before, averages, strict=True):
            if weight.numpy().tobytes() == average:
                weight.assign(value)
