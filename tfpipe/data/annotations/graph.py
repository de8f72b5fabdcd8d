"""Parses XMLs in the pipeline, many per call: by string ops, without the GIL, or by lxml through Python.

`parse_xml` splits the text at every "<", so that a token is `tag>value`, computes the depth of each tag, and picks the
tags that `objects.read_xml` reads: object/name, object/bndbox/xmin, size/width. It refuses XMLs that lxml refuses
or would read differently. In graph the cost is per op, so several XMLs cost little more than one.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.data.annotations.objects import Objects, objects_in
from tfpipe.data.annotations.voc import EDGES, MAX_BYTES, MOST, NUMBER

UNREADABLE = "not a whole annotation, or an object lacks its name or one of xmin, ymin, xmax, ymax:"
MAX_CHARS = 2**31 - 1
# XML's grammar as regular expressions: lxml refuses texts beyond it, so the graph must, too.
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
# At most one attribute per tag: with two, equal names would have to be detected and refused.
TOKEN = rf"(?:/{NAME}{BLANK}*|{NAME}(?:{ATTRIBUTE})?{BLANK}*/?)>(?:[^&{CONTROL}]|{ENTITY})*"
# Deepest nesting of tags that lxml reads; and a number above any depth.
MAX_DEPTH = 256
DEEPEST = 2**31
# A whole document, from the root's start to its end: a file that is cut off or not an annotation does not match.
DOCUMENT = (
    rf"(?s)(\x{{FEFF}})?{BLANK}*(<[?!].*>{BLANK}*)?"
    rf"<annotation({BLANK}*/>|[\s>].*</annotation{BLANK}*>){BLANK}*(<!--.*-->{BLANK}*)?"
)


class Tokens(NamedTuple):
    """The tokens of n XMLs, concatenated."""

    texts: tf.Tensor  # string [k]: `tag>value`, or the text before an XML's first tag
    image: tf.Tensor  # int64 [k]: number of the XML, ascending
    is_tag: tf.Tensor  # bool [k]
    closing: tf.Tensor  # bool [k]
    step: tf.Tensor  # int32 [k]: 1 if a tag opens a level, -1 if it closes one, else 0
    above: tf.Tensor  # int32 [k]: sum of the steps before this token
    depth: tf.Tensor  # int32 [k]: depth of an opening or empty tag, 1 for the root; 0 for all other tokens


class XmlTokens(NamedTuple):
    """The tokens of n XMLs that hold names, edges and sizes, concatenated by kind."""

    objects: tf.Tensor  # int64 [k]: number of each object's XML
    names: tf.Tensor  # string [j]: tokens
    name_of: tf.Tensor  # int32 [j]: number of the object
    edges: tf.Tensor  # string [e]: tokens
    edge_of: tf.Tensor  # int32 [e]: number of the object
    is_edge: tf.Tensor  # bool [e, 4]: one-hot, which of EDGES
    sides: tf.Tensor  # string [s]: tokens
    side_of: tf.Tensor  # int64 [s]: number of the XML
    is_side: tf.Tensor  # bool [s, 2]: one-hot, height or width
    stated_of: tf.Tensor  # int64 [t]: number of the XML of each side, including sides with an unreadable number
    present_of: tf.Tensor  # int32 [u]: number of the object of each name and edge, including unreadable ones


def parser(by_lxml: bool) -> Callable[[tf.Tensor, tf.Tensor], Objects]:
    """Returns `parse_by_lxml` or `parse_xml`, which have the same signature and raise the same type of error."""
    return parse_by_lxml if by_lxml else parse_xml


def parse_by_lxml(texts: tf.Tensor, paths: tf.Tensor) -> Objects:
    """Parses n XMLs (string [n]; ignored if its path is "") by lxml, which holds the GIL.

    Takes some 50 microseconds per XML, 32 per call; parse_xml takes 20 with two threads (profiles/annotations.py).

    Raises:
        tf.errors.InvalidArgumentError: see parse_xml; the message also has the line number.
    """

    def read(texts: np.ndarray, paths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, str]:
        try:
            return *objects_in(texts, [os.fsdecode(path) for path in paths]), ""
        except ValueError as error:
            return *objects_in(texts, [""] * len(texts)), str(error)

    types = [tf.int64, tf.string, tf.float32, tf.float32, tf.string]
    *tensors, problem = tf.numpy_function(read, [texts, paths], types, stateful=False)
    # Raised in Python, the error would carry a traceback instead of the message alone.
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
        shapes = ([None], [None], [None, 4], [*texts.shape, 2])
        return Objects(*(tf.ensure_shape(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)))


def parse_xml(texts: tf.Tensor, paths: tf.Tensor) -> Objects:
    """Parses n XMLs (string [n]; ignored if its path is "") by TensorFlow's string ops.

    Raises:
        tf.errors.InvalidArgumentError: an XML is incomplete, or an object lacks a name or a number; names the first.
    """
    readable, objects = examine(texts, paths)
    worst = tf.gather(paths, tf.argmin(tf.cast(readable, tf.int32)))
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(readable), [UNREADABLE, worst])]):
        return Objects(*map(tf.identity, objects))


def examine(texts: tf.Tensor, paths: tf.Tensor) -> tuple[tf.Tensor, Objects]:
    """Returns which of n XMLs can be read (bool [n]), and their objects, which are valid only if all can."""
    plain = tf.strings.regex_replace(texts, COMMENT, "")
    tokens = tokenize(plain)
    fields = find(tokens)
    boxes = _numbers(fields.edges, fields.is_edge, fields.edge_of, fields.objects)
    sizes = _numbers(fields.sides, fields.is_side, fields.side_of, texts)
    # `abs(x) < MOST` is false for too large numbers, infinity and NaN.
    valid = is_well_formed(tokens, texts, plain) & is_complete(fields, texts) & tf.reduce_all(tf.abs(sizes) < MOST, 1)
    valid &= tf.equal(_count(~tf.reduce_all(tf.abs(boxes) < MOST, 1), fields.objects, texts), 0)
    names = tf.strings.strip(tf.strings.substr(fields.names, 5, MAX_CHARS))
    names = tf.strings.regex_replace(names, "\r\n?", "\n")  # XML normalises line ends
    return valid | tf.equal(paths, ""), Objects(fields.objects, names, boxes, sizes)


def tokenize(plain: tf.Tensor) -> Tokens:
    """Splits n XMLs without comments (string [n]) into tokens."""
    split = tf.raw_ops.StringSplitV2(input=plain, sep="<")
    tokens, (image, number) = split.values, tf.unstack(split.indices, axis=1)
    is_tag = number > 0
    closing = _looks(tokens, r"(?s)/.*")
    step = tf.where(is_tag & ~_looks(tokens, r"(?s)[^>]*/>.*"), tf.where(closing, -1, 1), 0)
    above = tf.cumsum(step, exclusive=True)
    depth = tf.where(is_tag & ~closing, 1 + above - tf.gather(tf.gather(above, _at(~is_tag)), image), 0)
    return Tokens(tokens, image, is_tag, closing, step, above, depth)


def is_well_formed(tokens: Tokens, texts: tf.Tensor, plain: tf.Tensor) -> tf.Tensor:
    """Returns bool [n]: which XMLs lxml would read, given their `texts` and the same without comments, `plain`."""
    image = tokens.image
    valid = _looks(texts, DOCUMENT) & tf.equal(_count(tokens.step, image, texts), 0)
    valid &= (tf.strings.length(texts) <= MAX_BYTES) & tf.equal(_count(tokens.depth > MAX_DEPTH, image, texts), 0)
    valid &= ~_looks(texts, COMMENT_IN_TAG) & ~_looks(plain, r"(?s).*\]\]>.*")
    valid &= tf.equal(_count(tokens.is_tag & ~_looks(tokens.texts, TOKEN), image, texts), 0)
    unmatched, owners = _closing_alone(tokens)
    valid &= tf.equal(_count(unmatched, owners, texts), 0)
    return valid & (_count(tf.equal(tokens.depth, 1), image, texts) <= 1)


def _closing_alone(tokens: Tokens) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns which of the tags that open or close a level close another tag (bool [k]); and their XMLs (int64 [k])."""
    # Sorted by XML and level, a closing tag comes right after the tag that it closes.
    ends = _at(tf.not_equal(tokens.step, 0))
    opening = tf.cast(~tokens.closing, tf.int32)
    level = tf.gather(tf.cast(tokens.above + opening, tf.int64) + DEEPEST * tokens.image, ends)
    ends, level = (tf.gather(values, tf.argsort(level, stable=True)) for values in (ends, level))
    tag, closes = tf.gather(tokens.texts, ends), tf.gather(tokens.closing, ends)
    tag = tf.strings.regex_replace(tag, r"(?s)^/?([^\s/>]*).*", r"\1", replace_global=False)
    other = tf.not_equal(tag, tf.roll(tag, 1, 0)) | tf.not_equal(level, tf.roll(level, 1, 0)) | tf.roll(closes, 1, 0)
    return closes & other, tf.gather(tokens.image, ends)


def find(tokens: Tokens) -> XmlTokens:
    """Finds the names and edges of all objects, and the heights and widths of all images."""
    is_child = tf.equal(tokens.depth, 2)  # a child of the root
    child, first_tokens = tf.cumsum(tf.cast(is_child, tf.int32)), tf.boolean_mask(tokens.texts, is_child)

    def within(is_parent: tf.Tensor, level: int, pattern: str) -> tf.Tensor:
        inside = _at(tf.gather(tf.concat([[False], is_parent], 0), child) & tf.equal(tokens.depth, level))
        return tf.boolean_mask(inside, _looks(tf.gather(tokens.texts, inside), pattern))

    is_object = _looks(first_tokens, r"(?s)object[\s/>].*")
    name_at = within(is_object, 3, r"name>[^<&]*")
    edge_at = within(is_object, 4, rf"[xy]m(in|ax)>{NUMBER}")
    present_at = [within(is_object, 3, r"(?s)name[\s/>].*"), within(is_object, 4, r"(?s)[xy]m(in|ax)[\s/>].*")]
    is_size = _looks(first_tokens, r"(?s)size[\s/>].*")
    side_at = within(is_size, 3, rf"(width|height)>{NUMBER}")
    stated_at = within(is_size, 3, r"(?s)(width|height)[\s/>].*")
    names, edges, sides = (tf.gather(tokens.texts, at) for at in (name_at, edge_at, side_at))

    owner = tf.cumsum(tf.cast(is_object, tf.int32)) - 1
    name_of, edge_of, present_of = (
        tf.gather(owner, tf.gather(child, at) - 1) for at in (name_at, edge_at, tf.concat(present_at, 0))
    )
    side_of, stated_of = (tf.gather(tokens.image, at) for at in (side_at, stated_at))
    objects = tf.boolean_mask(tf.boolean_mask(tokens.image, is_child), is_object)
    is_edge = tf.equal(tf.strings.substr(edges, 0, 4)[:, None], EDGES)
    is_side = tf.equal(tf.strings.substr(sides, 0, 1)[:, None], ["h", "w"])
    return XmlTokens(objects, names, name_of, edges, edge_of, is_edge, sides, side_of, is_side, stated_of, present_of)


def is_complete(fields: XmlTokens, texts: tf.Tensor) -> tf.Tensor:
    """Returns bool [n]: which XMLs have each object's name and edges exactly once, and height and width at most once.

    A height or width that is present must be readable: otherwise boxes would be taken as relative to another size.
    """
    objects = fields.objects
    names = _count(tf.ones_like(fields.name_of), fields.name_of, objects)
    once = tf.concat([_count(fields.is_edge, fields.edge_of, objects), names[:, None]], 1)
    present = _count(tf.ones_like(fields.present_of), fields.present_of, objects)
    lacking = tf.reduce_any(tf.not_equal(once, 1), 1) | tf.not_equal(present, 1 + len(EDGES))
    complete = tf.equal(_count(lacking, objects, texts), 0)
    complete &= tf.reduce_all(_count(fields.is_side, fields.side_of, texts) <= 1, axis=1)
    read, stated = (_count(tf.ones_like(rows), rows, texts) for rows in (fields.side_of, fields.stated_of))
    return complete & tf.equal(read, stated)


def _at(condition: tf.Tensor) -> tf.Tensor:
    return tf.where(condition)[:, 0]


def _looks(tokens: tf.Tensor, pattern: str) -> tf.Tensor:
    return tf.strings.regex_full_match(tokens, pattern)


def _count(numbers: tf.Tensor, segments: tf.Tensor, owners: tf.Tensor) -> tf.Tensor:
    """Returns int32 [size of `owners`, ...]: the sum of the numbers in each segment, one segment per owner."""
    return tf.math.unsorted_segment_sum(tf.cast(numbers, tf.int32), segments, tf.size(owners))


def _numbers(tokens: tf.Tensor, columns: tf.Tensor, rows: tf.Tensor, owners: tf.Tensor) -> tf.Tensor:
    """Returns float32 [size of `owners`, columns]: each token's number in its row and column; 0 elsewhere."""
    read = tf.strings.to_number(tf.strings.regex_replace(tokens, ".*>", ""))
    return tf.math.unsorted_segment_sum(tf.where(columns, read[:, None], 0.0), rows, tf.size(owners))
