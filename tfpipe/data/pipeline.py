"""The input pipeline: from a filelist to batches, readable top to bottom.

    filelist -> sample order (epoch shuffle + rank shard) -> read -> JPEG + XML -> crops -> rebatch -> prefetch

Each stage is a function Dataset -> Dataset, so that the chain can be written out by hand with a stage of one's own
in between.
"""

from typing import Literal, NamedTuple

import tensorflow as tf

from tfpipe.config import Config, DataConfig
from tfpipe.data.annotations import parser
from tfpipe.data.cache import reader
from tfpipe.data.catalog import Catalog, load_catalog
from tfpipe.data.crops import KnownTargets, choose_windows, crop_seeds, find_targets, from_first
from tfpipe.data.decoders import choose_decoder
from tfpipe.data.images import image_size, random_flip
from tfpipe.data.lookup import Located, Lookup
from tfpipe.data.stream import Stream, Visit
from tfpipe.distributed import World

# AutoGraph, which rewrites Python's own `if` and `for`, would take half a second to find none that depends on a tensor.
_as_written = tf.autograph.experimental.do_not_convert


class Encoded(NamedTuple):
    """One image as read, then n of them."""

    visit: Visit  # where in the stream, which item, and which of its crops are wanted
    jpeg: tf.Tensor  # string: the file's bytes
    size: tf.Tensor  # int32 [2]: height and width
    xml: tf.Tensor  # string: the annotation's text, "" where there is none
    xml_path: tf.Tensor  # string
    label: tf.Tensor  # int32: class number, or BY_OBJECT


class Crops(NamedTuple):
    """The crops of some images, one after the other; unbatched, one of them; then a batch of them."""

    images: tf.Tensor  # uint8 [k, height, width, channels]
    labels: tf.Tensor  # int32 [k]
    positions: tf.Tensor  # int64 [k, 2]: position in the stream, number among the image's crops


def build_dataset(
    config: Config,
    split: str = "train",
    world: World = World(),
    with_positions: bool = False,
    resume: Stream | None = None,
    catalog: Catalog | None = None,
) -> tf.data.Dataset:
    """This rank's batches of (images, labels), or (images, labels, positions).

    Args:
        config: of the run; its `data` section counts here.
        split: "train" for an endless stream, "test" for one exact pass over this rank's share.
        world: which rank this is, of how many.
        with_positions: whether to add each crop's place in the stream.
        resume: what is left of the stream; None for all of it. Of as many ranks as `world`.
        catalog: of the split, if loaded already.

    Returns:
        Elements of images [batch, height, width, channels], uint8 in [0, 255] or `data.dtype` in [0, 1]; labels
        int32 [batch]; positions int64 [batch, 2]: stream position and crop. The last test batch may be smaller.

    Raises:
        ConfigError: a filelist, a label, an annotation folder or the cache cannot be used.
        ValueError: `resume` is of another number of ranks.
    """
    data = config.data
    catalog = catalog or load_catalog(data, split, world)

    dataset = visit(catalog, data, world, resume or Stream.start(world.size))
    dataset = read(dataset, catalog, data, world)
    dataset = crop(dataset, catalog, data)
    # Copies each crop once, where unbatch and batch would twice.
    dataset = dataset.rebatch(data.batch_size, drop_remainder=split == "train")
    dataset = finish(dataset, data, with_positions)
    dataset = prefetch(dataset, data)
    return dataset.with_options(options(data, world))


def visit(catalog: Catalog, config: DataConfig, world: World, stream: Stream) -> tf.data.Dataset:
    """`Located`s: what this rank loads next. Shuffled and endless for training, else one pass."""
    if stream.size != world.size:
        raise ValueError(
            f"the stream is of {stream.size} ranks, there are {world.size}: take stream.over({world.size})"
        )
    order = catalog.order(config)
    end = None if catalog.split == "train" else order.count
    return stream.dataset(order, world, end, Lookup(catalog).located)


def read(dataset: tf.data.Dataset, catalog: Catalog, config: DataConfig, world: World = World()) -> tf.data.Dataset:
    """Located -> Encoded: the image's and the annotation's bytes. Waits for storage, or for `data.cache`."""
    load = reader(catalog, config, world)

    def read_one(image: Located) -> Encoded:
        jpeg, xml = load(image.item, image.path, ".jpg"), tf.constant("")
        if catalog.boxes is None:
            there = tf.not_equal(image.xml_path, "")
            xml = tf.cond(there, lambda: load(image.item, image.xml_path, ".xml"), lambda: "")
        return Encoded(image.visit, jpeg, image_size(jpeg), xml, image.xml_path, image.label)

    calls = _calls(config, config.parallel.read)
    return dataset.map(_as_written(read_one), num_parallel_calls=calls, name="read")


def crop(dataset: tf.data.Dataset, catalog: Catalog, config: DataConfig) -> tf.data.Dataset:
    """Encoded -> Crops: parses the XMLs, decodes the JPEGs, cuts and resizes. Takes the CPU."""
    flip = config.crop == "random_resized" if config.flip is None else config.flip
    shape = (*config.crop_image_size, config.num_channels)
    parse = parser(catalog.by_lxml)
    known = None if catalog.boxes is None else KnownTargets(catalog)
    decoder = choose_decoder(config)

    def crop_some(encoded: Encoded) -> Crops:
        visit, sizes = encoded.visit, encoded.size
        if known is None:
            targets = find_targets(parse(encoded.xml, encoded.xml_path), encoded.label, sizes, catalog)
        else:
            targets = known.at(visit.item)
        windows = from_first(choose_windows(targets, sizes, visit.position, config, catalog), visit.first_crop)
        images = tf.ensure_shape(decoder.decode(encoded.jpeg, sizes, windows), [None, *shape])
        positions = tf.gather(visit.position, windows.images)
        if flip and catalog.split == "train":
            images = random_flip(images, crop_seeds(2 * config.seed + 1, positions, windows.numbers))
        return Crops(images, windows.labels, tf.stack([positions, windows.numbers], axis=1))

    some, calls = dataset.batch(decoder.images), _calls(config, config.parallel.decode)
    return some.map(_as_written(crop_some), num_parallel_calls=calls, name="crop")


def finish(dataset: tf.data.Dataset, config: DataConfig, with_positions: bool) -> tf.data.Dataset:
    """Batched Crops -> what the caller wants: a float type scaled to [0, 1], positions or not."""

    def finish_batch(batch: Crops) -> tuple[tf.Tensor, ...]:
        images, labels, positions = batch
        if config.dtype != "uint8":
            images = tf.cast(tf.cast(images, tf.float32) / 255.0, config.dtype)
        return (images, labels, positions) if with_positions else (images, labels)

    return dataset.map(finish_batch, name="finish")


def prefetch(dataset: tf.data.Dataset, config: DataConfig) -> tf.data.Dataset:
    """Prepares batches ahead of their use."""
    if config.prefetch_buffer_size == "auto":
        return dataset.prefetch(tf.data.AUTOTUNE)
    return dataset.prefetch(config.prefetch_buffer_size) if config.prefetch_buffer_size else dataset


def options(config: DataConfig, world: World) -> tf.data.Options:
    """Threads of the whole pipeline, and whether tf.data may tune it."""
    serial = config.num_parallel_readers == 1
    result = tf.data.Options()
    threads = 1 if serial else thread_budget(config, world)
    if threads:
        result.threading.private_threadpool_size = threads
        result.autotune.cpu_budget = threads
    if serial:
        # Otherwise tf.data makes a serial pipeline parallel by itself.
        result.autotune.enabled = False
        result.experimental_optimization.map_parallelization = False
    if config.prefetch_buffer_size == 0:
        result.experimental_optimization.inject_prefetch = False
    return result


def thread_budget(config: DataConfig, world: World) -> int | None:
    """Threads of this rank's pipeline; None where nothing says how many CPUs it may use."""
    if config.threads is None and world.threads is not None:
        return max(1, round(config.cpu_fraction * world.threads))
    return config.threads


def _calls(config: DataConfig, of_stage: int | Literal["auto"] | None) -> int | None:
    calls = of_stage or config.num_parallel_readers
    return tf.data.AUTOTUNE if calls == "auto" else None if calls == 1 else calls
