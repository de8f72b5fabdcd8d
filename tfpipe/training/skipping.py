"""`data.on_error` "skip" in training: counts and lists the samples that any rank left out, and ends the run if there
are too many."""

import logging
import re
from pathlib import Path

import numpy as np

from tfpipe.data.failures.missing import check_fraction
from tfpipe.data.loader import Loader
from tfpipe.errors import counted
from tfpipe.training.run_model import RunCallback

logger = logging.getLogger(__name__)

BAD_FILES = "bad_files.txt"
ENDS = re.compile(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
HEADING = "step\trank\tsplit\tposition\tfile\treason\n"


class Skipping(RunCallback):
    """Counts left-out images every `interval` steps and before checkpoints; adds dropped_images to an epoch's logs.

    All ranks count after the same step, in one collective.
    """

    def __init__(self, loader: Loader, run_dir: Path, interval: int, before: int = 0) -> None:
        """Takes the training data, the run's directory, and the steps between two counts.

        `before` is the number of images that the interrupted epoch had left out.
        """
        super().__init__()
        self.record, self.interval, self.before = BadFiles(run_dir, loader), interval, before
        self.steps = 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.model.dropped_images, self.before = self.before, 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.steps += 1
        # Before a checkpoint too: a run that continues from it must not lose what was left out before it.
        if self.steps == self.interval or any(self.model.granted):
            self._look()

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        self._look()
        logs["dropped_images"] = images = self.model.dropped_images
        if images:
            logger.warning("epoch %d: %s left out, see %s", epoch + 1, counted(images, "image"), self.record.path)

    def _look(self) -> None:
        self.steps = 0
        self.model.dropped_images += self.record.add(self.model.meter.steps)
        self.record.check(self.model.dropped_images)


def _field(value: object) -> str:
    """Returns text without what ends a field or a line, which messages of libraries may have."""
    return ENDS.sub(" ", str(value))


class BadFiles:
    """The list of left-out samples in the run's directory; rank 0 writes it."""

    def __init__(self, run_dir: Path, loader: Loader) -> None:
        self.path, self.loader, self.world = run_dir / BAD_FILES, loader, loader.world

    def add(self, step: int) -> int:
        """Lists the samples that ranks have left out since the last call, and returns their number.

        Every rank must call.
        """
        dropped, split = self.loader.dropped(), self.loader.split
        count = int(self.world.sum(np.array([float(len(dropped))]))[0])
        if count:
            lines = self.world.gather(
                [
                    "\t".join(map(_field, (step, self.world.rank, split, position, failure.path, failure.reason)))
                    for position, failure in dropped
                ]
            )
            if self.world.rank == 0:
                heading = "" if self.path.exists() else HEADING
                with self.path.open("a") as file:
                    file.write(heading + "".join(f"{line}\n" for rank in lines for line in rank))
        return count

    def check(self, images: int) -> None:
        """Checks the number of images that an epoch or a test pass left out.

        Raises TfpipeError if it exceeds `data.max_bad_fraction`.
        """
        most = self.loader.config.data.max_bad_fraction
        check_fraction(images, self.loader.data, most, f"they are listed in {self.path}, and")
