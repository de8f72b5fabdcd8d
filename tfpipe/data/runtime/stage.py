"""Decorates the functions that datasets map."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


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
