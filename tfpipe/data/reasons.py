"""What TensorFlow's errors say, for people."""

import re

import tensorflow as tf


def reason(error: tf.errors.OpError) -> str:
    """What an op says went wrong, without where in the graph it stands."""
    said = re.sub(r"\\(['\"])", r"\1", error.message.split("\n\t [[")[0])  # an assertion escapes quotes
    return re.sub(r"(?s).*(?:Iterator::\S*: |\{\{.*?\}\} )", "", said).strip().removesuffix(".")
