"""The differences between TensorFlow 2.15 and the newest, and its private names: asked for here, by their presence.

A site's build is neither what its version says nor where pip has it. Each difference names the version since which all
have it: once tfpipe needs that version, the answer for the others goes.
"""

import inspect
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import tensorflow as tf

from tfpipe.errors import ConfigError
from tfpipe.requirements import REMEDY, check_version
from tfpipe.util.process import load_for_all

check_version(tf.__version__, tf.__file__)

try:
    # The values of an iterator that can be cancelled, its call, and what ends the call from another thread.
    from tensorflow.python.data.util import structure as structure
    from tensorflow.python.eager import context as context
    from tensorflow.python.eager.cancellation import CancellationManager as CancellationManager
    from tensorflow.python.eager.execute import execute_with_cancellation as execute_with_cancellation

    # A run ends what it began; the clock is an op that deterministic ones refuse.
    from tensorflow.python.framework.config import disable_op_determinism as disable_op_determinism
    from tensorflow.python.framework.config import is_op_determinism_enabled as is_op_determinism_enabled

    # Reads a record at its offset.
    from tensorflow.python.lib.io.tf_record import tf_record_random_reader as tf_record_random_reader
except ImportError as error:
    raise ConfigError(f"TensorFlow {tf.__version__} lacks what tfpipe uses ({error}): {REMEDY}") from error

HAS_WEBP = hasattr(tf.io, "decode_webp")
"""Whether tf.io.decode_image has WebPs: since TensorFlow 2.20. Pillow decodes them before: grays within a level."""

LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


def make_symbols_global() -> None:
    """Lets libraries that are loaded from now on find TensorFlow's C interface.

    The wheels of 2.19 and newer have opened it to all when they were imported; older ones, and what a site builds
    without that option, leave it to those that link against it. Its libraries are loaded: no other file is opened.
    """
    for name in LIBRARIES:
        with suppress(OSError):  # a build may have all in one library
            load_for_all(name, os.RTLD_NOLOAD)


def unbounded_threads(wanted: bool = True) -> dict[str, bool]:
    """Returns the argument by which a dataset's `map` makes its calls in threads outside the pipeline's pool.

    Since TensorFlow 2.18; none before, where calls that wait for storage hold the pool's threads.
    """
    name = "use_unbounded_threadpool"
    return {name: wanted} if name in inspect.signature(tf.data.Dataset.map).parameters else {}


def model_proto(iterator: Iterator[Any]) -> Any:
    """Returns tf.data's model of an iterator's pipeline; None if there is none, or before TensorFlow 2.17."""
    read = getattr(tf.data.experimental, "get_model_proto", None)
    try:
        return read and read(iterator)
    except tf.errors.NotFoundError:
        return None


def shareable(tensor: tf.Tensor) -> Any:
    """Returns what another framework's `from_dlpack` takes: the tensor, or before TensorFlow 2.20 a capsule of it."""
    return tensor if hasattr(tensor, "__dlpack__") else tf.experimental.dlpack.to_dlpack(tensor)
