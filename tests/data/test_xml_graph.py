"""Readers of XMLs in the pipeline: by string ops and by lxml; they agree with lxml alone on all of it, or refuse."""

import os
import random
import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from tests.support.examples import examples
from tests.support.xmls import (
    CAT,
    PASCAL_VOC,
    REFUSED,
    UNUSUAL,
    annotations,
    bndbox,
    changed,
    generated,
    note,
    sides,
    thing,
)
from tfpipe.data.annotations import read_xml
from tfpipe.data.xml_graph import parse_by_lxml, parse_xml

# XMLs that both readers are compared on; TFPIPE_EXAMPLES=10000 with -s says more.
EXAMPLES = int(os.environ.get("TFPIPE_EXAMPLES", examples(1000)))


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


@settings(deadline=None, max_examples=examples(200))
@given(annotations())
def test_both_readers_agree(by_lxml, text):
    assert in_graph(text) == by_lxml(text)


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


@pytest.mark.parametrize("text", REFUSED)
def test_lxml_refuses(by_lxml, text):
    with pytest.raises(ValueError, match=r"a\.xml"):
        by_lxml(text)


@pytest.mark.parametrize("text", REFUSED)
def test_the_graph_refuses_and_names_the_file(text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"/some/where\.xml"):
        in_graph(text, "/some/where.xml")


@pytest.mark.parametrize("step", [11, pytest.param(5, marks=pytest.mark.full("more of the same ends"))])
def test_neither_reads_an_xml_that_was_cut_off(by_lxml, step):
    """As a full disk leaves it: its objects, or some of them, would be lost without a word."""
    accepted = []
    whole = len(PASCAL_VOC.rstrip())
    for end in [*range(1, whole, step), *range(whole - 15, whole)]:
        with pytest.raises(ValueError, match="is not XML"):
            by_lxml(PASCAL_VOC[:end])
        try:
            in_graph(PASCAL_VOC[:end])
        except tf.errors.InvalidArgumentError:
            continue
        accepted.append(PASCAL_VOC[:end][-20:])
    assert accepted == []


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
