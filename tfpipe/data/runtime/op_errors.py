"""Turns TensorFlow's errors into readable messages, and into errors of the system."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf


def reason(error: tf.errors.OpError) -> str:
    """Returns the message of an op's error without its location in the graph and without a traceback."""
    message = unescape(error.message.split("\n\t [[")[0])
    # For an error raised in a Python function: the exception's message without the traceback.
    message, traceback, _ = message.partition("\nTraceback ")
    message = re.sub(r"(?s).*(?:Iterator::\S*: |\{\{.*?\}\} )", "", message).split(" [Op:")[0]
    message = re.sub(r"^\w+Error: ", "", message.strip()) if traceback else message
    # An assertion's message in graph, and in eager mode.
    message = re.sub(r"(?s)^assertion failed: \[(.*)\]$", r"\1", message.strip()).replace("] [", " ")
    return re.sub(r"(?s)^Expected 'tf\.Tensor.*Summarized data: b'(.*)'$", r"\1", message).removesuffix(".")


def unescape(message: str) -> str:
    """Returns the message of an assertion, which TensorFlow gives with a backslash before quotes, without these."""
    return re.sub(r"\\(['\"])", r"\1", message)


@contextmanager
def as_os_error() -> Iterator[None]:
    """Raises an OSError, with the first line of the message, for an error of an op that handles files inside `with`."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(reason(error).partition("\n")[0]) from error
