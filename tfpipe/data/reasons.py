"""What TensorFlow's errors say, for people."""

import re

import tensorflow as tf


def reason(error: tf.errors.OpError) -> str:
    """What an op says went wrong, without where in the graph it stands."""
    said = re.sub(r"\\(['\"])", r"\1", error.message.split("\n\t [[")[0])  # an assertion escapes quotes
    # Of a Python function: what it raised, without where in it.
    said, traceback, _ = said.partition("\nTraceback ")
    said = re.sub(r"(?s).*(?:Iterator::\S*: |\{\{.*?\}\} )", "", said).split(" [Op:")[0]
    said = re.sub(r"^\w+Error: ", "", said.strip()) if traceback else said
    # As an assertion says it in a graph, and outside.
    said = re.sub(r"^assertion failed: \[(.*)\]$", r"\1", said.strip()).replace("] [", " ")
    return re.sub(r"(?s)^Expected 'tf\.Tensor.*Summarized data: b'(.*)'$", r"\1", said).removesuffix(".")
