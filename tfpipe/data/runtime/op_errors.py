"""Extracts readable messages from TensorFlow's errors."""

import re

import tensorflow as tf


def reason(error: tf.errors.OpError) -> str:
    """Returns the message of an op's error without its location in the graph and without a traceback."""
    message = re.sub(r"\\(['\"])", r"\1", error.message.split("\n\t [[")[0])  # an assertion escapes quotes
    # For an error raised in a Python function: the exception's message without the traceback.
    message, traceback, _ = message.partition("\nTraceback ")
    message = re.sub(r"(?s).*(?:Iterator::\S*: |\{\{.*?\}\} )", "", message).split(" [Op:")[0]
    message = re.sub(r"^\w+Error: ", "", message.strip()) if traceback else message
    # An assertion's message in graph, and in eager mode.
    message = re.sub(r"^assertion failed: \[(.*)\]$", r"\1", message.strip()).replace("] [", " ")
    return re.sub(r"(?s)^Expected 'tf\.Tensor.*Summarized data: b'(.*)'$", r"\1", message).removesuffix(".")
