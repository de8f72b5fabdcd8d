"""What TensorFlow's errors say, for people."""

import re

import tensorflow as tf


def reason(error: tf.errors.OpError) -> str:
    """What an op says went wrong, without where in the graph it stands."""
    said = re.sub(r"\\(['\"])", r"\1", error.message.split("\n\t [[")[0])  # an assertion escapes quotes
    # Of a Python function, without where in it.
    said = re.sub(r"(?s)(?:\w+Error: )?(.*?)\nTraceback .*", r"\1", said)
    said = re.sub(r"(?s).*(?:Iterator::\S*: |\{\{.*?\}\} )", "", said).split(" [Op:")[0]
    # As an assertion says it in a graph, and outside.
    said = re.sub(r"^assertion failed: \[(.*)\]$", r"\1", said.strip()).replace("] [", " ")
    return re.sub(r"(?s)^Expected 'tf\.Tensor.*Summarized data: b'(.*)'$", r"\1", said).removesuffix(".")
