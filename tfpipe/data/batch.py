"""A batch on its way to the user: its data, which `data.transform` may have shaped, and its positions by name."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.errors import ConfigError, counted

ACCEPTED = (
    "accepted: images and labels, or (x, y, sample_weight) as Keras takes them, where x and y are tensors, or "
    "dictionaries or tuples of tensors, each with a row for each crop of the batch; several views of a crop are one x: "
    "((first, second), labels)"
)


class Batch(NamedTuple):
    """The crops of a batch, what `data.transform` made of them, and where they are in the stream."""

    data: Any
    """(images, labels), with targets "none" (images,), or the value of `data.transform`: a tensor, a dictionary, or a
    tuple (x[, y[, weight]])."""
    positions: Any
    """int64 [batch, 2]: stream position and crop number."""
    ready: Any = ()
    """float64 []: seconds since 1970 when the batch was ready; () if that was not asked for."""
    moved_s: Any = ()
    """Seconds in which a thread put the data on a device, a float; () without one."""


def with_extras(data: Any, *extras: Any) -> Any:
    """Returns `data` with `extras` at its end, as a flat tuple if `data` is a tuple; `data` itself without extras."""
    if not extras:
        return data
    return (*data, *extras) if type(data) is tuple else (data, *extras)


def split_weights(data: Any, user: str) -> tuple[Any, Any, Any]:
    """Returns images, labels and the samples' weights, None without weights, of a batch's data.

    Raises ConfigError, on behalf of `user`, if `data.transform` has returned another structure.
    """
    if type(data) is tuple and len(data) > 1 and not any(isinstance(part, dict | tuple) for part in data):
        return data[0], data[1], data[2] if len(data) > 2 else None
    raise ConfigError(
        f"{user} needs a tensor of images and one of labels, and data.transform or data.views gave {_describe(data)}: "
        "return (images, labels) or (images, labels, weights), without views, or take the batches into a loop of your "
        "own with tfpipe.Loader"
    )


def apply_transform(function: Callable[..., Any], name: str, images: Any, *labels: Any) -> Any:
    """Returns `function(images, labels)` in graph, checked for what Keras, PyTorch and JAX can take.

    `images` are a tensor, or with `data.views` a tuple of tensors; without labels, `function` gets images alone.
    A number of rows that only a batch can tell is checked with each batch. Raises ConfigError, which says what
    `function`, called `name` in the config, has returned.
    """
    data = function(images, *labels)
    data, first = tuple(data) if isinstance(data, list) else data, tf.nest.flatten(images)[0]

    def refuse(reason: str) -> ConfigError:
        return ConfigError(f'data.transform "{name}" returned {_describe(data)}: {reason}; {ACCEPTED}')

    if type(data) is tuple and not 1 <= len(data) <= 3:
        raise refuse(f"a tuple of {len(data)}")
    for path, leaf in _leaves(data, ""):
        where = f"its part {path}" if path else "it"
        if not isinstance(leaf, tf.Tensor):
            raise refuse(f"{where} is no tensor but {_describe(leaf)}")
        if not (leaf.dtype.is_bool or leaf.dtype.is_floating or leaf.dtype.is_integer):
            raise refuse(f"{where} has the type {leaf.dtype.name}, which only TensorFlow knows")
        if leaf.shape.rank == 0:
            raise refuse(f"{where} has no batch dimension")
        crops, rows = first.shape[0], None if leaf.shape.rank is None else leaf.shape[0]
        if crops is not None and rows is not None and crops != rows:
            raise refuse(f"{where} has {counted(rows, 'row')}, and the batch has {counted(crops, 'crop')}")
    if type(data) is tuple and len(data) == 3:
        for path, leaf in _leaves(data[2], "[2]"):
            if not leaf.dtype.is_floating:
                raise refuse(f"its part {path} would weigh the samples, and is no float")
    return tf.nest.map_structure(lambda leaf: _with_rows(leaf, first, name), data)


def _with_rows(leaf: tf.Tensor, images: tf.Tensor, name: str) -> tf.Tensor:
    """Returns `leaf`, in graph with a check of its rows if they are not known before."""
    if leaf.shape.rank is not None and None not in (leaf.shape[0], images.shape[0]):
        return leaf
    rows, crops = tf.shape(leaf)[:1], tf.shape(images)[:1]
    # With the numbers in the text: what follows an assertion's text is not passed on to the user.
    message = tf.strings.format(
        f'data.transform: "{name}" gave a first dimension {{}} for a batch of {{}}', (rows, crops)
    )
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(tf.equal(rows, crops)), [message])]):
        return tf.identity(leaf)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields each part of a structure that is no dictionary or tuple, with its place, e.g. [0]['image']."""
    if isinstance(value, dict):
        for key in value:
            yield from _leaves(value[key], f"{path}[{key!r}]")
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from _leaves(part, f"{path}[{number}]")
    else:
        yield path, value


def _describe(value: Any) -> str:
    if isinstance(value, tf.Tensor):
        shape = "[...]" if value.shape.rank is None else value.shape.as_list()
        return f"{value.dtype.name} {str(shape).replace('None', 'batch')}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_describe(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple | list):
        parts = ", ".join(map(_describe, value))
        return f"[{parts}]" if isinstance(value, list) else f"({parts})"
    return type(value).__name__
