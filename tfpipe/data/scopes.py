"""What the functions that a dataset maps have in common."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def stage(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function that a dataset maps: its ops go by `name` in a trace, and it is traced as it is written.

    AutoGraph, which rewrites Python's own `if` and `for`, would take half a second to find none that depends on a
    tensor.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def scoped(*args: Any) -> Any:
            with tf.name_scope(name):
                return function(*args)

        return tf.autograph.experimental.do_not_convert(scoped)

    return decorate
