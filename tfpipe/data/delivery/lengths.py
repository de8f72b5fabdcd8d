"""The lengths of a rank's epochs and passes."""

from dataclasses import replace
from functools import cached_property

from tfpipe.data.crop_counts import CropCount, count_crops, crops_left
from tfpipe.data.order.schedule import Schedule
from tfpipe.data.order.stream import Stream
from tfpipe.data.split import Split


class Lengths:
    """The steps of training epochs, and the batches of passes over test data."""

    def __init__(self, data: Split, steps: int | None = None) -> None:
        """Lets an epoch have `steps` steps, or those in which all ranks see each crop once."""
        self.data, self._steps = data, steps
        self.is_padded = False
        """Whether each rank has as many batches of test data as the rank with most, some of them empty."""

    @cached_property
    def count(self) -> CropCount:
        """Number of crops in an epoch over all ranks; every rank must ask."""
        return count_crops(self.data)

    @cached_property
    def schedule(self) -> Schedule:
        """Steps of the epochs, and the phases in which crops and batches have one size; every rank must ask."""
        return self.schedule_of(self.data.world.size)

    def schedule_of(self, size: int) -> Schedule:
        """Returns the schedule for `size` ranks."""
        return Schedule.of(self.data.config, 0 if self._steps else self.count.crops, size, self._steps)

    def rest_of_pass(self, stream: Stream) -> int | None:
        """Returns the number of this rank's test batches in `stream`, or None if only the XMLs tell."""
        world, batch_size = self.data.world, self.data.config.batch_size
        ranks = range(world.size) if self.is_padded else [world.rank]
        crops = [crops_left(replace(self.data, world=replace(world, rank=rank)), stream) for rank in ranks]
        return None if None in crops else -(-max(count or 0 for count in crops) // batch_size)
