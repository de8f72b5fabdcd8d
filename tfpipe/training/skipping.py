"""`data.on_error` "skip" in training: counts and lists the samples that any rank left out, and ends the run if there
are too many."""

import logging
from pathlib import Path

import keras
import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.failures.missing import Dropped, DroppedSample
from tfpipe.data.order.stream import Stream
from tfpipe.distributed import World
from tfpipe.errors import TfpipeError

logger = logging.getLogger(__name__)

BAD_FILES = "bad_files.txt"
HEADING = "step\trank\tsplit\tposition\tfile\treason\n"


class Skipping(keras.callbacks.Callback):
    """Counts left-out images every `interval` steps and before checkpoints; adds dropped_images to an epoch's logs.

    All ranks count after the same step, in one collective.
    """

    def __init__(
        self,
        catalog: Catalog,
        config: DataConfig,
        world: World,
        stream: Stream,
        run_dir: Path,
        interval: int,
        before: int = 0,
    ) -> None:
        """Takes the training data and its stream, the run's directory, and the steps between two counts.

        `before` is the number of images that the interrupted epoch had left out.
        """
        super().__init__()
        self.dropped = Dropped(catalog, config, world, stream)
        self.world, self.interval = world, interval
        self.record = BadFiles(run_dir, world, catalog, config.max_bad_fraction)
        self.positions: list[np.ndarray] = []
        self.before = before

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.model.dropped_images, self.before = self.before, 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.positions.append(self.model.positions.numpy())
        # Before a checkpoint too: a run that continues from it must not lose what was left out before it.
        if len(self.positions) == self.interval or any(self.model.granted):
            self._look()

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        self._look()
        logs["dropped_images"] = images = self.model.dropped_images
        if images:
            logger.warning("epoch %d: %d images were left out, see %s", epoch + 1, images, self.record.path)

    def _look(self) -> None:
        left, self.positions = self.dropped.look(self.positions), []
        self.model.dropped_images += self.record.add(self.model.meter.steps, left)
        self.record.check(self.model.dropped_images)


class BadFiles:
    """The list of left-out samples in the run's directory; rank 0 writes it."""

    def __init__(self, run_dir: Path, world: World, catalog: Catalog, max_fraction: float) -> None:
        """Takes the run's directory, this rank, the split's catalog, and the largest share that may be left out."""
        self.path = run_dir / BAD_FILES
        self.world, self.catalog, self.max_fraction = world, catalog, max_fraction

    def add(self, step: int, found: list[DroppedSample]) -> int:
        """Lists the samples that ranks have left out, and returns their number; every rank must call."""
        count = int(self.world.sum(np.array([float(len(found))]))[0])
        if count:
            lines = self.world.gather(
                [
                    f"{step}\t{self.world.rank}\t{self.catalog.split}\t{position}\t{failure.path}\t{failure.reason}\n"
                    for position, failure in found
                ]
            )
            if self.world.rank == 0:
                heading = "" if self.path.exists() else HEADING
                with self.path.open("a") as file:
                    file.write(heading + "".join(line for rank in lines for line in rank))
        return count

    def check(self, images: int) -> None:
        """Checks the number of images that an epoch or a test pass left out.

        Raises TfpipeError if it exceeds `data.max_bad_fraction`.
        """
        samples = self.catalog.samples
        if images > self.max_fraction * samples:
            raise TfpipeError(
                f"rank {self.world.rank}: {images} of {samples} {self.catalog.split} samples cannot be used, more than "
                f"the {self.max_fraction:.4g} that data.max_bad_fraction lets be left out; they are listed in "
                f"{self.path}, and tfpipe check finds all such files"
            )
