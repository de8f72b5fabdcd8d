"""XML annotations: read by lxml as they are written, or refused by name."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.annotations import read_annotation
from tests.support.xmls import CAT, LATIN_1, PASCAL_VOC, REFUSED, bndbox, note, sides, thing
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.annotations.objects import Objects

# Forms of XML that lxml refuses and a looser reader might not.
ILL_FORMED = [
    pytest.param(note(thing(name="<a:name>cat</a:name>")), id="unbound-prefix"),
    pytest.param(note(thing(name="<name>a&#0;</name>")), id="reference-to-no-character"),
    pytest.param('<?xml version="1.0"?><?xml version="1.0"?>' + note(thing()), id="second-declaration"),
    pytest.param('<?xml version="1.0" encoding="utf-16"?>' * 20_000 + note(thing()), id="declarations-again-and-again"),
    pytest.param('<?xml version="1.0" encoding="no-such"?>' + note(thing()), id="unknown-encoding"),
    pytest.param(note(thing(name="<name>\xe9</name>")).encode("latin-1"), id="not-in-its-encoding"),
]


def read(text: str | bytes) -> tuple[list[str], list[list[float]], list[float]]:
    found = parse_annotation(text.encode() if isinstance(text, str) else text, "a.xml")
    assert found.boxes.dtype == np.float32 and found.boxes.shape == (len(found.names), 4)
    return found.names, found.boxes.tolist(), found.size


def test_an_annotation_as_pascal_voc_has_it():
    names = ["person", "dining table"]
    assert read(PASCAL_VOC) == (names, [[240, 48, 371, 195.5], [12, 8, 498, 352]], [500, 353])
    edges = [240, 48, 371, 195.5, 12, 8, 498, 352]
    assert parse_annotation(PASCAL_VOC.encode(), "") == Objects(names, edges, [500, 353])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(note(), ([], [], [375, 500]), id="no-object"),
        pytest.param("<annotation></annotation>", ([], [], [0, 0]), id="nothing"),
        pytest.param(note(thing(), size=""), (*CAT[:2], [0, 0]), id="no-size"),
        pytest.param(note(thing(), size=sides("9")), (*CAT[:2], [0, 9]), id="no-height"),
        pytest.param(note(thing(), size=sides("0", "0")), (*CAT[:2], [0, 0]), id="size-0"),
        pytest.param(note(thing(name="<name>\n a b\t</name>")), (["a b"], *CAT[1:]), id="name-stripped"),
        pytest.param(note(thing(name="<name>a\rb\r\nc</name>")), (["a\nb\nc"], *CAT[1:]), id="name-line-ends"),
        pytest.param(note(thing(name="<name>\xa0a\x85</name>")), (["\xa0a\x85"], *CAT[1:]), id="name-other-blanks"),
        pytest.param(note("<a>" * 254 + "</a>" * 254, thing()), CAT, id="deep"),
        pytest.param(note(thing(), size=sides("0.5", "0.5")), (*CAT[:2], [0.5, 0.5]), id="size-of-half-a-pixel"),
        pytest.param(note(thing(name="<name>a>b\"c'</name>")), (["a>b\"c'"], *CAT[1:]), id="name-odd"),
        pytest.param(note(thing(name="<name>écureuil 猫</name>")), (["écureuil 猫"], *CAT[1:]), id="name-utf8"),
        pytest.param(note(thing(name="<name>n02<!-- c -->8</name>")), (["n028"], *CAT[1:]), id="name-comment"),
        pytest.param(note(thing(box=bndbox(xmin="<?a b?>0<?a?>1"))), CAT, id="number-instructions"),
        pytest.param(note("<owner><name>me</name></owner>", thing()), CAT, id="owner-before"),
        pytest.param(note("<owner><name>me</name></owner>"), ([], [], [375, 500]), id="owner-without-objects"),
        pytest.param(note(thing(), "<!-- ", thing("<name>dog</name>"), " -->"), CAT, id="object-in-comment"),
        pytest.param("<!-- <object> -->" + note(thing()), CAT, id="comment-before"),
        pytest.param(
            note(thing(more="<!-- <part> -->"), thing(more="<!-- </part> -->")),
            (CAT[0] * 2, CAT[1] * 2, CAT[2]),
            id="part-in-comments",
        ),
        pytest.param(note(thing().replace("<object>", '<object id="1">')), CAT, id="object-attribute"),
        pytest.param(note(thing()).replace("<annotation>", '<annotation verified="yes">'), CAT, id="root-attribute"),
        pytest.param(note("<objects>1</objects><objective>2</objective>", thing()), CAT, id="tags-like-object"),
        pytest.param("\ufeff" + note(thing()), CAT, id="byte-order-mark"),
        pytest.param(note(thing(box=bndbox(xmin="1e-45"))), (CAT[0], [[2, 0, 4, 3]], CAT[2]), id="denormal"),
        pytest.param(
            note(thing(box=bndbox("0.25", "0", "1", ".5")), size=sides("1", "1")),
            (CAT[0], [[0, 0.25, 0.5, 1]], [1, 1]),
            id="relative-to-a-size-of-1",
        ),
        pytest.param(
            note(thing(), thing(box=bndbox("0.25", "0", "1", ".5"))),
            (CAT[0] * 2, [*CAT[1], [0, 0.25, 0.5, 1]], CAT[2]),
            id="one-box-of-the-first-pixel",
        ),
        pytest.param(note(thing()) + "\n\n", CAT, id="trailing-newlines"),
        pytest.param(note(thing()).encode("utf-16"), CAT, id="utf-16"),
        # As .NET writes it: UTF-8, whatever it declares.
        pytest.param('<?xml version="1.0" encoding="utf-16"?>\n' + note(thing()), CAT, id="declares-utf-16"),
        pytest.param('\ufeff<?xml version="1.0" encoding="UTF-16"?>' + note(thing()), CAT, id="mark-and-utf-16"),
        pytest.param(note(thing(name="<name>a&amp;&#65;</name>")), (["a&A"], *CAT[1:]), id="references"),
        pytest.param(note(thing(name="<name><![CDATA[cat]]></name>")), CAT, id="cdata"),
        pytest.param(LATIN_1.encode() + note(thing("<name>é</name>")).encode("l1"), (["é"], *CAT[1:]), id="latin-1"),
        pytest.param(note(thing()).replace("<annotation>", '<annotation xmlns="http://x/y">'), CAT, id="namespace"),
        pytest.param(note(thing()).replace("<bndbox>", '<bndbox xmlns="http://x">'), CAT, id="namespace-of-the-box"),
    ],
)  # fmt: skip
def test_the_objects_are_those_of_the_xml(text, expected):
    assert read(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(note(thing(more=f'<part id="1"><name>head</name>{bndbox()}</part>')), id="part-with-attribute"),
        pytest.param(note(thing(), "<owner><name>me</name></owner>"), id="owner-after"),
        # As CVAT exports Pascal VOC.
        pytest.param(
            note(thing(more="<attributes><attribute><name>rotation</name><value>0.0</value></attribute></attributes>")),
            id="attributes",
        ),
        pytest.param(note(thing(), "<camera><width>9</width></camera>"), id="another-width"),
    ],
)
def test_names_and_sizes_of_other_things_are_left_alone(text):
    assert read(text) == CAT


@pytest.mark.parametrize("text", [*REFUSED, *ILL_FORMED])
def test_anything_else_is_refused_and_the_file_named(text):
    with pytest.raises(ValueError, match=r"a\.xml"):
        read(text)


def test_an_xml_that_was_cut_off_is_refused():
    """A full disk leaves such a file: its objects, or some of them, would be lost without a word."""
    for end in range(1, len(PASCAL_VOC.rstrip())):
        with pytest.raises(ValueError, match="is not XML"):
            read(PASCAL_VOC[:end])


def test_lxml_says_where_the_mistake_is(tmp_path: Path):
    path = tmp_path / "n01_5.xml"
    path.write_text("<annotation>\n\n" + thing(box=bndbox(xmax="wide")) + "\n</annotation>")
    with pytest.raises(ValueError, match=r'n01_5\.xml: line 3: <bndbox/xmax> is "wide", not a number'):
        read_annotation(str(path))
    path.write_text("<annotation>\n" + thing(box=bndbox(ymin=None)) + "\n</annotation>")
    with pytest.raises(ValueError, match=r"n01_5\.xml: line 2: <object> without <bndbox/ymin>"):
        read_annotation(str(path))


def test_lxml_opens_no_other_file(tmp_path: Path):
    (tmp_path / "secret").write_text("cat")
    doctype = f'<!DOCTYPE annotation [<!ENTITY e SYSTEM "file://{tmp_path}/secret">]>'
    (tmp_path / "a.xml").write_text(doctype + note(thing(name="<name>&e;</name>")))
    try:
        names = read_annotation(str(tmp_path / "a.xml")).names
    except ValueError:
        return
    assert "cat" not in list(names)


@pytest.mark.parametrize(
    ("xml", "named"),
    [
        (note(thing(name="<name>cat</name><name>dog</name>")), '<name> is "cat" and "dog"'),
        (note(thing(box=bndbox() + bndbox(xmin="2"))), '<xmin> is ".*" and "2"'),
        (note(thing(), size=sides("500", "375") + sides("500", "376")), '<height> is "375" and "376"'),
    ],
)
def test_what_is_stated_twice_and_differs_is_refused(xml: str, named: str) -> None:
    with pytest.raises(ValueError, match=rf"a\.xml: line \d+: {named}: state one"):
        read(xml)


def test_what_is_stated_twice_alike_counts_once() -> None:
    twice = note(thing(name="<name>cat</name><name>cat</name>", box=bndbox() + bndbox()))
    assert read(twice) == read(note(thing(name="<name>cat</name>")))
