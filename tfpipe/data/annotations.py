"""Annotations: where an image's XML is, and what objects it holds.

Two readers of Pascal VOC XML give the same `Objects`: `read_xml` with lxml, the reference, which reads any XML and says
what is wrong with one; and `parse_xml`, a graph of string ops, which runs in parallel without the GIL, and refuses what
is written in an unusual way.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from tfpipe.config import Layout
from tfpipe.data.filelist import SCAN_THREADS, FileList
from tfpipe.data.files import read_whole
from tfpipe.data.voc import EDGES, NOTHING, NUMBER, find_by_lxml
from tfpipe.errors import ConfigError

LAYOUTS = {
    "ilsvrc": Layout(images="Data/CLS-LOC", annotations="Annotations/CLS-LOC"),
    "voc": Layout(images="JPEGImages", annotations="Annotations"),
}
UNREADABLE = "not a whole annotation, or an object lacks its name or one of xmin, ymin, xmax, ymax:"
MAX_CHARS = 2**31 - 1
# What XML allows, in regular expressions: lxml refuses the rest, so the graph must.
CONTROL = r"\x00-\x08\x0B\x0C\x0E-\x1F\x{FFFE}\x{FFFF}"
ENTITY = r"&(?:amp|lt|gt|quot|apos|#[0-9]+|#x[0-9a-fA-F]+);"
COMMENT = rf"<!--(?:[^-{CONTROL}]|-[^-{CONTROL}])*-->|<\?[^{CONTROL}]*?\?>"
COMMENT_IN_TAG = r"(?s).*<[^<>]*<[!?].*"
ATTRIBUTE = rf"""\s+[^\s/>=&"']+\s*=\s*(?:"(?:[^"&{CONTROL}]|{ENTITY})*"|'(?:[^'&{CONTROL}]|{ENTITY})*')"""
TOKEN = rf"(?:/[^\s/>]+\s*|[A-Za-z_:][^\s/>=&\"']*(?:{ATTRIBUTE})*\s*/?)>(?:[^&{CONTROL}]|{ENTITY})*"
DEEPEST = 2**31
# From the root's start to its end: a file that was cut off, or is none, does not match.
DOCUMENT = r"(?s)(\x{FEFF})?\s*(<[?!].*>\s*)?<annotation(\s*/>|[\s>].*</annotation\s*>)\s*(<!--.*-->\s*)?"


class Objects(NamedTuple):
    """What n XMLs say, as numpy arrays or tensors: their objects, one after the other."""

    images: Any  # int64 [k]: number of the object's XML, ascending
    names: Any  # string [k]
    boxes: Any  # float32 [k, 4]: ymin, xmin, ymax, xmax in pixels, as annotated
    sizes: Any  # float32 [n, 2]: height and width of each image as annotated; 0 where not stated


def find_layout(layout: str | Layout, paths: Sequence[str]) -> Layout:
    """The rule for these image paths; "auto" is the known layout that fits the first of them.

    Raises:
        ConfigError: none fits.
    """
    if isinstance(layout, Layout):
        return layout
    known = LAYOUTS if layout == "auto" else {layout: LAYOUTS[layout]}
    for rule in known.values():
        if f"/{rule.images}/" in paths[0]:
            return rule
    folders = " or ".join(rule.images for rule in known.values())
    raise ConfigError(
        f"{paths[0]} is in no folder {folders}, so where its XML would be is unknown; set data.layout to "
        '{"images": FOLDER, "annotations": FOLDER}, or data.annotations to "none"'
    )


def annotation_folders(paths: FileList, layout: Layout) -> list[str]:
    """For each of `paths.folders`, where the XMLs of its images belong, with a slash at the end.

    ROOT/images/a/ -> ROOT/annotations/a/, where `layout` has "images" and "annotations". Anchored at the last place
    where the path holds the images folder whole, so that a folder above it may have any name, e.g.
    /lus/Data/ILSVRC/Data/CLS-LOC/train/n02437312/.

    Raises:
        ConfigError: a folder is not below one `layout.images`; names its first image.
    """
    folders = []
    for number, folder in enumerate(paths.folders):
        root, found, rest = folder.rpartition(f"/{layout.images}/")
        if not found:
            image = paths[int(np.argmax(paths.folder == number))]
            raise ConfigError(f'{image} is in no folder "{layout.images}", as data.layout has it')
        folders.append(f"{root}/{layout.annotations}/{rest}")
    return folders


def xml_name(image: str) -> str:
    """The base name of an image's XML, given the image's: its last extension, where it has one, becomes .xml."""
    return f"{image.rpartition('.')[0] or image}.xml"


def existing(paths: FileList, layout: Layout) -> np.ndarray:
    """bool [len(paths)]: which images have an XML.

    Lists each annotation folder once, which on a parallel file system is a thousand times cheaper than asking
    for each file.

    Raises:
        ConfigError: as annotation_folders.
    """
    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        listings = pool.map(_names_in, annotation_folders(paths, layout))
        listed = {number: names for number, names in enumerate(listings) if names}
    if not listed:
        return np.zeros(len(paths), bool)
    found = (folder in listed and xml_name(name) in listed[folder] for folder, name in paths.entries())
    return np.fromiter(found, bool, len(paths))


def _names_in(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def read_xml(path: str) -> Objects:
    """The objects in the XML at `path`, by lxml.

    Raises:
        ValueError: it is not XML, or an object lacks a name or a number; says which.
        OSError: it cannot be read.
    """
    return objects_in([read_whole(path)], [path])


def objects_in(texts: Sequence[bytes], paths: Sequence[str]) -> Objects:
    """The objects in some XMLs, by lxml; none where a path is "".

    Raises:
        ValueError: as read_xml.
    """
    found = [find_by_lxml(text, path) if path else NOTHING for text, path in zip(texts, paths, strict=True)]
    return Objects(
        np.repeat(np.arange(len(found)), [len(each.names) for each in found]),
        np.array([name for each in found for name in each.names], object),
        np.array([edge for each in found for edge in each.edges], np.float32).reshape(-1, 4),
        np.array([each.size for each in found], np.float32),
    )


def parser(by_lxml: bool) -> Callable[[Any, Any], Objects]:
    """`parse_by_lxml` or `parse_xml`: from tensors to tensors, and with the same kind of error."""
    return parse_by_lxml if by_lxml else parse_xml


def parse_by_lxml(texts: Any, paths: Any) -> Objects:
    """The objects in some XMLs (string [n]; none where its path is ""), by lxml, which takes the GIL.

    Raises:
        tf.errors.InvalidArgumentError: as parse_xml; says which line.
    """
    import tensorflow as tf

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


def parse_xml(texts: Any, paths: Any) -> Objects:
    """The objects in some XMLs (string [n]; none where its path is ""), as a graph of TensorFlow string ops.

    Splits at every "<", so that a token is `tag>value`, counts how deep each tag is, and picks those that are where
    `read_xml` looks: object/name, object/bndbox/xmin, size/width. Refuses what lxml refuses, and what it would read
    differently. Several XMLs at once cost little more than one, since a graph's cost is per op.

    Raises:
        tf.errors.InvalidArgumentError: one is not whole, or an object lacks a name or a number; names the first.
    """
    import tensorflow as tf

    def at(condition: tf.Tensor) -> tf.Tensor:
        return tf.where(condition)[:, 0]

    def looks(tokens: tf.Tensor, pattern: str) -> tf.Tensor:
        return tf.strings.regex_full_match(tokens, pattern)

    def count(numbers: tf.Tensor, segments: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(tf.cast(numbers, tf.int32), segments, tf.size(of))

    def numbers(tokens: tf.Tensor, columns: tf.Tensor, rows: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
        read = tf.strings.to_number(tf.strings.regex_replace(tokens, ".*>", ""))
        return tf.math.unsorted_segment_sum(tf.where(columns, read[:, None], 0.0), rows, tf.size(of))

    plain = tf.strings.regex_replace(texts, COMMENT, "")
    split = tf.raw_ops.StringSplitV2(input=plain, sep="<")
    tokens, (image, number) = split.values, tf.unstack(split.indices, axis=1)
    is_tag = number > 0  # the others are what comes before the first "<"
    closing = looks(tokens, r"(?s)/.*")
    # How deep each tag is (the root at 1), and which of the roots' children it is in.
    step = tf.where(is_tag & ~looks(tokens, r"(?s)[^>]*/>.*"), tf.where(closing, -1, 1), 0)
    above = tf.cumsum(step, exclusive=True)
    depth = tf.where(is_tag & ~closing, 1 + above - tf.gather(tf.gather(above, at(~is_tag)), image), 0)
    is_child = tf.equal(depth, 2)
    child, first_tokens = tf.cumsum(tf.cast(is_child, tf.int32)), tf.boolean_mask(tokens, is_child)
    whole = looks(texts, DOCUMENT) & tf.equal(count(step, image, texts), 0)
    whole &= ~looks(texts, COMMENT_IN_TAG) & ~looks(plain, r"(?s).*\]\]>.*")
    whole &= tf.equal(count(is_tag & ~looks(tokens, TOKEN), image, texts), 0)
    # In the order of the images and levels, a closing tag comes right after the one that it closes.
    ends = at(tf.not_equal(step, 0))
    level = tf.gather(tf.cast(above + tf.cast(~closing, tf.int32), tf.int64) + DEEPEST * image, ends)
    ends, level = (tf.gather(each, tf.argsort(level, stable=True)) for each in (ends, level))
    tag, closes = tf.gather(tokens, ends), tf.gather(closing, ends)
    tag = tf.where(closes, tf.strings.substr(tag, 1, MAX_CHARS), tag)
    tag = tf.strings.regex_replace(tag, r"(?s)[\s/>].*", "", replace_global=False)
    alone = closes & (
        tf.not_equal(tag, tf.roll(tag, 1, 0)) | tf.not_equal(level, tf.roll(level, 1, 0)) | tf.roll(closes, 1, 0)
    )
    whole &= tf.equal(count(alone, tf.gather(image, ends), texts), 0)
    whole &= count(tf.equal(depth, 1), image, texts) <= 1

    def within(is_parent: tf.Tensor, level: int, pattern: str) -> tf.Tensor:
        inside = at(tf.gather(tf.concat([[False], is_parent], 0), child) & tf.equal(depth, level))
        return tf.boolean_mask(inside, looks(tf.gather(tokens, inside), pattern))

    is_object = looks(first_tokens, r"(?s)object[\s/>].*")
    name_at = within(is_object, 3, r"name>[^<&]*")
    edge_at = within(is_object, 4, rf"[xy]m(in|ax)>{NUMBER}")
    is_size = looks(first_tokens, r"(?s)size[\s/>].*")
    side_at, sides_at = (
        within(is_size, 3, rf"(width|height)>{NUMBER}"),
        within(is_size, 3, r"(?s)(width|height)[\s/>].*"),
    )
    names, edges, sides = (tf.gather(tokens, each) for each in (name_at, edge_at, side_at))

    # Every object must have its name and each of its edges once, every size each side at most once.
    objects = tf.boolean_mask(tf.boolean_mask(image, is_child), is_object)
    owner = tf.cumsum(tf.cast(is_object, tf.int32)) - 1
    name_of, edge_of = (tf.gather(owner, tf.gather(child, each) - 1) for each in (name_at, edge_at))
    is_edge = tf.equal(tf.strings.substr(edges, 0, 4)[:, None], EDGES)
    is_side = tf.equal(tf.strings.substr(sides, 0, 1)[:, None], ["h", "w"])
    once = tf.concat([count(is_edge, edge_of, objects), count(tf.ones_like(name_of), name_of, objects)[:, None]], 1)
    side_of = tf.gather(image, side_at)
    whole &= tf.equal(count(tf.reduce_any(tf.not_equal(once, 1), 1), objects, texts), 0)
    whole &= tf.reduce_all(count(is_side, side_of, texts) <= 1, axis=1)
    # One that is there must be read: without it, the boxes would be taken as relative to another size.
    of_size = tf.gather(image, sides_at)
    whole &= tf.equal(count(tf.ones_like(side_of), side_of, texts), count(tf.ones_like(of_size), of_size, texts))
    whole |= tf.equal(paths, "")
    worst = tf.gather(paths, tf.argmin(tf.cast(whole, tf.int32)))
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(whole), [UNREADABLE, worst])]):
        names = tf.strings.strip(tf.strings.substr(names, 5, MAX_CHARS))
        sizes = numbers(sides, is_side, side_of, texts)
        return Objects(objects, names, numbers(edges, is_edge, edge_of, objects), sizes)
