"""Reads images and XMLs behind URLs: a thread that waits requests those of a batch at once."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog.locate import SamplePaths
from tfpipe.data.images.headers import jpeg_header
from tfpipe.data.runtime.parallelism import calls_at_once
from tfpipe.data.runtime.simulated_latency import simulate_latency
from tfpipe.data.runtime.stage import skip_failed_elements, stage
from tfpipe.data.sources.reading import Encoded, waiting
from tfpipe.data.sources.remote.fetcher import Fetcher, FetchError
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

IMAGES_PER_CALL = 32  # each with its XML; `data.remote.concurrency` limits the requests of all calls together


class Fetched(NamedTuple):
    """The files behind the URLs of n images."""

    jpeg: tf.Tensor  # string [n]; "" for the URL ""
    size: tf.Tensor  # int32 [n, 2]: height and width; 0: its JPEG header states none
    xml: tf.Tensor  # string [n]; "" if there is none
    xml_path: tf.Tensor  # string [n]: its URL; "" if there is none


def read_remote(dataset: tf.data.Dataset, split: Split, fetcher: Fetcher) -> tf.data.Dataset:
    """Fetches URLs, `SamplePaths` -> `Encoded`, IMAGES_PER_CALL at a time."""
    config, reads_xmls = split.config, split.catalog.reads_annotations
    check_cache(config)
    fetch = fetch_files(fetcher)

    @stage("read")
    def fetch_some(images: SamplePaths) -> Encoded:
        with tf.control_dependencies([simulate_latency(images.path[0])]):
            paths = tf.identity(images.path)
        jpeg, size, xml, xml_path = fetch(paths, images.xml_path if reads_xmls else tf.zeros_like(images.xml_path))
        return Encoded(images.visit, jpeg, size, xml, xml_path, images.label)

    if config.on_error == "skip":
        fetch_some = skip_failed_elements(fetch_some)
    return waiting(dataset.batch(IMAGES_PER_CALL), fetch_some, calls(config, split.world)).unbatch()


def fetch_files(fetcher: Fetcher) -> Callable[[tf.Tensor, tf.Tensor], Fetched]:
    """Returns an in-graph function: (URLs of images, URLs of their XMLs; string [n] each, "" for none) -> their files.

    Python is called once for n images and holds the GIL for about 10 microseconds an image, besides the requests in the
    fetcher's thread. A URL that cannot be fetched raises tf.errors.InvalidArgumentError, which names it.
    """
    fetch = fetcher.fetch

    def ask(images: np.ndarray, xmls: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, str]:
        urls = [url.decode() for url in (*images, *xmls)]
        results = fetch(urls)
        problem = next((str(result) for result in results if isinstance(result, FetchError)), "")
        contents = [result if isinstance(result, bytes) else b"" for result in results]
        there = [url if result is not None else "" for url, result in zip(urls, results, strict=True)]
        jpegs, texts, paths = contents[: len(images)], contents[len(images) :], there[len(images) :]
        return _strings(jpegs), _sizes(jpegs), _strings(texts), _strings(paths), problem

    def in_graph(images: tf.Tensor, xmls: tf.Tensor) -> Fetched:
        types = [tf.string, tf.int32, tf.string, tf.string, tf.string]
        *tensors, problem = tf.numpy_function(ask, [images, xmls], types, stateful=False)
        ranks = zip(tensors, ([], [2], [], []), strict=True)
        jpeg, size, xml, xml_path = (tf.ensure_shape(tensor, [*images.shape, *rest]) for tensor, rest in ranks)
        # An exception raised in Python would carry a traceback instead of the message.
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
            return Fetched(jpeg, size, xml, xml_path)

    return in_graph


def calls(config: DataConfig, world: World) -> int | None:
    """Returns the number of batches to request concurrently, so that none waits for the last request of another; None
    for one at a time, if `data.parallel.read` says so.
    """
    if calls_at_once(config, world).read is None:
        return None
    return 2 * -(-config.remote.concurrency // IMAGES_PER_CALL)


def check_cache(config: DataConfig) -> None:
    """Raises a ConfigError if `data.cache` is set: it reads files by path, which URLs are not."""
    if config.cache is not None:
        raise ConfigError(
            "data.cache holds files of a file system, and the filelist holds URLs: set data.remote.cache instead, "
            "to a folder on a local disk"
        )


def _strings(values: Sequence[bytes | str]) -> np.ndarray:
    # dtype object, since NumPy's byte strings lose trailing zeros.
    return np.array(values, object)


def _sizes(jpegs: Sequence[bytes]) -> np.ndarray:
    """Returns heights and widths (int32 [n, 2]) from JPEG headers; 0 if no header states them."""
    headers = [jpeg_header(jpeg) for jpeg in jpegs]
    return np.array([[0, 0] if header is None else [header.height, header.width] for header in headers], np.int32)
