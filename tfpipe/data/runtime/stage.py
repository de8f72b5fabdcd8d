"""Decorates the functions that datasets map."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

T = TypeVar("T")
# Batch size that takes in all crops of a call.
ALL = 2**31
NO_CROP = "no crop came of a whole epoch's number of samples in a row"


def stage(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Puts the ops of a function that a dataset maps into the name scope `name` and exempts it from AutoGraph.

    AutoGraph would take half a second per function, and these have no `if` or `for` that depends on a tensor.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def scoped(*args: Any, **options: Any) -> Any:
            with tf.name_scope(name):
                return function(*args, **options)

        return tf.autograph.experimental.do_not_convert(scoped)

    return decorate


def skip_failed_elements(work: Callable[[Any], T]) -> Callable[[Any], T]:
    """Wraps `work`, a function in graph: if it fails on n images, applies it to each alone and skips those that fail.

    Costs 0.1 ms per call unless an image fails. All crops of an image are used or none; a skipped image leaves a gap
    among the positions. `work` maps tensors [n, ...] to tensors [k, ...] for any k.
    """

    @tf.autograph.experimental.do_not_convert
    def attempt(images: Any) -> T:
        together = tf.data.Dataset.from_tensors(images).map(work).ignore_errors()
        alone = tf.data.Dataset.from_tensor_slices(images).batch(1).map(work).ignore_errors()
        none = tf.nest.map_structure(lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), together.element_spec)
        # take(1) evaluates these in turn: each only if the ones before are empty.
        joined = together.concatenate(alone.unbatch().batch(ALL)).concatenate(tf.data.Dataset.from_tensors(none))
        return joined.take(1).get_single_element()

    return attempt


def refuse_endless(dataset: tf.data.Dataset, most: int) -> tf.data.Dataset:
    """Ends a stream, with the error NO_CROP, at `most` elements in a row without a crop: it would never give a batch.

    Elements are NamedTuples of tensors [k, ...] for any k.
    """

    @tf.autograph.experimental.do_not_convert
    def count(empty: tf.Tensor, crops: T) -> tuple[tf.Tensor, T]:
        empty = tf.where(tf.equal(tf.shape(tf.nest.flatten(crops)[0])[0], 0), empty + 1, 0)
        with tf.control_dependencies([tf.debugging.Assert(empty < most, [NO_CROP])]):
            return tf.identity(empty), crops

    return dataset.scan(0, count)
