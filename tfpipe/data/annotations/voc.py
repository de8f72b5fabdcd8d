"""Reads Pascal VOC XMLs in Python: by a regular expression if they are written like ImageNet's, else by lxml.

Both return plain values, since creating an array for each of a million files would take as long as reading them.

XMLs are untrusted input, so harmful ones are refused: larger than MAX_BYTES, with a document type (and so with custom
entities, other files or network access), nested deeper than 256 tags, or with a number that cannot be in pixels.
"""

import re
from typing import NamedTuple

from lxml import etree

EDGES = ("ymin", "xmin", "ymax", "xmax")
SIDES = ("height", "width")
# A typical annotation has a few hundred bytes; one with a thousand objects, a few hundred thousand.
MAX_BYTES = 1_000_000
# Exclusive upper bound of all numbers, in pixels: no image is so large.
MOST = 1e9
# XML's white space, which is less than Python's.
BLANK = " \t\r\n"
NUMBER = r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*"
IS_NUMBER = re.compile(NUMBER, re.ASCII).fullmatch
PARSER = etree.XMLParser(
    resolve_entities=False,
    no_network=True,
    huge_tree=False,
    # Removed, so that a text with a comment in it is read as one text.
    remove_comments=True,
    remove_pis=True,
    # Texts are stripped when read, so white space between tags need not be kept, which would take a third of the time.
    remove_blank_text=True,
)

# A pattern for ImageNet's XMLs and most of Pascal VOC's: ASCII without attributes, comments, entities or anything else
# that means something other than the plain text. White space may follow any tag that no text follows. No two patterns
# of white space are adjacent, so that matching takes linear time.
BLANKS = r"[ \t\r\n]*"
WORD = "A-Za-z0-9_"  # the same as \w, but faster: a single lookup in a table of bytes
PLAIN = rf"[{WORD} .,:;/()+-]*"


def _element(tag: str, inner: str) -> str:
    return f"<{tag}>{inner}</{tag}>{BLANKS}"


def _parent(tag: str, *inner: str) -> str:
    return _element(tag, BLANKS + "".join(inner))


def _asides(*tags: str) -> str:
    return f"(?:{'|'.join(_element(tag, PLAIN) for tag in tags)})*"


def _numbers(*tags: str) -> str:
    # At most eight digits, so that numbers are below MOST.
    return "".join(_element(tag, r"([-+]?[0-9]{1,8}(?:\.[0-9]+)?)") for tag in tags)


def _uncaptured(pattern: str) -> str:
    return re.sub(r"\((?!\?)", "(?:", pattern)


OBJECT = _parent(
    "object",
    _element("name", rf"([{WORD}.-]+)"),
    _asides("pose", "truncated", "difficult", "occluded"),
    _parent("bndbox", _numbers("xmin", "ymin", "xmax", "ymax")),
    _asides("truncated", "difficult", "occluded"),
)
DOCUMENT = BLANKS + _parent(
    "annotation",
    _asides("folder", "filename"),
    f"(?:{_parent('source', _asides('database', 'annotation', 'image'))})?",
    _parent("size", _numbers("width", "height"), _asides("depth")),
    _asides("segmented"),
    f"(?:{OBJECT})?",  # most hold one
    f"((?:{_uncaptured(OBJECT)})*)",
)
all_of_ordinary = re.compile(DOCUMENT, re.ASCII).fullmatch
objects_of_ordinary = re.compile(OBJECT, re.ASCII).findall


class VocObjects(NamedTuple):
    """Content of one XML."""

    names: list[str]  # class names of the objects
    edges: list[float]  # ymin, xmin, ymax, xmax of each object in turn, in pixels, as annotated
    size: list[float]  # height and width of the image in pixels, as annotated; 0 if not stated


NOTHING = VocObjects([], [], [0.0, 0.0])


def find_objects(text: bytes, path: str) -> VocObjects:
    """Reads the objects in any XML; three times as fast as lxml if it is written like ImageNet's.

    Raises:
        ValueError: see find_by_lxml.
    """
    return find_in_ordinary(text) or find_by_lxml(text, path)


def find_in_ordinary(text: bytes) -> VocObjects | None:
    """Reads the objects in an XML that is written like ImageNet's, with find_by_lxml's result; returns None for others.

    Takes linear time.
    """
    if len(text) > MAX_BYTES:
        return None
    # Latin-1 can decode any bytes, and the pattern does not match those beyond ASCII.
    match = all_of_ordinary(text.decode("latin-1"))
    if match is None:
        return None
    width, height, name, xmin, ymin, xmax, ymax, further = match.groups()
    size = [float(height), float(width)]
    if name is None:
        return VocObjects([], [], size)
    names, edges = [name], [float(ymin), float(xmin), float(ymax), float(xmax)]
    for name, xmin, ymin, xmax, ymax in objects_of_ordinary(further) if further else ():
        names.append(name)
        edges += float(ymin), float(xmin), float(ymax), float(xmax)
    return VocObjects(names, edges, size)


def find_by_lxml(text: bytes, path: str) -> VocObjects:
    """Reads the objects in any XML, without custom entities, network access or huge trees.

    Raises ValueError if the text is not XML, not an annotation, larger than MAX_BYTES or has a document type, or an
    object lacks a name or a number; the message names `path`.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"{path} is too large for an annotation: {len(text)} bytes, at most {MAX_BYTES} are read")
    try:
        root = etree.fromstring(text, PARSER)
    except etree.XMLSyntaxError as error:
        raise ValueError(f"{path} is not XML: {error}") from error
    if root.getroottree().docinfo.doctype:
        raise ValueError(f"{path} has a document type (<!DOCTYPE), which may draw in other files: take it out")
    if root.tag != "annotation":
        raise ValueError(f"{path} is no annotation: it is a <{root.tag}>, not an <annotation>")
    names: list[str] = []
    edges: list[float] = []
    sides: dict[str, str] = {}
    for element in root.iterchildren("object", "size"):
        if element.tag == "size":
            _add_texts(sides, element)
            continue
        name: str | None = None
        texts: dict[str, str] = {}
        for part in element.iterchildren("name", "bndbox"):
            if part.tag == "bndbox":
                _add_texts(texts, part)
            elif name is None:
                name = part.text or ""
        if name is None:
            raise ValueError(f"{path}: line {element.sourceline}: <object> without <name>")
        names.append(name.strip(BLANK))
        edges += [_number(texts.get(tag), element, f"bndbox/{tag}", path) for tag in EDGES]
    return VocObjects(names, edges, [_number(sides.get(tag, "0"), root, f"size/{tag}", path) for tag in SIDES])


def _add_texts(texts: dict[str, str], element: etree._Element) -> None:
    """Adds each child's text by its tag; if a tag repeats, the first one counts."""
    for child in element:
        texts.setdefault(child.tag, (child.text or "").strip(BLANK))


def _number(text: str | None, element: etree._Element, tag: str, path: str) -> float:
    if text is None:
        raise ValueError(f"{path}: line {element.sourceline}: <{element.tag}> without <{tag}>")
    if not IS_NUMBER(text):
        raise ValueError(f'{path}: line {element.sourceline}: <{tag}> is "{text}", not a number')
    if abs(float(text)) >= MOST:
        raise ValueError(f'{path}: line {element.sourceline}: <{tag}> is "{text}", more pixels than an image has')
    return float(text)
