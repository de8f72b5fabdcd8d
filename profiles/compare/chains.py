"""The peers in TensorFlow's Python: tfpipe, the chain of the ALCF tutorial on tf.data, and Keras' own function."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import keras as keras_package
import numpy as np
import tensorflow as tf
from work import BATCH, RANDOM, SIZE, Work, read_boxes

import tfpipe as package

READERS = 8  # the tutorial's, and as many batches ahead
SHUFFLE = 1000


def tfpipe(work: Work) -> Iterator[tf.Tensor]:
    """The default config, without an index."""
    return _tfpipe(work, ["data.annotations=xml"])


def tfpipe_index(work: Work) -> Iterator[tf.Tensor]:
    """The default config, after `tfpipe index`: no XML is read."""
    return _tfpipe(work, ["data.annotations=index", f"data.index={work.folder}"])


def tfpipe_service(work: Work) -> Iterator[tf.Tensor]:
    """With an index and two workers on this machine."""
    return _tfpipe(work, ["data.annotations=index", f"data.index={work.folder}", "data.service=2"])


def tfpipe_graph(work: Work) -> Iterator[tf.Tensor]:
    """With an index, decoded by TensorFlow's ops."""
    return _tfpipe(work, ["data.annotations=index", f"data.index={work.folder}", "data.decoder=graph"])


def _tfpipe(work: Work, overrides: list[str]) -> Iterator[tf.Tensor]:
    config = package.load_config(f"{work.folder}/boxes.json", [*overrides, f"data.threads={work.threads}"])
    split = "test" if work.passes == 1 else "train"  # one exact pass, or an endless stream
    for images, _ in package.build_dataset(config, split, package.World.detect()):
        yield images


def whole(work: Work) -> Iterator[tf.Tensor]:
    """Whole images of loose files."""
    config = package.load_config(f"{work.folder}/whole.json", [f"data.threads={work.threads}"])
    split = "test" if work.passes == 1 else "train"  # one exact pass, or an endless stream
    for images, _ in package.build_dataset(config, split, package.World.detect()):
        yield images


def keras(work: Work) -> Iterator[tf.Tensor]:
    """Keras' function over class folders of links to the files; it prefetches, and tf.data sets its parallelism."""
    folder = Path(work.folder) / "keras"
    if work.passes == 1:
        for number, file in enumerate(work.files):
            link = folder / Path(file.image).parent.name / f"{number}.jpeg"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.image)
    dataset = keras_package.utils.image_dataset_from_directory(folder, batch_size=BATCH, image_size=SIZE, verbose=False)
    for images, _ in dataset.repeat(work.passes):
        yield images


def detect(work: Work) -> Iterator[tuple[tf.Tensor, tf.RaggedTensor]]:
    """Whole images and their boxes, with an index."""
    overrides = ["data.annotations=index", f"data.index={work.folder}", f"data.threads={work.threads}"]
    config = package.load_config(f"{work.folder}/detect.json", overrides)
    split = "test" if work.passes == 1 else "train"  # one exact pass, or an endless stream
    for images, targets in package.build_dataset(config, split, package.World.detect()):
        yield images, targets["boxes"]


def random_crops(work: Work, name: str) -> Iterator[tf.Tensor]:
    """The config `name` of run.py: loose files or packs."""
    config = package.load_config(f"{work.folder}/{name}.json", [f"data.threads={work.threads}"])
    dataset = package.build_dataset(config, "train", package.World.detect())
    left = len(work.files) * work.passes
    for images, _ in islice(dataset, -(-left // BATCH)):
        yield images[:left]
        left -= BATCH


def tutorial(work: Work) -> Iterator[tf.Tensor]:
    """With 8 readers."""
    return _tutorial(work, READERS)


def tutorial_serial(work: Work) -> Iterator[tf.Tensor]:
    """With one reader, and nothing ahead."""
    return _tutorial(work, None)


def _tutorial(work: Work, readers: int | None) -> Iterator[tf.Tensor]:
    def annotation(xml: tf.Tensor) -> tuple[np.ndarray, np.ndarray]:
        boxes = np.array(read_boxes(xml.numpy().decode()), np.float32)
        return boxes, np.zeros(len(boxes), np.int32)

    def load(file: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        boxes, labels = tf.py_function(annotation, [file[1]], [tf.float32, tf.int32])
        boxes, labels = tf.ensure_shape(boxes, [None, 4]), tf.ensure_shape(labels, [None])
        image = tf.io.decode_jpeg(tf.io.read_file(file[0]), channels=3)
        image = tf.image.convert_image_dtype(image, tf.float32)
        return tf.image.crop_and_resize(image[None], boxes, tf.zeros_like(labels), SIZE), labels

    dataset = tf.data.Dataset.from_tensor_slices(work.files).shard(1, 0).shuffle(SHUFFLE).repeat(work.passes)
    dataset = dataset.map(load, num_parallel_calls=readers).unbatch().batch(BATCH)
    if readers:
        dataset = dataset.prefetch(READERS)
    else:
        # Otherwise tf.data makes it parallel by itself.
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.map_parallelization = False
        options.experimental_optimization.inject_prefetch = False
        dataset = dataset.with_options(options)
    for images, _ in dataset:
        yield images


OURS = (tfpipe, tfpipe_index, tfpipe_service, tfpipe_graph, tutorial, tutorial_serial, whole, keras, detect)
PEERS = {each.__name__: each for each in OURS}
PEERS |= {name: partial(random_crops, name=name) for name in RANDOM}
