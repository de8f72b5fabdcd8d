"""Pascal VOC XML read in Python: by lxml, and far faster where it is written as ImageNet's are.

Both give plain values, since an array for each of a million files would take as long as reading them.
"""

import re
from typing import NamedTuple

from lxml import etree

EDGES = ("ymin", "xmin", "ymax", "xmax")
SIDES = ("height", "width")
NUMBER = r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*"
IS_NUMBER = re.compile(NUMBER, re.ASCII).fullmatch
# Whoever reads a text strips it, so white space between tags need not be kept, which takes a third of the time.
PARSER = etree.XMLParser(
    resolve_entities=False, no_network=True, huge_tree=False, remove_comments=True, remove_blank_text=True
)


class Found(NamedTuple):
    """What one XML says."""

    names: list[str]
    """Of the objects."""
    edges: list[float]
    """ymin, xmin, ymax, xmax of each, in pixels, as annotated; one object after the other."""
    size: list[float]
    """Height and width of the image as annotated; 0 where not stated."""


NOTHING = Found([], [], [0.0, 0.0])


def find_by_lxml(text: bytes, path: str) -> Found:
    """The objects in any XML: no entities, no network, no huge trees.

    Raises:
        ValueError: it is not XML, or an object lacks a name or a number; says which, and names `path`.
    """
    try:
        root = etree.fromstring(text, PARSER)
    except etree.XMLSyntaxError as error:
        raise ValueError(f"{path} is not XML: {error}") from error
    names, edges, sides = [], [], {}
    for element in root.iterchildren("object", "size"):
        if element.tag == "size":
            _add_texts(sides, element)
            continue
        name, texts = None, {}
        for part in element.iterchildren("name", "bndbox"):
            if part.tag == "bndbox":
                _add_texts(texts, part)
            elif name is None:
                name = part.text or ""
        if name is None:
            raise ValueError(f"{path}: line {element.sourceline}: <object> without <name>")
        names.append(name.strip())
        edges += [_number(texts.get(tag), element, f"bndbox/{tag}", path) for tag in EDGES]
    return Found(names, edges, [_number(sides.get(tag, "0"), root, f"size/{tag}", path) for tag in SIDES])


def _add_texts(texts: dict[str, str], element: etree._Element) -> None:
    """Adds what each child says; of those of one tag the first counts."""
    for child in element:
        texts.setdefault(child.tag, (child.text or "").strip())


def _number(text: str | None, element: etree._Element, tag: str, path: str) -> float:
    if text is None:
        raise ValueError(f"{path}: line {element.sourceline}: <{element.tag}> without <{tag}>")
    if not IS_NUMBER(text):
        raise ValueError(f'{path}: line {element.sourceline}: <{tag}> is "{text}", not a number')
    return float(text)
