"""Remote images in graph: batches of them, each with its XML, are asked for together, by threads that wait."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.config import DataConfig, Remote
from tfpipe.data.catalog import Catalog
from tfpipe.data.closing import close_at_exit
from tfpipe.data.headers import jpeg_header
from tfpipe.data.images import image_size
from tfpipe.data.remote import Fetcher, FetchError
from tfpipe.data.threads import calls_at_once
from tfpipe.distributed import World
from tfpipe.errors import ConfigError


class Fetched(NamedTuple):
    """What is behind the URLs of n images."""

    jpeg: tf.Tensor  # string [n]; "" for the URL ""
    size: tf.Tensor  # int32 [n, 2]: height and width; 0 for the URL ""
    xml: tf.Tensor  # string [n], "" where there is none
    xml_path: tf.Tensor  # string [n]: its URL, "" where there is none


def fetcher(catalog: Catalog) -> Fetcher:
    """For the URLs of a catalog; one for all that are fetched alike, so that they share its connections.

    Raises:
        ConfigError: as Fetcher.
    """
    # What it does at the process's end comes before what was registered first.
    close_at_exit()
    assert catalog.remote is not None, "its paths are URLs"
    schemes = sorted({folder.partition("://")[0] for folder in catalog.paths.folders})
    return _fetcher(catalog.remote.model_dump_json(), tuple(schemes))


# TensorFlow never lets go of a Python function, nor of what it refers to: one for each pipeline would leave a thread.
@functools.cache
def _fetcher(config: str, schemes: tuple[str, ...]) -> Fetcher:
    return Fetcher(Remote.model_validate_json(config), [f"{scheme}://" for scheme in schemes])


def fetching(catalog: Catalog) -> Callable[[tf.Tensor, tf.Tensor], Fetched]:
    """In graph: from the URLs of images and of their XMLs (string [n] each, "" for none) to what is behind them.

    Python is called once for n images and holds the GIL for some 10 microseconds each, beside what the requests take
    in the fetcher's own thread. A URL that cannot be fetched raises tf.errors.InvalidArgumentError, naming it.

    Raises:
        ConfigError: as Fetcher.
    """
    fetch = fetcher(catalog).fetch

    def ask(images: np.ndarray, xmls: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, str]:
        urls = [url.decode() for url in (*images, *xmls)]
        found = fetch(urls)
        problem = next((str(each) for each in found if isinstance(each, FetchError)), "")
        contents = [each if isinstance(each, bytes) else b"" for each in found]
        there = [url if each is not None else "" for url, each in zip(urls, found, strict=True)]
        jpegs = contents[: len(images)]
        return (
            _strings(jpegs),
            _sizes(jpegs),
            _strings(contents[len(images) :]),
            _strings(there[len(images) :]),
            problem,
        )

    def in_graph(images: tf.Tensor, xmls: tf.Tensor) -> Fetched:
        types = [tf.string, tf.int32, tf.string, tf.string, tf.string]
        *found, problem = tf.numpy_function(ask, [images, xmls], types, stateful=False)
        jpeg, size, xml, xml_path = (
            tf.ensure_shape(each, [*images.shape, *rest]) for each, rest in zip(found, ([], [2], [], []), strict=True)
        )
        # An error of Python's would come with its traceback in place of the message.
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
            return Fetched(jpeg, _all_sizes(jpeg, size), xml, xml_path)

    return in_graph


def calls(remote: Remote, config: DataConfig, world: World) -> int | None:
    """Batches to be asked for at once; None for one, where files would be read one at a time.

    Twice as many as `data.remote.concurrency` takes, so that none has to wait for the last request of another.
    """
    if calls_at_once(config, world).read is None:
        return None
    return 2 * -(-remote.concurrency // remote.batch)


def check_cache(config: DataConfig) -> None:
    """Raises: ConfigError: `data.cache` is to keep files, which it knows by their paths."""
    if config.cache is not None and config.cache_stage == "files":
        raise ConfigError(
            "data.cache keeps files of a file system, and the filelist holds URLs: in its place, set data.remote.cache "
            'to a folder on a local disk, or data.cache_stage to "crops"'
        )


def _strings(values: Sequence[bytes | str]) -> np.ndarray:
    # Of objects, since numpy's own strings lose the zeros at their end.
    return np.array(values, object)


def _sizes(jpegs: Sequence[bytes]) -> np.ndarray:
    """int32 [n, 2]: heights and widths, 0 where a look at the header does not tell."""
    headers = [jpeg_header(jpeg) for jpeg in jpegs]
    return np.array([[0, 0] if each is None else [each.height, each.width] for each in headers], np.int32)


def _all_sizes(jpegs: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    unknown = tf.where(tf.equal(sizes[:, 0], 0) & tf.not_equal(jpegs, ""))

    def look() -> tf.Tensor:
        real = tf.map_fn(image_size, tf.gather_nd(jpegs, unknown), fn_output_signature=tf.TensorSpec([2], tf.int32))
        return tf.tensor_scatter_nd_update(sizes, unknown, real)

    return tf.cond(tf.size(unknown) > 0, look, lambda: sizes)
