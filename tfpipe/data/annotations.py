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
from tfpipe.data.voc import EDGES, NUMBER, find_by_lxml
from tfpipe.errors import ConfigError

LAYOUTS = {
    "ilsvrc": Layout(images="Data/CLS-LOC", annotations="Annotations/CLS-LOC"),
    "voc": Layout(images="JPEGImages", annotations="Annotations"),
}
UNREADABLE = "not a whole annotation, or an object lacks its name or one of xmin, ymin, xmax, ymax:"
MAX_CHARS = 2**31 - 1
# From the root's start to its end: a file that was cut off, or is none, does not match.
DOCUMENT = r"(?s)(\x{FEFF})?\s*(<[?!].*>\s*)?<annotation(\s*/>|[\s>].*</annotation\s*>)\s*(<!--.*-->\s*)?"


class Objects(NamedTuple):
    """What one XML says, as numpy arrays or tensors."""

    names: Any  # string [k]
    boxes: Any  # float32 [k, 4]: ymin, xmin, ymax, xmax in pixels, as annotated
    size: Any  # float32 [2]: height and width of the image as annotated; 0 where not stated


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
    return objects_in(read_whole(path), path)


def objects_in(text: bytes, path: str) -> Objects:
    """The objects in the XML `text`, by lxml; `path` is for the error.

    Raises:
        ValueError: as read_xml.
    """
    names, edges, size = find_by_lxml(text, path)
    return Objects(np.array(names, object), np.array(edges, np.float32).reshape(-1, 4), np.array(size, np.float32))


def parser(by_lxml: bool) -> Callable[[Any, Any], Objects]:
    """`parse_by_lxml` or `parse_xml`: from tensors to tensors, and with the same kind of error."""
    return parse_by_lxml if by_lxml else parse_xml


def parse_by_lxml(text: Any, path: Any) -> Objects:
    """The objects in the XML `text` (string scalar; none where `path` is ""), by lxml, which takes the GIL.

    Raises:
        tf.errors.InvalidArgumentError: it is not XML, or an object lacks a name or a number; says which, names `path`.
    """
    import tensorflow as tf

    def read(text: bytes, path: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
        nothing = np.array([], object), np.zeros((0, 4), np.float32), np.zeros(2, np.float32)
        try:
            return *(objects_in(text, os.fsdecode(path)) if path else nothing), ""
        except ValueError as error:
            return *nothing, str(error)

    types = [tf.string, tf.float32, tf.float32, tf.string]
    *found, problem = tf.numpy_function(read, [text, path], types, stateful=False)
    # An error of Python's would come with its traceback in place of the message.
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
        shapes = ([None], [None, 4], [2])
        return Objects(*(tf.ensure_shape(each, shape) for each, shape in zip(found, shapes, strict=True)))


def parse_xml(text: Any, path: Any) -> Objects:
    """The objects in the XML `text` (string scalar; none where `path` is ""), as a graph of TensorFlow string ops.

    Splits at every "<", so that a token is `tag>value`, counts how deep each tag is, and picks those that are where
    `read_xml` looks: object/name, object/bndbox/xmin, size/width. Refuses what it would read differently. Some 10,000
    files a second on two cores, three times what lxml gives through numpy_function, which takes the GIL.

    Raises:
        tf.errors.InvalidArgumentError: it is not whole, or an object lacks a name or a number; names `path`.
    """
    import tensorflow as tf

    whole = tf.equal(path, "") | tf.strings.regex_full_match(text, DOCUMENT)
    tokens = tf.strings.split(tf.strings.regex_replace(text, r"(?s)<!--.*?-->|<\?.*?\?>", ""), "<")[1:]
    closing = tf.strings.regex_full_match(tokens, r"(?s)/.*")
    # How deep each tag is (the root at 1), and in which of the root's children.
    step = tf.where(closing, -1, tf.where(tf.strings.regex_full_match(tokens, r"(?s)[^>]*/>.*"), 0, 1))
    after = tf.cumsum(step)
    depth = tf.where(closing, 0, 1 + after - step)
    child = tf.cumsum(tf.cast(tf.equal(depth, 2), tf.int32))
    whole &= tf.equal(tf.reduce_sum(step), 0) & (tf.math.count_nonzero(tf.equal(depth, 1)) <= 1)

    def children(tag: str) -> tf.Tensor:
        return tf.boolean_mask(child, tf.equal(depth, 2) & tf.strings.regex_full_match(tokens, rf"(?s){tag}[\s/>].*"))

    def within(parents: tf.Tensor, level: int, pattern: str) -> tf.Tensor:
        inside = tf.reduce_any(tf.equal(child[:, None], parents), axis=1)
        return tf.where(inside & tf.equal(depth, level) & tf.strings.regex_full_match(tokens, pattern))[:, 0]

    objects = children("object")
    name_at = within(objects, 3, r"name>[^<&]*")
    edge_at = within(objects, 4, rf"[xy]m(in|ax)>{NUMBER}")
    sizes = children("size")
    side_at = within(sizes, 3, rf"(width|height)>{NUMBER}")
    names, edges, sides = (tf.gather(tokens, at) for at in (name_at, edge_at, side_at))

    # Every object must have its name and each of its edges once, in whatever order.
    count = tf.size(objects)
    whole &= tf.equal(tf.size(name_at), count) & tf.equal(tf.size(edge_at), 4 * count)
    # One that is there must be read: without it, the boxes would be taken as relative to another size.
    whole &= tf.equal(tf.size(side_at), tf.size(within(sizes, 3, r"(?s)(width|height)[\s/>].*")))
    with tf.control_dependencies([tf.debugging.Assert(whole, [UNREADABLE, path])]):
        edges = tf.reshape(edges, [-1, 4])
        owners = tf.reshape(tf.gather(child, edge_at), [-1, 4])
        owners = tf.concat([owners, tf.gather(child, name_at)[:, None]], axis=1)
    is_edge = tf.equal(tf.strings.substr(edges, 0, 4)[:, :, None], EDGES)
    is_side = tf.equal(tf.strings.substr(sides, 0, 1)[:, None], ["h", "w"])
    once = tf.reduce_all(tf.reduce_any(is_edge, axis=1)) & tf.reduce_all(tf.equal(owners, objects[:, None]))
    once &= tf.reduce_all(tf.math.count_nonzero(is_side, axis=0) <= 1)
    with tf.control_dependencies([tf.debugging.Assert(once, [UNREADABLE, path])]):
        values = tf.strings.to_number(tf.strings.substr(edges, 5, MAX_CHARS))
    boxes = tf.reduce_sum(tf.where(is_edge, values[:, :, None], 0.0), axis=1)

    lengths = tf.strings.to_number(tf.strings.regex_replace(sides, ".*>", ""))
    size = tf.reduce_sum(tf.where(is_side, lengths[:, None], 0.0), axis=0)
    return Objects(tf.strings.strip(tf.strings.substr(names, 5, MAX_CHARS)), boxes, size)
