"""A split of the data, "train" or "test", as one rank sees it: what its images are, their order, and what reads them.

Sources make splits: each kind of data has a subclass that reads its images.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tfpipe.collectives.agreement import name_ranks
from tfpipe.config import DataConfig, Parallel
from tfpipe.config.targets import OF_OBJECTS
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.catalog.boxes import REMEDY as LISTED
from tfpipe.data.catalog.entries import find_entries
from tfpipe.data.catalog.layout import Storage
from tfpipe.data.catalog.table import StoredTable
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.catalog.weights import sample_weights, with_weights
from tfpipe.data.order.mixture import Mixture
from tfpipe.data.order.permutation import Order
from tfpipe.data.order.stream import SampleRef, Stream
from tfpipe.data.order.weighted import WeightedOrder
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError, counted
from tfpipe.util.files import NO_STAMP, Stamp
from tfpipe.util.json_text import differences, leaves

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Self

REPAIR = "repair it or take it out of the data; tfpipe check finds all such images"

# Settings by which a pipeline reads one original file at a time: no caches, since a user can only repair the original.
SERIAL = {"num_parallel_readers": 1, "parallel": Parallel(), "cache": None, "on_error": "raise"}

# Keys of `data` that what is loaded does not depend on: those of speed and of failures, ...
SPEED = {
    "batch_size", "num_parallel_readers", "parallel", "prefetch_buffer_size", "threads", "cache", "max_pixels",
    "on_error", "max_bad_fraction", "stall_timeout_s",
}  # fmt: skip
# ... those that the pixels of crops depend on, which may be stored, and the others. A key in none of them decides.
PIXELS = {"crop", "test_crop", "crop_image_size", "test_crop_image_size", "num_channels", "resize", "fit"}
PIXELS |= {"center_fraction", "views"}
READING = SPEED | {"dtype", "normalize", "mix", "random_resized", "flip", "augment", "transform", "remote.concurrency"}
READING |= {"remote.retries", "remote.timeout_s", "remote.cache_gb"}
BOXES = "use of boxes, by data.crop, data.views or data.targets"

Stores = Literal["images", "crops", "pixels"]


class Failure(NamedTuple):
    """A file that cannot be used, and why."""

    path: str
    reason: str


class StoredCrops(NamedTuple):
    """Access to a split whose records are crops instead of images."""

    find: Callable[[Any], Any]
    """In graph: `SampleRef`s (fields int64 [n]) -> the crops that they consist of, a NamedTuple of tensors [k, ...]."""
    gather: "Callable[[tf.data.Dataset], tf.data.Dataset]"
    """Reads batches of what `find` returns; -> batches of `Crops`."""


@dataclass(frozen=True, eq=False)
class Split(ABC):
    """The images of a split and what reads them. A subclass has to define `image` and `read`."""

    config: DataConfig
    catalog: Catalog
    world: World

    # The data as a rank sees it.

    @property
    def training(self) -> bool:
        """Returns whether this is training data: shuffled, augmented and endless."""
        return self.catalog.split == "train"

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, indexed by class number."""
        return self.catalog.classes

    @property
    def object_classes(self) -> tuple[str, ...]:
        """Classes by which boxes are chosen; () if images have no class, and all boxes count."""
        return self.config.targets.of_objects(self.classes)

    @property
    def outputs(self) -> int:
        """Number of the model's outputs: `data.num_classes`, or the number of classes."""
        return self.config.num_classes or len(self.classes)

    @cached_property
    def order(self) -> Order | Mixture:
        """Order of the samples; that of test data is the list's, with scope "global".

        Raises ConfigError if weights cannot be used.
        """
        return order_of(self.catalog, self.config)

    @cached_property
    def entries(self) -> StoredTable | None:
        """Entry points of the images; None if there are none, or other processes or TensorFlow's ops decode."""
        used = self.config.native and self.config.service is None
        return find_entries(self.config, self.catalog, show=self.world.rank == 0) if used else None

    @property
    def remedy(self) -> str:
        """Advice about an image that cannot be used."""
        return LISTED if self.config.source is None else REPAIR

    def with_weights(self) -> "Self":
        """Returns this split with the weights of `data.sample_weights`; raises ConfigError if they cannot be used."""
        path = self.config.sample_weights if self.training else None
        return self if path is None else replace(self, catalog=with_weights(self.catalog, path))

    def visits(self, stream: Stream, count: int) -> SampleRef:
        """Returns the first `count` samples of `stream` that this rank visits, fields int64 [count]."""
        return stream.visits(self.order, self.world, count)

    def adapt(self, config: DataConfig, world: World, name: str | None = None) -> "Self":
        """Returns this split for another config or rank; itself, with its order, if it has these.

        Raises ConfigError if the config says to load something else, its order included, or the split `name`.
        """
        split, before = self.catalog.split, self.config
        config = config.for_split(split)
        if World.require(world) == self.world and config is before and name in (None, split):
            return self
        free = {f"data.{key}" for key in READING | (PIXELS if self.stores == "images" else set())}
        then, now = (leaves({"data": each.model_dump(mode="json")}, free) for each in (before, config))
        then |= {"split": split, BOXES: before.uses_boxes(split)}
        now |= {"split": name or split, BOXES: then[BOXES] or config.uses_boxes(split)}
        if problems := differences(then, now, "there", "here", list(then | now)):
            why = "; ".join(problems)
            raise ConfigError(f"data=: was loaded by another config: {why}; leave it out, or give this config's split")
        adapted = replace(self, config=config, world=world)
        if self.training:
            check_order(adapted)
        return adapted

    @property
    def crops_objects(self) -> bool:
        """Returns whether each object is a crop with a label of its own."""
        return self.catalog.by_object and self.config.targets.kind not in OF_OBJECTS

    @property
    def stores(self) -> Stores:
        """Content of a record: an image's file, a crop as a JPEG, or a crop's pixels."""
        return "images"

    @property
    def storage(self) -> Storage | None:
        """Holds the XMLs, if the pipeline or a count of the crops has to read them."""
        return None

    # Reading.

    @abstractmethod
    def image(self, item: int) -> bytes:
        """Returns the file of image `item`. Raises OSError or ValueError."""

    def mask(self, item: int) -> bytes:
        """Returns the file of the mask of image `item`. Raises OSError, ValueError or TfpipeError."""
        assert self.storage is not None, "masks are files, or records of the images' shards"
        return self.storage.contents([self.catalog.annotation(item)])[0] or b""

    @abstractmethod
    def read(self, samples: "tf.data.Dataset") -> "tf.data.Dataset":
        """Reads images, `SamplePaths` -> `Encoded`.

        Raises ConfigError if the records are no images, or settings do not suit this kind of data.
        """

    def crops(self) -> StoredCrops | None:
        """Returns access to the crops if these are what is stored, else None."""
        return None

    # After a failure.

    def serial(self) -> "Self":
        """Returns this split, but one that reads the originals one at a time, to find the one that fails."""
        return replace(self, config=self.config.model_copy(update=SERIAL))

    def evict(self, item: int) -> None:
        """Deletes an image's files from caches, so that they are read again after a repair."""
        del item

    def name(self, item: int) -> str:
        """Returns the name of image `item` for a message."""
        return self.catalog.paths[item]

    def files(self, item: int) -> Sequence[str]:
        """Returns the paths of the files that reading image `item` opens, if a user could look at them."""
        del item
        return []

    def stamp(self, item: int) -> Stamp:
        """Returns the stamp of the file that holds image `item`, its own or a shard; NO_STAMP if it is behind a URL."""
        del item
        return NO_STAMP

    def explain(self, item: int, error: "tf.errors.OpError") -> Failure:
        """Returns what is wrong with image `item`, given the `error` raised when it was loaded alone."""
        from tfpipe.data.images.damage import describe
        from tfpipe.data.runtime.op_errors import reason

        masks = [] if self.catalog.masks is None else [self.catalog.masks[item]]
        annotations = masks if self.storage is None else self.catalog.files_of(item)[1:]
        failure = next(filter(None, (self._explain_annotation(path, reason(error)) for path in annotations)), None)
        try:
            contents = self.image(item)
        except (OSError, ValueError, TfpipeError) as unread:
            return failure or Failure(self.name(item), getattr(unread, "strerror", None) or str(unread))
        return failure or Failure(self.name(item), describe(contents, reason(error)))

    def _explain_annotation(self, path: str, reason: str) -> Failure | None:
        """Returns what is wrong with an annotation or a mask, itself or as `reason` states it; None if nothing is."""
        try:
            text = None if self.storage is None else self.storage.contents([path])[0]
            if text is not None and self.catalog.masks is None:
                parse_annotation(text, path, self.catalog.annotation_format)
        except OSError as error:
            return Failure(path, error.strerror or str(error))
        except ValueError as error:
            return Failure(path, str(error))
        start = f"{path}: "
        return Failure(path, reason.removeprefix(start)) if reason.startswith(start) else None

    def cause(self, error: "tf.errors.OpError") -> str | None:
        """Returns the failed file, the reason and the remedy if the error itself names them, else None."""
        del error
        return None


def order_of(catalog: Catalog, config: DataConfig) -> Order | Mixture:
    """Returns the order of a catalog's samples; test data ignores `config`: list order, scope "global", no repeats.

    Raises ConfigError if weights cannot be used, ValueError if lists cannot be mixed so.
    """
    if catalog.split != "train":
        return Order(catalog.samples, shuffle=False)
    settings = (catalog.samples, config.seed, config.shuffle_buffer > 1, config.reshuffle_each_iteration, config.scope)
    if (weights := sample_weights(catalog, config)) is not None:
        return WeightedOrder(*settings, weights, repeats=config.repeats)
    order = Order(*settings, repeats=config.repeats)
    if not catalog.lists:
        return order
    ends, boxes = [part.images.stop for part in catalog.lists], catalog.sampled_boxes
    if boxes is not None:
        ends = boxes.offsets(len(catalog))[ends].tolist()
    counts = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
    return Mixture.of(order, counts, tuple(part.weight for part in catalog.lists))


def check_order(split: Split) -> None:
    """Raises ConfigError, on all ranks, if training samples cannot be mixed so, or scope "shard" leaves a rank none."""
    try:
        order = split.order
    except ValueError as error:
        raise ConfigError(f"data.train_filelist cannot be mixed so: {error}") from error
    fewest = min(part.count for part in order.orders) if isinstance(order, Mixture) else order.count
    if split.config.scope == "shard" and fewest < split.world.size:
        raise ConfigError(
            f"{split.catalog.display_name}: {counted(fewest, 'sample')} cannot be dealt to "
            f'{counted(split.world.size, "rank")} with data.scope "shard"'
        )
    if split.config.scope != "shard" or not isinstance(order, WeightedOrder):
        return
    visited = np.zeros(split.world.size, bool)
    visited[np.flatnonzero(order.weights) % split.world.size] = True
    if idle := np.flatnonzero(~visited).tolist():
        keys = [f"data.{key}" for key in ("class_weights", "sample_weights") if getattr(split.config, key) is not None]
        raise ConfigError(
            f"{split.catalog.display_name}: {' and '.join(keys) or 'its weights'} are 0 for all samples that "
            f'data.scope "shard" gives to {name_ranks(idle)}: set it to "global", or use other weights or ranks'
        )


def sample_names(split: Split, positions: Sequence[int]) -> list[str]:
    """Returns the names of the images at a rank's stream positions, as messages have them: mostly their paths."""
    items = split.order.items(np.array(positions, np.int64), split.world)
    return [split.name(split.catalog.image_and_box(item)[0]) for item in items.tolist()]
