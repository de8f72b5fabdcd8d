"""XML read in Python: the quick reading is lxml's, or none."""

import random

import pytest
from hypothesis import given, settings

from tests.support.xmls import LATIN_1, PASCAL_VOC, REFUSED, UNUSUAL, annotations, note, thing
from tfpipe.data.annotations.voc import VocObjects, find_by_lxml, find_in_ordinary, find_objects

IMAGENET = """<annotation>
\t<folder>n02017213</folder>
\t<filename>n02017213_7894</filename>
\t<source>
\t\t<database>ILSVRC_2014</database>
\t</source>
\t<size>
\t\t<width>500</width>
\t\t<height>375</height>
\t\t<depth>3</depth>
\t</size>
\t<segmented>0</segmented>
\t<object>
\t\t<name>n02017213</name>
\t\t<pose>Unspecified</pose>
\t\t<truncated>0</truncated>
\t\t<difficult>0</difficult>
\t\t<bndbox>
\t\t\t<xmin>115</xmin>
\t\t\t<ymin>49</ymin>
\t\t\t<xmax>448.5</xmax>
\t\t\t<ymax>294</ymax>
\t\t</bndbox>
\t</object>
\t<object>
\t\t<name>Scottish_deerhound</name>
\t\t<bndbox><xmin>-1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax></bndbox>
\t\t<difficult>1</difficult>
\t</object>
</annotation>
"""
# Pieces that make a document something else, or none, wherever they are put in.
PIECES = [
    *("<!-- ", " -->", "<name>x</name>", "<object>", "</object>", "<object/>", "<size>", "<![CDATA[", "]]>", "&amp;"),
    *("<part>", "</part>", "\0", "\f", "\xa0", "é", "<", ">", "e3", "_1", "<?a?>", "1", " ", "\r\n", "nan", " a='1'"),
]


def test_imagenets_xmls_are_read_quickly() -> None:
    names = ["n02017213", "Scottish_deerhound"]
    found = VocObjects(names, [49, 115, 294, 448.5, 2, -1, 4, 3], [375, 500])
    assert find_in_ordinary(IMAGENET.encode()) == found == find_by_lxml(IMAGENET.encode(), "")


def test_without_objects_there_are_none() -> None:
    start, end = IMAGENET.index("\t<object>"), IMAGENET.rindex("</annotation>")
    assert find_in_ordinary((IMAGENET[:start] + IMAGENET[end:]).encode()) == VocObjects([], [], [375, 500])


@pytest.mark.parametrize("text", [*UNUSUAL, *REFUSED, PASCAL_VOC, LATIN_1, note(thing(), size="")])
def test_what_is_unusual_is_left_to_lxml(text) -> None:
    text = text.encode() if isinstance(text, str) else text
    assert find_in_ordinary(text) is None


def agree(text: bytes) -> bool:
    """Whether the text is read quickly; then it is read as by lxml."""
    quick = find_in_ordinary(text)
    if quick is not None:
        assert quick == find_by_lxml(text, "a.xml"), text
    return quick is not None


@settings(deadline=None, max_examples=100)
@given(annotations())
def test_any_annotation_is_read_as_by_lxml(text) -> None:
    agree(text.encode())
    assert find_objects(text.encode(), "a.xml") == find_by_lxml(text.encode(), "a.xml")


def test_a_changed_document_is_read_as_by_lxml_or_not_quickly() -> None:
    draw = random.Random(0)
    quickly = 0
    for _ in range(20_000):
        text = IMAGENET
        for _ in range(draw.choice((1, 1, 2))):
            start = draw.randrange(len(text))
            end = start + draw.choice((0, 0, 1, 2, 9, 30))
            text = text[:start] + draw.choice(["", *PIECES, chr(draw.randrange(256))]) + text[end:]
        quickly += agree(text.encode())
    assert quickly > 300


def test_what_goes_on_and_on_is_refused_in_time() -> None:
    """No time that grows with a power of the length."""
    cut_off = IMAGENET.replace("</annotation>", "")
    for piece in (" ", "<pose>a </pose>", "1", "a ", "<object>"):
        for at in ("<pose>", "<xmin>", "<object>", "<width>"):
            assert find_in_ordinary(cut_off.replace(at, at + 20_000 * piece, 1).encode()) is None
