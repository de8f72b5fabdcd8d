"""Changed XMLs on the way to training and to the index: both have the same boxes, inside the image, or both refuse."""

import random
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tests.support.xmls import changed, generated
from tfpipe.data.annotations.cleaning import BY_OBJECT
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.annotations.objects import Objects
from tfpipe.data.annotations.targets import target_parser
from tfpipe.data.images.crops import Targets
from tfpipe.data.images.headers import Header
from tfpipe.prepare.index_rows import Images, RawAnnotations, tabulate

# XMLs in a call, and the sides of their images in pixels.
TOGETHER, SIDE = 128, 300
CLASSES = ("n02017213", "a b")
# Between two tags, in a number's place.
ODD = [*"1e999 -1e39 1e38 1e9 -1e9 1e-45 0 -0.0 1e0 12.0 +.5".split(), "9" * 40, "nan", "inf", "0x1"]
NUMBER = re.compile(r">\s*[-\d.]+\s*<")
_PARSE = tf.function(
    lambda texts, paths, labels, sizes: target_parser(CLASSES)(
        texts, paths, labels, sizes, tf.fill(tf.shape(texts), "")
    ),
    input_signature=[
        *[tf.TensorSpec([None], tf.string)] * 2,
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None, 2], tf.int32),
    ],
    autograph=False,
)


def changed_xmls(count: int, seed: int) -> Iterator[str]:
    """XMLs at random, most of them damaged, with odd numbers or both."""
    draw = random.Random(seed)
    for _ in range(count):
        text = generated(draw)
        if draw.random() < 0.5:
            places = list(NUMBER.finditer(text))
            for place in sorted(draw.sample(places, min(len(places), 2)), key=lambda found: -found.start()):
                text = f"{text[: place.start()]}>{draw.choice(ODD)}<{text[place.end() :]}"
        yield changed(draw, text) if draw.random() < 0.7 else text


def fuzz_xmls(count: int, seed: int) -> Counter[str]:
    """How many XMLs had which outcome.

    Raises:
        AssertionError: training and the index disagree, or a box is outside of its image; says at which XMLs.
    """
    outcomes: Counter[str] = Counter()
    texts = list(changed_xmls(count, seed))
    for start in range(0, count, TOGETHER):
        readable: list[tuple[str, Objects]] = []
        for text in texts[start : start + TOGETHER]:
            try:
                readable.append((text, parse_annotation(text.encode(), "x")))
            except ValueError:
                assert not _trains(text), f"training alone reads {text!r}"
                outcomes["both refuse"] += 1
        outcomes["both read"] += len(readable)
        for label in (0, BY_OBJECT) if readable else ():
            outcomes["boxes"] += _compare(readable, label)
    return outcomes


def _targets(texts: list[str], label: int) -> Targets:
    sizes = tf.fill([len(texts), 2], SIDE)
    return _PARSE(tf.constant(texts), tf.constant(["x"] * len(texts)), tf.fill([len(texts)], label), sizes)


def _trains(text: str) -> bool:
    try:
        _targets([text], 0)
    except tf.errors.InvalidArgumentError:
        return False
    return True


def _compare(readable: list[tuple[str, Objects]], label: int) -> int:
    """Returns how many boxes training and the index make of XMLs; raises AssertionError if they differ."""
    texts, count = [text for text, _ in readable], len(readable)
    content = RawAnnotations()
    for _, found in readable:
        content.add(Header(SIDE, SIDE, 3, "JPEG"), found)
    images = Images(["x"] * count, ["x"] * count, np.full(count, label, np.int32))
    indexed = tabulate(images, content, {name: number for number, name in enumerate(CLASSES)})["boxes"].to_pylist()
    trained = _targets(texts, label)
    of, boxes = trained.images.numpy(), trained.boxes.numpy()
    for number, text in enumerate(texts):
        assert np.array_equal(boxes[of == number].ravel(), np.float32(indexed[number]).ravel()), text
    assert np.isfinite(boxes).all() and (boxes >= 0).all() and (boxes <= 1).all(), texts
    return len(boxes)
