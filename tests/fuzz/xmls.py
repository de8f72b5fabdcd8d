"""Changed XMLs through both readers: they agree, or one or both refuse; no box is outside of its image."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tests.support.xmls import changed, generated
from tfpipe.data.annotations import Objects
from tfpipe.data.catalog import Catalog
from tfpipe.data.crops import find_targets
from tfpipe.data.filelist import FileList
from tfpipe.data.index_rows import Annotated, targets
from tfpipe.data.labels import BY_OBJECT
from tfpipe.data.voc import Found, find_by_lxml, find_objects
from tfpipe.data.xml_graph import examine, parse_xml

# At a call of the graph.
TOGETHER = 128
CLASSES = ("n02017213", "a b")
# Between two tags, in a number's place.
ODD = [
    "1e999",
    "-1e39",
    "1e38",
    "1e9",
    "-1e9",
    "1e-45",
    "0",
    "-0.0",
    "1e0",
    "12.0",
    "+.5",
    "9" * 40,
    "nan",
    "inf",
    "0x1",
]
NUMBER = re.compile(r">\s*[-\d.]+\s*<")
TEXTS = [tf.TensorSpec([None], tf.string)] * 2


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
        AssertionError: the readers disagree, or a box is none; says which XML.
    """
    mask = tf.function(lambda texts, paths: examine(texts, paths)[0], input_signature=TEXTS)
    parse, boxes_of = tf.function(parse_xml, input_signature=TEXTS), _Boxes()
    outcomes: Counter[str] = Counter()
    texts = list(changed_xmls(count, seed))
    for start in range(0, count, TOGETHER):
        some = texts[start : start + TOGETHER]
        by_lxml = [_by_lxml(text) for text in some]
        paths = tf.constant(["x"] * len(some))
        in_graph = mask(tf.constant(some), paths).numpy()
        for text, found, whole in zip(some, by_lxml, in_graph, strict=True):
            assert not (whole and found is None), f"the graph alone reads {text!r}"
            # Another that is malformed, in the same call, may have spoilt it.
            whole = whole or (found is not None and bool(mask(tf.constant([text]), tf.constant(["x"])).numpy()[0]))
            outcomes["both read" if whole else "both refuse" if found is None else "lxml alone reads"] += 1
        good = [(text, found) for text, found, whole in zip(some, by_lxml, in_graph, strict=True) if whole]
        if good:
            together = parse(tf.constant([text for text, _ in good]), tf.constant(["x"] * len(good)))
            _compare(together, good)
        readable = [found for found in by_lxml if found is not None]
        outcomes["boxes"] += boxes_of.check(readable) if readable else 0
    return outcomes


def _by_lxml(text: str) -> Found | None:
    """By lxml; what is read quickly is the same."""
    try:
        found = find_by_lxml(text.encode(), "x")
    except ValueError:
        found = None
    try:
        quick = find_objects(text.encode(), "x")
    except ValueError:
        quick = None
    assert quick == found, text
    return found


def _compare(together: tuple[tf.Tensor, ...], good: list[tuple[str, Found]]) -> None:
    images, names, boxes, sizes = (each.numpy() for each in together)
    for number, (text, found) in enumerate(good):
        mine = images == number
        assert [name.decode() for name in names[mine]] == found.names, text
        # Below the smallest normal number TensorFlow has 0.
        np.testing.assert_allclose(boxes[mine].ravel(), np.float32(found.edges), rtol=0, atol=1e-37, err_msg=text)
        np.testing.assert_allclose(sizes[number], np.float32(found.size), rtol=0, atol=1e-37, err_msg=text)


class _Boxes:
    """The boxes that training and the index make of what XMLs say."""

    def __init__(self) -> None:
        specs = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.string)]
        specs += [tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None, 2], tf.float32)]
        self.graphs = {label: tf.function(_boxes_by(label), input_signature=specs) for label in (0, BY_OBJECT)}

    def check(self, found: list[Found]) -> int:
        counts = [len(each.names) for each in found]
        images = np.repeat(np.arange(len(found)), counts)
        names = [name for each in found for name in each.names]
        boxes = np.array([edge for each in found for edge in each.edges], np.float32).reshape(-1, 4)
        sizes = np.array([each.size for each in found], np.float32)
        checked = 0
        for label, graph in self.graphs.items():
            stated = np.where((sizes >= 1).all(axis=1)[:, None], sizes, np.float32(300))
            numbers = np.array([CLASSES.index(name) if name in CLASSES else -1 for name in names], np.int32)
            labels = np.full(len(found), label, np.int32)
            indexed = targets(Annotated(images, boxes, numbers), labels, stated).boxes
            trained = graph(images, tf.constant(names, tf.string, shape=[len(names)]), boxes, sizes).numpy()
            for each in (indexed, trained):
                assert np.isfinite(each).all() and (each >= 0).all() and (each <= 1).all()
                checked += len(each)
        return checked


def _boxes_by(label: int) -> Callable[..., tf.Tensor]:
    """Returns a graph of what find_targets makes of XMLs, where all images have this label."""
    labels = np.array([label], np.int32)
    catalog = Catalog("train", FileList.of(["a"]), [""], np.ones(1, bool), labels, CLASSES)

    def find(images: tf.Tensor, names: tf.Tensor, boxes: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
        real, same = tf.fill(tf.shape(sizes), 300), tf.fill(tf.shape(sizes)[:1], tf.constant(label, tf.int32))
        return find_targets(Objects(images, names, boxes, sizes), same, real, catalog).boxes

    return find
