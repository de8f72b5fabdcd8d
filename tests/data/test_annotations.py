"""Annotations: where an image's XML is, and two readers that agree on all of it, or refuse."""

import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpipe.config import Layout
from tfpipe.data.annotations import (
    LAYOUTS,
    annotation_folders,
    existing,
    find_layout,
    parse_by_lxml,
    parse_xml,
    read_xml,
    xml_name,
)
from tfpipe.data.filelist import FileList
from tfpipe.errors import ConfigError

# XMLs that both readers are compared on; TFPIPE_EXAMPLES=10000 with -s says more.
EXAMPLES = int(os.environ.get("TFPIPE_EXAMPLES", "1000"))
ILSVRC, VOC = LAYOUTS["ilsvrc"], LAYOUTS["voc"]


# ---- where the XML is ------------------------------------------------------------------------------------------


def annotation_path(image: str, layout: Layout) -> str:
    (folder,) = annotation_folders(FileList.of([image]), layout)
    return folder + xml_name(os.path.basename(image))


@pytest.mark.parametrize(
    ("image", "layout", "xml"),
    [
        ("/d/Data/CLS-LOC/train/n01/n01_5.JPEG", ILSVRC, "/d/Annotations/CLS-LOC/train/n01/n01_5.xml"),
        ("/d/Data/CLS-LOC/val/v_1.JPEG", ILSVRC, "/d/Annotations/CLS-LOC/val/v_1.xml"),
        # Only the images folder whole counts, and of several the last.
        (
            "/lus/Data/x/ILSVRC/Data/CLS-LOC/train/n01/a.JPEG",
            ILSVRC,
            "/lus/Data/x/ILSVRC/Annotations/CLS-LOC/train/n01/a.xml",
        ),
        ("/Data/CLS-LOC/copy/Data/CLS-LOC/train/a.JPEG", ILSVRC, "/Data/CLS-LOC/copy/Annotations/CLS-LOC/train/a.xml"),
        ("/d/Data/CLS-LOC2/Data/CLS-LOC/a.JPEG", ILSVRC, "/d/Data/CLS-LOC2/Annotations/CLS-LOC/a.xml"),
        ("/d/myData/CLS-LOC/Data/CLS-LOC/a.JPEG", ILSVRC, "/d/myData/CLS-LOC/Annotations/CLS-LOC/a.xml"),
        ("/JPEGImages.old/VOC/JPEGImages/1.jpg", VOC, "/JPEGImages.old/VOC/Annotations/1.xml"),
        # Nor does anything of the file's own name.
        ("/d/Data/CLS-LOC/train/Data/JPEG_Data.JPEG", ILSVRC, "/d/Annotations/CLS-LOC/train/Data/JPEG_Data.xml"),
        ("/d/Data/CLS-LOC/n01/a.JPEG.JPEG", ILSVRC, "/d/Annotations/CLS-LOC/n01/a.JPEG.xml"),
        ("/d/Data/CLS-LOC/n01/a.b.c.jpeg", ILSVRC, "/d/Annotations/CLS-LOC/n01/a.b.c.xml"),
        ("/d/JPEGImages/2007_000027.jpg", VOC, "/d/Annotations/2007_000027.xml"),
        ("/d/JPEGImages/a.JPG", VOC, "/d/Annotations/a.xml"),
        ("/d/JPEGImages/a.Jpeg", VOC, "/d/Annotations/a.xml"),
        ("/d/img/a/b.jpg", Layout(images="img", annotations="xml/all"), "/d/xml/all/a/b.xml"),
        ("/JPEGImages/a.jpg", VOC, "/Annotations/a.xml"),
        # Only the file's own name has an extension.
        ("/d.x/JPEGImages/v1.2/a", VOC, "/d.x/Annotations/v1.2/a.xml"),
        ("/d/JPEGImages/.hidden", VOC, "/d/Annotations/.hidden.xml"),
        ("/d/JPEGImages/日本.jpg", VOC, "/d/Annotations/日本.xml"),
    ],
)
def test_the_xml_is_beside_the_last_images_folder(image, layout, xml):
    assert annotation_path(image, layout) == xml


@pytest.mark.parametrize("image", ["/d/Data/train/a.JPEG", "/d/myData/CLS-LOC/a.JPEG", "/d/Data/CLS-LOC.JPEG"])
def test_an_image_outside_the_images_folder_is_refused_by_name(image):
    with pytest.raises(ConfigError) as caught:
        annotation_path(image, ILSVRC)
    assert image in str(caught.value) and "Data/CLS-LOC" in str(caught.value)


@pytest.mark.parametrize(
    ("layout", "path", "expected"),
    [
        ("auto", "/d/Data/CLS-LOC/train/n01/a.JPEG", ILSVRC),
        ("auto", "/d/VOC2012/JPEGImages/a.jpg", VOC),
        ("voc", "/d/VOC2012/JPEGImages/a.jpg", VOC),
        (Layout(images="a", annotations="b"), "/anything/at/all.jpg", Layout(images="a", annotations="b")),
    ],
)
def test_a_layout_is_found_by_the_images_folder(layout, path, expected):
    assert find_layout(layout, FileList.of([path])) == expected


@pytest.mark.parametrize(
    ("layout", "path"),
    [("auto", "/d/train/a.JPEG"), ("voc", "/d/Data/CLS-LOC/a.JPEG"), ("auto", "/d/JPEGImages2/a.jpg")],
)
def test_a_path_that_no_layout_fits_says_what_to_set(layout, path):
    with pytest.raises(ConfigError) as caught:
        find_layout(layout, FileList.of([path]))
    message = str(caught.value)
    assert message.startswith(path) and "data.layout" in message and 'data.annotations to "none"' in message


def test_existing_says_of_each_image_whether_it_has_an_xml(tmp_path):
    names = ["n02/c", "n01/b", "gone/x", "n01/a", "n02/c", "file/y"]
    for name in ("n01/a", "n02/c"):
        (tmp_path / "Annotations/CLS-LOC" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "Annotations/CLS-LOC" / name).with_suffix(".xml").write_text("<annotation/>")
    (tmp_path / "Annotations/CLS-LOC/file").write_text("in a folder's place")
    paths = [f"{tmp_path}/Data/CLS-LOC/{name}.JPEG" for name in names]
    found = existing(FileList.of(paths), ILSVRC)
    assert found.dtype == bool and found.tolist() == [name in ("n01/a", "n02/c") for name in names]


def test_without_any_annotation_folder_no_image_has_one(tmp_path):
    assert existing(FileList.of([f"{tmp_path}/JPEGImages/a.jpg"] * 3), VOC).tolist() == [False] * 3
    assert existing(FileList.of([]), VOC).tolist() == []


def test_annotation_folders_are_beside_the_image_folders():
    paths = FileList.of(["/d/JPEGImages/b/1.jpg", "/d/JPEGImages/2.jpg", "/d/JPEGImages/b/3.jpg"])
    assert annotation_folders(paths, VOC) == ["/d/Annotations/b/", "/d/Annotations/"]


def test_the_first_image_outside_the_images_folder_is_named():
    paths = FileList.of(["/d/JPEGImages/1.jpg", "/d/2.jpg", "/e/3.jpg", "/d/4.jpg"])
    for look in (annotation_folders, existing):
        with pytest.raises(ConfigError, match=r'^/d/2\.jpg is in no folder "JPEGImages"'):
            look(paths, VOC)


@pytest.mark.parametrize(("image", "xml"), [("a", "a.xml"), ("a.b.c", "a.b.xml"), (".a", ".a.xml"), ("a.", "a.xml")])
def test_an_xmls_name_is_the_images_without_its_last_extension(image, xml):
    assert xml_name(image) == xml


# ---- what it says ----------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """Objects as plain values, to compare."""

    names: list[str]
    boxes: list[list[float]]
    size: list[float]


_parse = tf.function(parse_xml, input_signature=[tf.TensorSpec([None], tf.string)] * 2)


_lxml = tf.function(parse_by_lxml, input_signature=[tf.TensorSpec([None], tf.string)] * 2)


def in_graph(text: str | bytes, path: str = "a.xml", parse=_parse) -> Read:
    (read,) = many_in_graph([text], [path], parse)
    return read


def many_in_graph(texts: list[str | bytes], paths: list[str], parse=_parse) -> list[Read]:
    """What each of some XMLs says, parsed together."""
    images, names, boxes, sizes = parse(tf.constant(texts, tf.string), tf.constant(paths, tf.string))
    assert (images.dtype, boxes.dtype, sizes.dtype) == (tf.int64, tf.float32, tf.float32)
    assert boxes.shape[1:] == [4] and sizes.shape == [len(texts), 2]
    assert (np.diff(images) >= 0).all()
    return [
        Read([name.decode() for name in names.numpy()[mine]], boxes.numpy()[mine].tolist(), size.tolist())
        for number, size in enumerate(sizes.numpy())
        for mine in [images.numpy() == number]
    ]


@pytest.fixture(scope="module")
def by_lxml(tmp_path_factory):
    path = tmp_path_factory.mktemp("xml") / "a.xml"

    def read(text: str | bytes) -> Read:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        images, names, boxes, (size,) = read_xml(str(path))
        assert (boxes.dtype, size.dtype) == (np.float32, np.float32)
        assert boxes.shape == (len(names), 4) and size.shape == (2,) and not images.any()
        return Read(list(names), boxes.tolist(), size.tolist())

    return read


def bndbox(xmin="1", ymin="2", xmax="3", ymax="4") -> str:
    edges = {"xmin": xmin, "ymin": ymin, "xmax": xmax, "ymax": ymax}
    return (
        "<bndbox>"
        + "".join(f"<{tag}>{value}</{tag}>" for tag, value in edges.items() if value is not None)
        + "</bndbox>"
    )


def thing(name: str = "<name>cat</name>", box: str = bndbox(), more: str = "") -> str:
    return f"<object>{name}{box}{more}</object>"


def sides(width: str, height: str | None = None) -> str:
    return (
        f"<size><width>{width}</width>{'' if height is None else f'<height>{height}</height>'}<depth>3</depth></size>"
    )


SIZE = sides("500", "375")
LATIN_1 = '<?xml version="1.0" encoding="iso-8859-1"?>'
CAT = (["cat"], [[2.0, 1.0, 4.0, 3.0]], [375.0, 500.0])


def note(*parts: str, size: str = SIZE) -> str:
    return f"<annotation>{size}{''.join(parts)}</annotation>"


PASCAL_VOC = """<?xml version="1.0"?>
<annotation>
\t<folder>VOC2007</folder>
\t<filename>000001.jpg</filename>
\t<source>
\t\t<database>The VOC2007 Database</database>
\t\t<annotation>PASCAL VOC2007</annotation>
\t\t<image>flickr</image>
\t</source>
\t<owner>
\t\t<flickrid>Fried Camels</flickrid>
\t\t<name>Jinky the Fruit Bat</name>
\t</owner>
\t<object>
\t\t<name>person</name>
\t\t<bndbox>
\t\t\t<xmax>195.5</xmax>
\t\t\t<xmin>48</xmin>
\t\t\t<ymax>371</ymax>
\t\t\t<ymin>240</ymin>
\t\t</bndbox>
\t\t<part>
\t\t\t<name>head</name>
\t\t\t<bndbox><xmin>60</xmin><ymin>245</ymin><xmax>90</xmax><ymax>270</ymax></bndbox>
\t\t</part>
\t\t<difficult>0</difficult>
\t</object>
\t<size><width>353</width><height>500</height><depth>3</depth></size>
\t<segmented>0</segmented>
\t<object>
\t\t<difficult>1</difficult>
\t\t<bndbox><xmin>8</xmin><ymin>12</ymin><xmax>352</xmax><ymax>498</ymax></bndbox>
\t\t<name>dining table</name>
\t</object>
</annotation>
"""


def test_an_annotation_as_pascal_voc_has_it(by_lxml):
    expected = Read(["person", "dining table"], [[240, 48, 371, 195.5], [12, 8, 498, 352]], [500, 353])
    assert by_lxml(PASCAL_VOC) == expected
    assert in_graph(PASCAL_VOC) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(note(), ([], [], [375, 500]), id="no-object"),
        pytest.param("<annotation></annotation>", ([], [], [0, 0]), id="nothing"),
        pytest.param(note(thing(), size=""), (*CAT[:2], [0, 0]), id="no-size"),
        pytest.param(note(thing(), size=sides("9")), (*CAT[:2], [0, 9]), id="no-height"),
        pytest.param(note(thing(), size=sides("0", "0")), (*CAT[:2], [0, 0]), id="size-0"),
        pytest.param(note(thing(name="<name>\n a b\t</name>")), (["a b"], *CAT[1:]), id="name-stripped"),
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
        pytest.param(note(thing()) + "\n\n", CAT, id="trailing-newlines"),
    ],
)  # fmt: skip
def test_both_readers_give_what_the_xml_says(by_lxml, text, expected):
    assert by_lxml(text) == expected
    assert in_graph(text) == expected


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
def test_names_and_sizes_of_other_things_are_left_alone(by_lxml, text):
    assert by_lxml(text) == CAT
    assert in_graph(text) == CAT


def test_an_image_without_an_xml_has_no_objects():
    assert in_graph("", path="") == ([], [], [0, 0])


EDGES = ("xmin", "ymin", "xmax", "ymax")
SPACE = st.sampled_from(["", "", " ", "\n\t"])
NUMBERS = st.one_of(
    st.integers(-500, 20_000).map(str),
    st.floats(-1e4, 1e5, width=32, allow_subnormal=False).map(repr),
    st.floats(-1e3, 1e4).map("{:.2f}".format),
    st.sampled_from(["0", "-0.0", "+7", ".5", "5.", "1e3", "1E-2", "007"]),
)
NAMES = st.text(st.sampled_from("abNz09_- .>'\"éß猫"), max_size=12)
COMMENTS = st.sampled_from(["<!---->", "<!-- <object><name>x</name></object> -->", "<!-- <part> -->", "<!-- > < -->"])


@st.composite
def tags(draw, contents: dict[str, st.SearchStrategy[str]]) -> str:
    """These elements in any order, with white space and comments between and around them."""
    parts = [f"<{tag}>{draw(SPACE)}{draw(text)}{draw(SPACE)}</{tag}>" for tag, text in contents.items()]
    parts += draw(st.lists(COMMENTS, max_size=1))
    return "".join(part + draw(SPACE) for part in draw(st.permutations(parts)))


BOXES = tags(dict.fromkeys(EDGES, NUMBERS))
PARTS = st.lists(tags({"name": NAMES, "bndbox": BOXES}).map("<part>{}</part>".format), max_size=2).map("".join)


@st.composite
def annotations(draw) -> str:
    objects = []
    for _ in range(draw(st.integers(0, 20) if draw(st.booleans()) else st.integers(0, 2))):
        inside = {"name": NAMES, "bndbox": BOXES}
        for extra in draw(st.sets(st.sampled_from(["difficult", "truncated", "pose"]))):
            inside[extra] = st.sampled_from(["0", "1", "Unspecified"])
        thing = draw(tags(inside))
        parts = draw(PARTS)
        objects.append(
            f"<object>{parts}{thing}</object>" if draw(st.booleans()) else f"<object>{thing}{parts}</object>"
        )
    stated = draw(st.sets(st.sampled_from(["width", "height", "depth"])))
    size = draw(tags(dict.fromkeys(stated, NUMBERS)))
    head = ["<folder>a</folder>", "<filename>b</filename>", "<source><annotation>PASCAL VOC</annotation></source>"]
    head += ["<owner><flickrid>?</flickrid><name>me</name></owner>"] * draw(st.booleans())
    head = draw(st.permutations(head))
    body = [*objects, "<segmented>0</segmented>", *[f"<size>{size}</size>"] * draw(st.booleans())]
    body += draw(st.lists(COMMENTS, max_size=2))
    start = draw(st.sampled_from(["", '<?xml version="1.0" encoding="utf-8"?>\n']))
    return f"{start}<annotation>{''.join(head)}{draw(SPACE)}{''.join(draw(st.permutations(body)))}</annotation>"


@settings(deadline=None, max_examples=200)
@given(annotations())
def test_both_readers_agree(by_lxml, text):
    assert in_graph(text) == by_lxml(text)


PIECES = [
    *("<object>", "</object>", "<object/>", "<part>", "</part>", "<name>x</name>", "</bndbox><bndbox>", "<size>"),
    *(
        "<xmin>1</xmin>",
        "<!--",
        "-->",
        "<![CDATA[",
        "]]>",
        "&amp;",
        "&e;",
        "<?a?>",
        " a='1'",
        "nan",
        "<",
        ">",
        "\0",
        "é",
    ),
]


def shuffled(draw: random.Random, parts: list[str]) -> str:
    spaces = ("", "", " ", "\n\t", "<!-- <object> -->")
    return "".join(part + draw.choice(spaces) for part in draw.sample(parts, len(parts)))


def generated(draw: random.Random) -> str:
    """As `annotations`, a hundred times as fast."""

    def number() -> str:
        value = draw.choice((draw.randrange(-20, 600), draw.uniform(-9, 900), round(draw.uniform(0, 900), 2)))
        return draw.choice(("{}", " {}", "{}\n")).format(value)

    def elements(*tags: str) -> list[str]:
        return [f"<{tag}>{number()}</{tag}>" for tag in tags]

    def box() -> str:
        return f"<bndbox>{shuffled(draw, elements(*EDGES))}</bndbox>"

    objects = []
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 9))):
        parts = [f"<part>{shuffled(draw, ['<name>head</name>', box()])}</part>"] * draw.choice((0, 0, 0, 1, 2))
        inside = [f"<name>{draw.choice(('n02017213', ' a b ', 'éß', ''))}</name>", box(), "<pose>Left</pose>"]
        objects.append(f"<object>{shuffled(draw, inside + parts)}</object>")
    stated = elements(*draw.sample(("width", "height", "depth"), draw.choice((3, 3, 3, 2, 0))))
    head = ["<folder>a</folder>", "<source><annotation>VOC</annotation></source>", "<owner><name>me</name></owner>"]
    return f"<annotation>{shuffled(draw, [*head, f'<size>{shuffled(draw, stated)}</size>', *objects])}</annotation>"


def changed(draw: random.Random, text: str) -> str:
    """With something cut out, doubled, moved or put in."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        start = draw.randrange(len(text) + 1)
        end = start + draw.choice((0, 1, 5, 20, 200))
        piece = draw.choice(("", text[start:end], draw.choice(PIECES), chr(draw.randrange(1, 256))))
        to = draw.choice((start, end, draw.randrange(len(text) + 1)))
        text = text[:start] + piece + text[end:] if draw.random() < 0.7 else text[:to] + piece + text[to:]
    return text


def test_of_thousands_of_changed_xmls_none_is_read_as_something_else(by_lxml):
    """What both read is the same, what nothing was done to both read, and what lxml refuses the graph does too."""
    draw, outcomes = random.Random(0), Counter()
    for number in range(EXAMPLES):
        whole = generated(draw)
        text = whole if number % 4 == 0 else changed(draw, whole)
        readings = []
        for read in (by_lxml, in_graph):
            try:
                readings.append(read(text))
            except (ValueError, tf.errors.InvalidArgumentError):
                readings.append(None)
        expected, found = readings
        if (expected is not None and found is not None) or text == whole:
            assert found == expected and found is not None, text
        outcomes[expected is not None, found is not None] += 1
    both, neither = outcomes[True, True], outcomes[False, False]
    print(f"{EXAMPLES} XMLs: both read {both}, alike; both refuse {neither}; the graph alone {outcomes[True, False]}")
    assert outcomes[False, True] == 0
    # As where a comment holds what begins a section of character data.
    assert outcomes[True, False] <= EXAMPLES // 200


NO_NUMBERS = ["", " ", "x", "1 2", "1,5", "--1", "1e", "0x10", "nan", "inf", "-Infinity", "1_000", "\u0661", "."]
REFUSED = [
    *[pytest.param(note(thing(box=bndbox(**{edge: None}))), id=f"without-{edge}") for edge in EDGES],
    *[pytest.param(note(thing(box=bndbox(ymax=value))), id=f"ymax-{value!a}") for value in NO_NUMBERS],
    pytest.param(note(thing(), size=sides("wide", "9")), id="width-no-number"),
    pytest.param(note(thing(), size=sides("", "9")), id="width-empty"),
    pytest.param(note(thing(name="")), id="without-name"),
    pytest.param(note(thing(box="")), id="without-bndbox"),
    pytest.param(note("<object></object>"), id="object-empty"),
    pytest.param(note("<object/>"), id="object-empty-tag"),
    pytest.param(note(thing(), "<object/>"), id="object-empty-tag-after-another"),
    pytest.param(note(thing(), thing(name="")), id="second-without-name"),
    # What one object lacks, another has twice.
    pytest.param(note(thing(name=""), thing(name="<name>a</name><name>b</name>")), id="name-given-to-another"),
    pytest.param(note(thing(box=""), thing(box=bndbox() * 2)), id="bndbox-given-to-another"),
    pytest.param(
        note(thing(box=bndbox(ymin=None)), thing(box=bndbox() + "<ymin>2</ymin>")), id="ymin-given-to-another"
    ),
    pytest.param(note(thing(box=bndbox(ymin="2</ymin><ymin>2", xmin=None))), id="xmin-replaced-by-ymin"),
    pytest.param(note(thing(more="<pose>Left</part>")), id="closed-by-another"),
    pytest.param(note(thing(more="<pose><part></pose></part>")), id="closed-in-another-order"),
    pytest.param(note(thing(more="<pose>a & b</pose>")), id="bare-ampersand"),
    pytest.param(note(thing(more="<pose>&nbsp;</pose>")), id="unknown-entity"),
    pytest.param(note(thing(more="<pose>\x07</pose>")), id="control-character"),
    pytest.param(note(thing(more="<pose a=1>x</pose>")), id="attribute-without-quotes"),
    pytest.param(note(thing(more="<po<!-- -->se>x</pose>")), id="comment-in-a-tag"),
    pytest.param(note(thing(more="<!-- a -- b -->")), id="hyphens-in-a-comment"),
    pytest.param("", id="empty"),
    pytest.param(" \n", id="blank"),
    pytest.param("hello", id="text"),
    pytest.param(b"\xff\xd8\xff\xe0\x00\x10JFIF", id="jpeg"),
    pytest.param(b"\x00" * 64, id="zeros"),
    pytest.param("<html><body>404 Not Found</body>", id="html"),
    pytest.param(note(thing()) + note(thing()), id="two-documents"),
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_lxml_refuses(by_lxml, text):
    with pytest.raises(ValueError, match=r"a\.xml"):
        by_lxml(text)


@pytest.mark.parametrize("text", REFUSED)
def test_the_graph_refuses_and_names_the_file(text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"/some/where\.xml"):
        in_graph(text, "/some/where.xml")


def test_neither_reads_an_xml_that_was_cut_off(by_lxml):
    """As a full disk leaves it: its objects, or some of them, would be lost without a word."""
    accepted = []
    whole = len(PASCAL_VOC.rstrip())
    for end in [*range(1, whole, 5), *range(whole - 15, whole)]:
        with pytest.raises(ValueError, match="is not XML"):
            by_lxml(PASCAL_VOC[:end])
        try:
            in_graph(PASCAL_VOC[:end])
        except tf.errors.InvalidArgumentError:
            continue
        accepted.append(PASCAL_VOC[:end][-20:])
    assert accepted == []


UNUSUAL = [
    pytest.param(note(thing(name="<name>a&amp;b</name>")), id="entity"),
    pytest.param(note(thing(name="<name>a&#65;b</name>")), id="character-reference"),
    pytest.param(note(thing(name="<name><![CDATA[cat]]></name>")), id="cdata"),
    pytest.param(note(thing(name="<name/>")), id="name-empty-tag"),
    pytest.param(note(thing(name="<name >cat</name >")), id="space-in-tag"),
    pytest.param(note(thing(name='<name lang="en">cat</name>')), id="name-attribute"),
    pytest.param(note(thing(name="<name>a<b/>c</name>")), id="name-mixed"),
    pytest.param(note(thing(box=bndbox() * 2)), id="bndbox-twice"),
    pytest.param(note(thing(more="<polygon><xmin>1</xmin></polygon>")), id="another-xmin"),
    pytest.param(note(thing(), size=sides("9", "9").replace("<width>", "<width unit='px'>")), id="width-attribute"),
    pytest.param(note(thing(), size=sides("9</width><width>9", "9")), id="width-twice"),
    pytest.param(note(thing()).encode("utf-16"), id="utf-16"),
    pytest.param((LATIN_1 + note(thing(name="<name>\xe9</name>"))).encode("latin-1"), id="latin-1"),
]  # fmt: skip


@pytest.mark.parametrize("text", UNUSUAL)
def test_in_graph_an_unusual_xml_is_read_like_by_lxml_or_refused(by_lxml, text):
    """Never read as something else."""
    try:
        read = in_graph(text)
    except tf.errors.InvalidArgumentError as error:
        assert "a.xml" in error.message
    else:
        assert read == by_lxml(text)


@pytest.mark.parametrize("text", UNUSUAL)
def test_lxml_reads_an_unusual_xml_in_the_pipeline_too(by_lxml, text):
    assert in_graph(text, parse=_lxml) == by_lxml(text)


def test_lxml_in_the_pipeline_gives_what_it_gives_alone(by_lxml):
    assert in_graph(PASCAL_VOC, parse=_lxml) == by_lxml(PASCAL_VOC)
    assert in_graph("", "", _lxml) == ([], [], [0, 0]) == in_graph(note(size=""), parse=_lxml)


@pytest.mark.parametrize("text", REFUSED)
def test_lxml_in_the_pipeline_refuses_as_the_graph_does_and_says_what_it_says_alone(tmp_path, text):
    path = tmp_path / "where.xml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError) as alone:
        read_xml(str(path))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        in_graph(text, str(path), _lxml)
    unescaped = re.sub(r"\\(['\"])", r"\1", caught.value.message)
    assert f"assertion failed: [{alone.value}]" in unescaped and "Traceback" not in unescaped


def test_lxml_says_where_the_mistake_is(tmp_path: Path):
    path = tmp_path / "n01_5.xml"
    path.write_text("<annotation>\n\n" + thing(box=bndbox(xmax="wide")) + "\n</annotation>")
    with pytest.raises(ValueError, match=r'n01_5\.xml: line 3: <bndbox/xmax> is "wide", not a number'):
        read_xml(str(path))
    path.write_text("<annotation>\n" + thing(box=bndbox(ymin=None)) + "\n</annotation>")
    with pytest.raises(ValueError, match=r"n01_5\.xml: line 2: <object> without <bndbox/ymin>"):
        read_xml(str(path))


def test_lxml_opens_no_other_file(tmp_path: Path):
    (tmp_path / "secret").write_text("cat")
    doctype = f'<!DOCTYPE annotation [<!ENTITY e SYSTEM "file://{tmp_path}/secret">]>'
    (tmp_path / "a.xml").write_text(doctype + note(thing(name="<name>&e;</name>")))
    try:
        names = read_xml(str(tmp_path / "a.xml")).names
    except ValueError:
        return
    assert "cat" not in list(names)


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        read_xml(os.path.join(tmp_path, "gone.xml"))


def test_xmls_parsed_together_are_each_as_when_parsed_alone() -> None:
    texts = [note(thing()), "", PASCAL_VOC, note(), "", note(thing(), thing("<name>dog</name>"))]
    paths = ["a.xml", "", "b.xml", "c.xml", "", "d.xml"]
    for parse in (_parse, _lxml):
        together = many_in_graph(texts, paths, parse)
        assert together == [in_graph(text, path, parse) for text, path in zip(texts, paths, strict=True)]
        assert together[1] == together[4] == Read([], [], [0.0, 0.0])


@pytest.mark.parametrize("bad", ["<annotation>", "no XML", ""])
def test_of_xmls_parsed_together_the_one_at_fault_is_named(bad: str) -> None:
    for parse in (_parse, _lxml):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"b\.xml") as caught:
            many_in_graph([PASCAL_VOC, bad, note(thing())], ["a.xml", "b.xml", "c.xml"], parse)
        assert "a.xml" not in str(caught.value)
