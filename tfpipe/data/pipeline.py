"""The input pipeline: `build_dataset` chains its stages, from the order of samples to batches; read it top to bottom.

    filelist -> order (epoch shuffle + rank shard) -> read -> JPEG + XML -> crops -> rebatch -> prefetch

Each stage is a function Dataset -> Dataset, so you can write out the chain and insert a stage of your own. Packed crops
and workers replace the stages up to the crops. The name scopes are the names of the stages in a trace.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from tfpipe.config import Config, DataConfig
from tfpipe.data.batch import Batch, apply_transform, with_extras
from tfpipe.data.catalog.locate import Lookup, find_targets
from tfpipe.data.crop_counts import crops_of_a_sample, gives_one_crop, own_crops
from tfpipe.data.images.augment import augment_crops, choose_augment
from tfpipe.data.images.crops import ALL, Crops, choose_windows, crop_seeds, from_first
from tfpipe.data.images.decode import MOST_OF_A_CALL, NATIVE_IMAGES, Cuts, Decoder, EncodedImages, choose_decoder
from tfpipe.data.images.floats import to_floats
from tfpipe.data.images.mix import mix_batch
from tfpipe.data.images.parts import Plan, Write, write_in_parts
from tfpipe.data.images.windows import draw_flips
from tfpipe.data.order.stream import WHOLE, BlockRange, SampleRef, Stream
from tfpipe.data.runtime.autotune import STAGES
from tfpipe.data.runtime.clock import now_s
from tfpipe.data.runtime.marks import mark
from tfpipe.data.runtime.parallelism import calls_at_once, options, thread_budget
from tfpipe.data.runtime.samples import sample_blocks
from tfpipe.data.runtime.shutdown import close_at_exit
from tfpipe.data.runtime.stage import refuse_endless, skip_failed_elements, stage
from tfpipe.data.service.client import serve_crops
from tfpipe.data.service.workers import open_workers
from tfpipe.data.sources.reading import Encoded, entry_finder
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split, StoredCrops
from tfpipe.data.targets.labels import choose_origin, choose_targets, needs_origin
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.native import EventKind
from tfpipe.util.process import load_function

LookUp = Callable[[SampleRef], Any]
# A larger batch is copied, of calls of its own: several of its size are in memory at once.
MOST_IMAGES = 1024
# One thread plans for so many that write: a plan takes 10 to 30 us an image, with its XML, and writing it 250 or more.
THREADS_OF_A_PLANNER = 8


def build_dataset(
    config: Config,
    split: str = "train",
    world: World = World(),
    with_positions: bool = False,
    resume: Stream | None = None,
    data: Split | None = None,
    with_ready: bool = False,
) -> tf.data.Dataset:
    """Builds the dataset of this rank's batches: (images, labels), optionally with positions and a timestamp.

    Args:
        config: config of the run, of which the `data` section is used.
        split: "train" for an endless stream, "test" for one exact pass over this rank's share.
        world: this process's rank and the number of ranks.
        with_positions: whether to add each crop's position in the stream.
        resume: the rest of the stream, for as many ranks as `world` has; None for all of it.
        data: the split if already loaded, by stages.load_split; None to load it.
        with_ready: whether to add, as the last tensor, the time at which the batch was ready to be taken.

    Returns:
        Elements of images [batch, height, width, channels], uint8 in [0, 255] or `data.dtype` in [0, 1], or as
        `data.normalize` says; labels as `data.targets` says, int32 [batch] by default, in training with `data.mix`
        float32 [batch, classes]; positions int64 [batch, 2]: stream position and crop; ready float64 [], in seconds
        since 1970. The last test batch may be smaller. With `data.views`, images of training are a tuple of tensors, by
        view. With `data.transform`, what it returns comes in place of images and labels.

    Raises:
        ConfigError: a filelist, a label, an annotation folder or the cache cannot be used, or `data.transform` returns
            what Keras cannot take; or sizes change with the epochs, which Loader follows.
        ValueError: `resume` is for another number of ranks.
    """
    loaded, crops = _batched_crops(config.data, split, world, resume, data)
    return _deliver(finish(crops, config.data, with_positions), loaded, resume, with_ready)


def build_batches(
    config: Config,
    split: str = "train",
    world: World = World(),
    resume: Stream | None = None,
    data: Split | None = None,
    with_ready: bool = False,
) -> tf.data.Dataset:
    """Builds the dataset of `Batch`: as build_dataset, but with the parts of a batch by name."""
    loaded, crops = _batched_crops(config.data, split, world, resume, data)
    dataset = crops.map(partial(_finish, config=config.data), name="finish")
    return _deliver(dataset, loaded, resume, with_ready)


def _batched_crops(
    config: DataConfig, name: str, world: World, resume: Stream | None, loaded: Split | None
) -> tuple[Split, tf.data.Dataset]:
    """Builds the dataset of `Crops` of a batch each: from the list to batches, of this process or its workers."""
    # Workers first: exit handlers run in reverse order, and iterators must be closed while workers still run.
    workers = None if config.service is None else open_workers(config.service)
    data = load_split(config, name, world) if loaded is None else loaded.adapt(config, world, name)
    if data.config.has_phases:
        raise ConfigError(
            "data.crop_image_size or data.batch_size changes with the epochs, and a dataset has one size: take the "
            "batches from tfpipe.Loader, or those of an epoch with config.at(epoch)"
        )
    stream = resume or Stream.start(world.size)
    if (crops := data.crops()) is not None:
        return data, mix(target(gather(data, crops, stream), data), data)
    if workers is None:
        dataset = load(data, stream)
    else:
        dataset = serve_crops(partial(load, stream=stream), workers, data)
    # Rebatch copies each crop once; unbatch and batch would copy it twice.
    return data, mix(target(dataset.rebatch(data.config.batch_size, drop_remainder=data.training), data), data)


def _deliver(dataset: tf.data.Dataset, data: Split, resume: Stream | None, with_ready: bool) -> tf.data.Dataset:
    """Adds the last stages, the number of batches if it is known, and the options."""
    config = data.config
    dataset = transform(dataset, config)
    dataset = stamp(dataset) if with_ready else dataset
    if data.training:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    elif resume is None and config.on_error == "raise" and (crops := own_crops(data)) is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(-(-crops // config.batch_size)))
    return close_at_exit(prefetch(dataset, config).with_options(options(config, data.world)))


def load(data: Split, stream: Stream, part: BlockRange = WHOLE, decoder: Decoder | None = None) -> tf.data.Dataset:
    """Builds the dataset of `Crops`, of one or several images per element; `data.service` runs this on its workers."""
    look_up = _paths(data)

    def look_up_unused(visits: SampleRef) -> Any:
        return look_up(SampleRef(*(each[visits.first_crop == 0] for each in visits)))

    # Where a run resumes, a sample whose only crop is used would leave all later batches one crop short, to be copied.
    find = look_up_unused if part is WHOLE and gives_one_crop(data) else look_up
    dataset = crop(data.read(_visits(data, stream, find, part).unbatch()), data, decoder)
    if not data.training or crops_of_a_sample(data)[0]:
        return dataset
    images = (decoder or choose_decoder(data.config, data.catalog.split)).images
    return refuse_endless(dataset, data.order.length // images + 1)


def visit(data: Split, stream: Stream) -> tf.data.Dataset:
    """Builds the dataset of `SamplePaths` of this rank: shuffled and endless for training, otherwise one pass."""
    return _visits(data, stream, _paths(data)).unbatch()


def _paths(data: Split) -> LookUp:
    return Lookup(data.catalog, sent=data.config.service is not None).sample_paths


def stage_names(data: Split) -> tuple[str, ...]:
    """Returns the names of a pipeline's maps, in pipeline order."""
    mixes = (*(("target",) if needs_origin(data) else ()), *(("mix",) if _mixes(data) else ()))
    if data.stores != "images":
        return ("visit", "gather", *mixes, "finish")
    if data.config.service is not None:
        return ("service", "hand over", *mixes)
    plan = ("crop",) if calls_of_a_batch(data) > 1 else ()
    return (*STAGES[:-1], *plan, *mixes, STAGES[-1])


def gather(data: Split, crops: StoredCrops, stream: Stream) -> tf.data.Dataset:
    """Builds batches of `Crops` from packed crops; replaces the stages from `visit` to `crop`, and batching."""
    # Batches only record numbers: the pixels are written straight into the batch later.
    return crops.gather(_visits(data, stream, crops.find).rebatch(data.config.batch_size, drop_remainder=data.training))


def _visits(data: Split, stream: Stream, look_up: LookUp, part: BlockRange = WHOLE) -> tf.data.Dataset:
    size = data.world.size
    if stream.size != size:
        raise ValueError(
            f"the stream has {counted(stream.size, 'rank')}, and the world {size}: use stream.over({size})"
        )
    end = None if data.training else data.order.count
    return sample_blocks(stream, data.order, data.world, end, look_up, part)


def read(dataset: tf.data.Dataset, data: Split) -> tf.data.Dataset:
    """Reads the bytes of images and XMLs, from storage or `data.cache`: `SamplePaths` -> `Encoded`, with sizes.

    In `load`, decoders find the sizes. Raises ConfigError if `data.source` holds packed crops instead of images.
    """
    sizes = choose_decoder(data.config).sizes

    @stage("read")
    def measure(encoded: Encoded) -> Encoded:
        return encoded._replace(size=sizes(encoded.jpeg[None], encoded.size[None])[0])

    dataset = data.read(dataset).map(measure)
    return dataset.ignore_errors() if data.config.on_error == "skip" else dataset


def crop(dataset: tf.data.Dataset, data: Split, decoder: Decoder | None = None) -> tf.data.Dataset:
    """Parses XMLs, decodes JPEGs, cuts out and resizes crops; bound by the CPU: `Encoded` -> `Crops`.

    Elements are whole batches, if that saves their copy; with a `decoder`, or without the saving, the crops of one of
    its calls.
    """
    parts = calls_of_a_batch(data) if decoder is None else 1
    decoder = decoder or choose_decoder(data.config, data.catalog.split)
    plan, write = _plan(data, decoder), _write(data, decoder)
    calls = calls_at_once(data.config, data.world, uneven=data.catalog.uneven).decode
    if parts > 1:
        planning = max(1, thread_budget(data.config, data.world) // THREADS_OF_A_PLANNER)
        plans = dataset.batch(data.config.batch_size).map(plan, planning, name="crop")
        dataset = write_in_parts(plans, write, parts, calls)
    else:
        cut = stage("crop")(lambda encoded: write(plan(encoded), ALL))
        cut = skip_failed_elements(cut) if data.config.on_error == "skip" else cut
        dataset = dataset.batch(decoder.images).map(cut, calls, name="crop")
    return close_at_exit(dataset)  # here too, for chains written by hand


def calls_of_a_batch(data: Split) -> int:
    """Returns how many calls of the decoder write a batch together; 1 if a call writes it, or crops that are copied.

    If each image gives a crop, the windows of a batch are chosen at once, and its crops written where they stay: an
    image takes 0.90 to 0.97 of the CPU time. Few threads choose windows, and masks would take too long.
    """
    config, calls = data.config, calls_at_once(data.config, data.world).decode
    by_batch = config.native and config.service is None and config.on_error == "raise" and config.targets.kind != "mask"
    if not by_batch or calls is None or not MOST_OF_A_CALL < config.batch_size <= MOST_IMAGES:
        return 1
    return -(-config.batch_size // NATIVE_IMAGES) if gives_one_crop(data) else 1


def _plan(data: Split, decoder: Decoder) -> Callable[[Encoded], Plan]:
    """Returns the function that chooses the crops of n images, with memory for their pixels."""
    config, catalog = data.config, data.catalog
    flip = [data.training and view.flips for view in config.by_view]
    find = find_targets(catalog, data.object_classes, sent=config.service is not None)
    entries = None if data.entries is None else entry_finder(data.entries, catalog)
    origin_of = choose_origin(data)

    def flips_of(visit: SampleRef, owners: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        positions = tf.gather(visit.position, owners)
        drawn = [draw_flips(crop_seeds(2 * view.seed + 1, positions, numbers)) for view in config.by_view]
        return tf.stack([one & each for one, each in zip(drawn, flip, strict=True)], 1) if config.views else drawn[0]

    @stage("crop")
    def plan(encoded: Encoded) -> Plan:
        visit, sizes = encoded.visit, decoder.sizes(encoded.jpeg, encoded.size)
        with tf.name_scope("parse"):
            targets = find(encoded, sizes)
        with tf.name_scope("crop"):
            chosen = choose_windows(targets, sizes, visit.position, config, catalog.split, data.crops_objects)
            windows = from_first(chosen, visit.first_crop)
            windows = windows._replace(images=mark(EventKind.DECODE, visit.position, windows.images))
            owners, numbers = windows.images, windows.numbers
            flips = flips_of(visit, owners, numbers) if any(flip) else tf.zeros(0, tf.bool)
        images = EncodedImages(encoded.jpeg, None if entries is None else entries(visit.item))
        cuts = Cuts(images, sizes, windows, flips)
        origin = () if origin_of is None else origin_of(encoded, cuts)
        positions = tf.stack([tf.gather(visit.position, owners), numbers], axis=1)
        return Plan(cuts, Crops(decoder.empty(tf.size(owners)), windows.labels, positions, origin))

    return plan


def _write(data: Split, decoder: Decoder) -> Write:
    """Returns the function that writes the pixels of a plan's crops, or of a span of them."""
    augment = [choose_augment(view, training=data.training) for view in data.config.by_view]

    @stage("crop")
    def write(plan: Plan, span: Any) -> Crops:
        with tf.name_scope("decode"):
            pixels = decoder.write(plan.crops.images, span, plan.cuts)
        return plan.crops._replace(images=augment_crops(pixels, plan.crops.positions, span, augment))

    return write


def target(dataset: tf.data.Dataset, data: Split) -> tf.data.Dataset:
    """Gives the crops of each batch of `Crops` the labels that `data.targets` and further columns set.

    Raises ConfigError if an image has more boxes than `data.targets` allows.
    """
    describe = choose_targets(data)
    return dataset if describe is None else dataset.map(stage("target")(describe), name="target")


def mix(dataset: tf.data.Dataset, data: Split) -> tf.data.Dataset:
    """Mixes the crops of each training batch of `Crops`, and their labels, as `data.mix` sets it.

    Classes become float32 [batch, classes]. Raises ConfigError if there is only one, or further columns have no mean.
    """
    if not _mixes(data):
        return dataset
    config = data.config
    assert config.mix is not None, "_mixes has looked"
    if further := sorted(data.catalog.values.keys() - {"number"}):
        raise ConfigError(
            f"data.mix mixes labels, and data.source.columns.extra adds {', '.join(further)}, of which a mixed crop "
            "would have two: set data.mix to null, or columns.extra to []"
        )
    if config.targets.kind == "label" and data.outputs < 2:
        raise ConfigError(
            f"data.mix makes shares of classes, and {data.catalog.display_name} has one, "
            f'"{data.classes[0]}": set data.mix to null'
        )
    mix = partial(mix_batch, mix=config.mix, seed=config.seed, classes=data.outputs)
    return dataset.map(stage("mix")(mix), name="mix")


def _mixes(data: Split) -> bool:
    return data.training and data.config.mix is not None


def finish(dataset: tf.data.Dataset, config: DataConfig, with_positions: bool) -> tf.data.Dataset:
    """Converts batched `Crops` to tuples (images[, labels][, positions]), with images of `data.dtype`."""

    def flat(crops: Crops) -> tuple[tf.Tensor, ...]:
        batch = _finish(crops, config)
        return (*batch.data, batch.positions) if with_positions else batch.data

    return dataset.map(tf.autograph.experimental.do_not_convert(flat), name="finish")


@stage("finish")
def _finish(crops: Crops, config: DataConfig) -> Batch:
    images, labels, positions, *_ = crops
    if config.dtype != "uint8":
        images = tf.nest.map_structure(partial(to_floats, config=config), images)
    return Batch((images,) if isinstance(labels, tuple) else (images, labels), positions)


def transform(dataset: tf.data.Dataset, config: DataConfig) -> tf.data.Dataset:
    """Applies the user's function `data.transform`, if set, to the images of each batch, and its labels if it has any.

    Elements are `Batch`, or tuples of images, labels and others, which stay. Raises ConfigError if Keras refuses it.
    """
    if config.transform is None:
        return dataset
    name, function = config.transform, load_function(config.transform, "data.transform")
    refused: list[ConfigError] = []

    def apply(*data: Any) -> Any:
        try:
            return apply_transform(function, name, *data)
        except ConfigError as error:
            refused.append(error)
            raise

    def transform_batch(*element: Any) -> Any:
        with tf.name_scope("transform"):
            if isinstance(element[0], Batch):
                return element[0]._replace(data=apply(*element[0].data))
            parts = 1 + (config.targets.kind != "none" or any(isinstance(part, dict) for part in element))
            return with_extras(apply(*element[:parts]), *element[parts:])

    try:
        return dataset.map(transform_batch, num_parallel_calls=tf.data.AUTOTUNE, name="transform")
    finally:
        if refused:
            # In place of AutoGraph's text about code that is not the user's.
            raise refused[0] from None


def stamp(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Adds to each batch the time at which it was ready: to a `Batch` by name, to a tuple at its end."""

    @stage("ready")
    def stamp_batch(*element: Any) -> Any:
        if isinstance(element[0], Batch):
            return element[0]._replace(ready=now_s(element[0].data))
        return (*element, now_s(element))

    # In a map of its own, for 10 microseconds per batch: tf.data never parallelises a map with a stateful clock.
    return dataset.map(stamp_batch, name="ready")


def prefetch(dataset: tf.data.Dataset, config: DataConfig) -> tf.data.Dataset:
    """Prepares batches ahead of their use."""
    size = tf.data.AUTOTUNE if config.prefetch_buffer_size == "auto" else config.prefetch_buffer_size
    return dataset.prefetch(size) if size else dataset
