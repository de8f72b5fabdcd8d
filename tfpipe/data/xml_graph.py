"""XMLs read in the pipeline, many at a call: by string ops, without the GIL, or by lxml through Python.

`parse_xml` splits at every "<", so that a token is `tag>value`, counts how deep each tag is, and picks those that are
where `annotations.read_xml` looks: object/name, object/bndbox/xmin, size/width. It refuses what lxml refuses, and what
it would read differently. Several XMLs at once cost little more than one, since a graph's cost is per op.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.data.annotations import Objects, objects_in
from tfpipe.data.voc import EDGES, MAX_BYTES, MOST, NUMBER

UNREADABLE = "not a whole annotation, or an object lacks its name or one of xmin, ymin, xmax, ymax:"
MAX_CHARS = 2**31 - 1
# What XML allows, in regular expressions: lxml refuses the rest, so the graph must.
CONTROL = r"\x00-\x08\x0B\x0C\x0E-\x1F\x{FFFE}\x{FFFF}"
ENTITY = r"&(?:amp|lt|gt|quot|apos|#[0-9]+|#x[0-9a-fA-F]+);"
COMMENT = rf"<!--(?:[^-{CONTROL}]|-[^-{CONTROL}])*-->|<\?[^{CONTROL}]*?\?>"
COMMENT_IN_TAG = r"(?s).*<[^<>]*<[!?].*"
BLANK = r"[ \t\r\n]"
LETTER = (
    r"A-Za-z_:\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{2FF}\x{370}-\x{37D}\x{37F}-\x{1FFF}\x{200C}\x{200D}\x{2070}-\x{218F}"
    r"\x{2C00}-\x{2FEF}\x{3001}-\x{D7FF}\x{F900}-\x{FDCF}\x{FDF0}-\x{FFFD}\x{10000}-\x{EFFFF}"
)
NAME = rf"[{LETTER}][-{LETTER}.0-9\x{{B7}}\x{{300}}-\x{{36F}}\x{{203F}}\x{{2040}}]*"
ATTRIBUTE = rf"""{BLANK}+{NAME}{BLANK}*={BLANK}*(?:"(?:[^"&{CONTROL}]|{ENTITY})*"|'(?:[^'&{CONTROL}]|{ENTITY})*')"""
# One attribute at most, since two of a name would have to be refused.
TOKEN = rf"(?:/{NAME}{BLANK}*|{NAME}(?:{ATTRIBUTE})?{BLANK}*/?)>(?:[^&{CONTROL}]|{ENTITY})*"
# Levels of tags that lxml reads; and more than the levels of an XML.
MAX_DEPTH = 256
DEEPEST = 2**31
# From the root's start to its end: a file that was cut off, or is none, does not match.
DOCUMENT = (
    rf"(?s)(\x{{FEFF}})?{BLANK}*(<[?!].*>{BLANK}*)?"
    rf"<annotation({BLANK}*/>|[\s>].*</annotation{BLANK}*>){BLANK}*(<!--.*-->{BLANK}*)?"
)


class Tokens(NamedTuple):
    """What n XMLs are split into, one after the other."""

    texts: tf.Tensor  # string [k]: `tag>value`, or what comes before an XML's first tag
    image: tf.Tensor  # int64 [k]: number of the XML, ascending
    is_tag: tf.Tensor  # bool [k]
    closing: tf.Tensor  # bool [k]
    step: tf.Tensor  # int32 [k]: 1 where a tag opens a level, -1 where it closes one, else 0
    above: tf.Tensor  # int32 [k]: the sum of the steps before
    depth: tf.Tensor  # int32 [k]: the root is at 1; 0 for what is no tag, or a closing one


class Found(NamedTuple):
    """The tokens that are wanted, each kind one after the other."""

    objects: tf.Tensor  # int64 [k]: number of each object's XML
    names: tf.Tensor  # string [j]: tokens
    name_of: tf.Tensor  # int32 [j]: number of the object
    edges: tf.Tensor  # string [e]: tokens
    edge_of: tf.Tensor  # int32 [e]: number of the object
    is_edge: tf.Tensor  # bool [e, 4]: which of EDGES
    sides: tf.Tensor  # string [s]: tokens
    side_of: tf.Tensor  # int64 [s]: number of the XML
    is_side: tf.Tensor  # bool [s, 2]: height or width
    stated_of: tf.Tensor  # int64 [t]: number of the XML of each side, whether its number can be read or not
    said_of: tf.Tensor  # int32 [u]: number of the object of each name and edge, whether they can be read or not


def parser(by_lxml: bool) -> Callable[[tf.Tensor, tf.Tensor], Objects]:
    """`parse_by_lxml` or `parse_xml`: from tensors to tensors, and with the same kind of error."""
    return parse_by_lxml if by_lxml else parse_xml


def parse_by_lxml(texts: tf.Tensor, paths: tf.Tensor) -> Objects:
    """The objects in some XMLs (string [n]; none where its path is ""), by lxml, which takes the GIL.

    Some 50 microseconds an XML, 32 at a call; in graph it takes 20 with two threads (profiles/annotations.py).

    Raises:
        tf.errors.InvalidArgumentError: as parse_xml; says which line.
    """

    def read(texts: np.ndarray, paths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, str]:
        try:
            return *objects_in(texts, [os.fsdecode(path) for path in paths]), ""
        except ValueError as error:
            return *objects_in(texts, [""] * len(texts)), str(error)

    types = [tf.int64, tf.string, tf.float32, tf.float32, tf.string]
    *found, problem = tf.numpy_function(read, [texts, paths], types, stateful=False)
    # An error of Python's would come with its traceback in place of the message.
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
        shapes = ([None], [None], [None, 4], [*texts.shape, 2])
        return Objects(*(tf.ensure_shape(each, shape) for each, shape in zip(found, shapes, strict=True)))


def parse_xml(texts: tf.Tensor, paths: tf.Tensor) -> Objects:
    """The objects in some XMLs (string [n]; none where its path is ""), as a graph of TensorFlow string ops.

    Raises:
        tf.errors.InvalidArgumentError: one is not whole, or an object lacks a name or a number; names the first.
    """
    whole, objects = examine(texts, paths)
    worst = tf.gather(paths, tf.argmin(tf.cast(whole, tf.int32)))
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(whole), [UNREADABLE, worst])]):
        return Objects(*map(tf.identity, objects))


def examine(texts: tf.Tensor, paths: tf.Tensor) -> tuple[tf.Tensor, Objects]:
    """bool [n]: which of some XMLs can be read; and what they say, which counts where all can."""
    plain = tf.strings.regex_replace(texts, COMMENT, "")
    tokens = tokenize(plain)
    found = find(tokens)
    boxes = _numbers(found.edges, found.is_edge, found.edge_of, found.objects)
    sizes = _numbers(found.sides, found.is_side, found.side_of, texts)
    # Not within MOST or no number at all, as infinity is.
    whole = is_well_formed(tokens, texts, plain) & is_complete(found, texts) & tf.reduce_all(tf.abs(sizes) < MOST, 1)
    whole &= tf.equal(_count(~tf.reduce_all(tf.abs(boxes) < MOST, 1), found.objects, texts), 0)
    names = tf.strings.strip(tf.strings.substr(found.names, 5, MAX_CHARS))
    names = tf.strings.regex_replace(names, "\r\n?", "\n")  # as XML has line ends
    return whole | tf.equal(paths, ""), Objects(found.objects, names, boxes, sizes)


def tokenize(plain: tf.Tensor) -> Tokens:
    """The tokens of XMLs (string [n]) without comments."""
    split = tf.raw_ops.StringSplitV2(input=plain, sep="<")
    tokens, (image, number) = split.values, tf.unstack(split.indices, axis=1)
    is_tag = number > 0
    closing = _looks(tokens, r"(?s)/.*")
    step = tf.where(is_tag & ~_looks(tokens, r"(?s)[^>]*/>.*"), tf.where(closing, -1, 1), 0)
    above = tf.cumsum(step, exclusive=True)
    depth = tf.where(is_tag & ~closing, 1 + above - tf.gather(tf.gather(above, _at(~is_tag)), image), 0)
    return Tokens(tokens, image, is_tag, closing, step, above, depth)


def is_well_formed(tokens: Tokens, texts: tf.Tensor, plain: tf.Tensor) -> tf.Tensor:
    """bool [n]: which of the XMLs, with their comments and without, are ones that lxml reads."""
    image = tokens.image
    whole = _looks(texts, DOCUMENT) & tf.equal(_count(tokens.step, image, texts), 0)
    whole &= (tf.strings.length(texts) <= MAX_BYTES) & tf.equal(_count(tokens.depth > MAX_DEPTH, image, texts), 0)
    whole &= ~_looks(texts, COMMENT_IN_TAG) & ~_looks(plain, r"(?s).*\]\]>.*")
    whole &= tf.equal(_count(tokens.is_tag & ~_looks(tokens.texts, TOKEN), image, texts), 0)
    alone, of = _closing_alone(tokens)
    whole &= tf.equal(_count(alone, of, texts), 0)
    return whole & (_count(tf.equal(tokens.depth, 1), image, texts) <= 1)


def _closing_alone(tokens: Tokens) -> tuple[tf.Tensor, tf.Tensor]:
    """bool [k]: of the tags that open or close a level, which close another than was opened; int64 [k]: their XMLs."""
    # In the order of the images and levels, a closing tag comes right after the one that it closes.
    ends = _at(tf.not_equal(tokens.step, 0))
    opening = tf.cast(~tokens.closing, tf.int32)
    level = tf.gather(tf.cast(tokens.above + opening, tf.int64) + DEEPEST * tokens.image, ends)
    ends, level = (tf.gather(each, tf.argsort(level, stable=True)) for each in (ends, level))
    tag, closes = tf.gather(tokens.texts, ends), tf.gather(tokens.closing, ends)
    tag = tf.strings.regex_replace(tag, r"(?s)^/?([^\s/>]*).*", r"\1", replace_global=False)
    other = tf.not_equal(tag, tf.roll(tag, 1, 0)) | tf.not_equal(level, tf.roll(level, 1, 0)) | tf.roll(closes, 1, 0)
    return closes & other, tf.gather(tokens.image, ends)


def find(tokens: Tokens) -> Found:
    """The names and edges of the objects, and the sides of the sizes."""
    is_child = tf.equal(tokens.depth, 2)  # of a root
    child, first_tokens = tf.cumsum(tf.cast(is_child, tf.int32)), tf.boolean_mask(tokens.texts, is_child)

    def within(is_parent: tf.Tensor, level: int, pattern: str) -> tf.Tensor:
        inside = _at(tf.gather(tf.concat([[False], is_parent], 0), child) & tf.equal(tokens.depth, level))
        return tf.boolean_mask(inside, _looks(tf.gather(tokens.texts, inside), pattern))

    is_object = _looks(first_tokens, r"(?s)object[\s/>].*")
    name_at = within(is_object, 3, r"name>[^<&]*")
    edge_at = within(is_object, 4, rf"[xy]m(in|ax)>{NUMBER}")
    said_at = [within(is_object, 3, r"(?s)name[\s/>].*"), within(is_object, 4, r"(?s)[xy]m(in|ax)[\s/>].*")]
    is_size = _looks(first_tokens, r"(?s)size[\s/>].*")
    side_at = within(is_size, 3, rf"(width|height)>{NUMBER}")
    stated_at = within(is_size, 3, r"(?s)(width|height)[\s/>].*")
    names, edges, sides = (tf.gather(tokens.texts, each) for each in (name_at, edge_at, side_at))

    owner = tf.cumsum(tf.cast(is_object, tf.int32)) - 1
    name_of, edge_of, said_of = (
        tf.gather(owner, tf.gather(child, each) - 1) for each in (name_at, edge_at, tf.concat(said_at, 0))
    )
    side_of, stated_of = (tf.gather(tokens.image, each) for each in (side_at, stated_at))
    objects = tf.boolean_mask(tf.boolean_mask(tokens.image, is_child), is_object)
    is_edge = tf.equal(tf.strings.substr(edges, 0, 4)[:, None], EDGES)
    is_side = tf.equal(tf.strings.substr(sides, 0, 1)[:, None], ["h", "w"])
    return Found(objects, names, name_of, edges, edge_of, is_edge, sides, side_of, is_side, stated_of, said_of)


def is_complete(found: Found, texts: tf.Tensor) -> tf.Tensor:
    """bool [n]: in which XMLs every object has its name and each of its edges once, every size each side at most once.

    A side that is there must be read: without it, the boxes would be taken as relative to another size.
    """
    objects = found.objects
    names = _count(tf.ones_like(found.name_of), found.name_of, objects)
    once = tf.concat([_count(found.is_edge, found.edge_of, objects), names[:, None]], 1)
    said = _count(tf.ones_like(found.said_of), found.said_of, objects)
    lacking = tf.reduce_any(tf.not_equal(once, 1), 1) | tf.not_equal(said, 1 + len(EDGES))
    whole = tf.equal(_count(lacking, objects, texts), 0)
    whole &= tf.reduce_all(_count(found.is_side, found.side_of, texts) <= 1, axis=1)
    read, stated = (_count(tf.ones_like(of), of, texts) for of in (found.side_of, found.stated_of))
    return whole & tf.equal(read, stated)


def _at(condition: tf.Tensor) -> tf.Tensor:
    return tf.where(condition)[:, 0]


def _looks(tokens: tf.Tensor, pattern: str) -> tf.Tensor:
    return tf.strings.regex_full_match(tokens, pattern)


def _count(numbers: tf.Tensor, segments: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
    """int32 [size of `of`, ...]: the sums of the numbers in each segment."""
    return tf.math.unsorted_segment_sum(tf.cast(numbers, tf.int32), segments, tf.size(of))


def _numbers(tokens: tf.Tensor, columns: tf.Tensor, rows: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
    """float32 [size of `of`, columns]: each token's number, where it belongs; 0 elsewhere."""
    read = tf.strings.to_number(tf.strings.regex_replace(tokens, ".*>", ""))
    return tf.math.unsorted_segment_sum(tf.where(columns, read[:, None], 0.0), rows, tf.size(of))
