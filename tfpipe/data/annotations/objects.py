"""The objects that an XML annotates, as arrays; `read_xml` reads them with lxml, which is the reference.

`graph.parse_xml` returns the same `Objects` from a graph of string ops: it runs in parallel without the GIL, but
rejects XML with an unusual syntax.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tfpipe.data.annotations.voc import NOTHING, find_by_lxml
from tfpipe.util.files import read_whole


class Objects(NamedTuple):
    """The objects annotated in n XMLs, one XML after the other, as numpy arrays or tensors."""

    images: Any  # int64 [k]: index of the object's XML, ascending
    names: Any  # string [k]
    boxes: Any  # float32 [k, 4]: ymin, xmin, ymax, xmax in pixels, as annotated
    sizes: Any  # float32 [n, 2]: height and width of each image as annotated; 0 if not stated


def read_xml(path: str) -> Objects:
    """Returns the objects in the XML at `path`, parsed by lxml.

    Raises:
        ValueError: it is not XML, or an object lacks a name or a number; says which.
        OSError: it cannot be read.
    """
    return objects_in([read_whole(path)], [path])


def objects_in(texts: Iterable[bytes], paths: Iterable[str]) -> Objects:
    """Returns the objects in several XMLs, parsed by lxml; an XML whose path is "" has none.

    Raises ValueError as read_xml does.
    """
    xmls = [find_by_lxml(text, path) if path else NOTHING for text, path in zip(texts, paths, strict=True)]
    return Objects(
        np.repeat(np.arange(len(xmls)), [len(xml.names) for xml in xmls]),
        np.array([name for xml in xmls for name in xml.names], object),
        np.array([edge for xml in xmls for edge in xml.edges], np.float32).reshape(-1, 4),
        np.array([xml.size for xml in xmls], np.float32),
    )
