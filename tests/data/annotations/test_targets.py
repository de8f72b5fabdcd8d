"""Targets parsed in the pipeline: what `cleaning.targets` makes of the XMLs, many in a call, errors as lxml's."""

import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.support.examples import examples
from tests.support.images import encoded, picture
from tests.support.targets import BOX, CLASSES, LABEL, REAL, RELATIVE, STATED, WHOLE, targets_of_xmls, xml_of
from tests.support.xmls import REFUSED, annotations
from tfpipe.data.annotations.cleaning import BY_OBJECT, Boxes, ImageObjects, odd_objects
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.annotations.targets import KnownTargets, target_parser

TEXT = xml_of([("n02", BOX), ("cow", BOX), ("n03", BOX)], STATED)


@pytest.mark.parametrize("label", [LABEL, BY_OBJECT])
def test_xmls_parsed_together_are_each_as_when_parsed_alone(label):
    texts = [TEXT, None, xml_of([], STATED), xml_of([("n01", BOX)], STATED), None, TEXT]
    together = targets_of_xmls(texts, [label] * 6, [REAL] * 6)
    assert together == [targets_of_xmls([text], [label], [REAL])[0] for text in texts]
    # Of the image's class or unknown, else the whole image; or all of known classes.
    expected = ([RELATIVE, RELATIVE], [1, 2]) if label == BY_OBJECT else ([RELATIVE, RELATIVE], [LABEL, LABEL])
    assert together[0] == together[5] == expected
    assert together[1] == (([], []) if label == BY_OBJECT else (WHOLE, [LABEL]))


@pytest.mark.parametrize("stated", [(0, 0), (0.5, 0.5), (0, 200), (100, 0), (-100, 200), (0.99, 300)])
def test_without_a_stated_side_of_a_pixel_the_images_own_size_counts(stated):
    (found,) = targets_of_xmls([xml_of([("n02", (75, 150, 225, 450))], stated)], [LABEL], [REAL])
    assert found == ([RELATIVE], [LABEL])


@settings(max_examples=examples(100))
@given(annotations())
def test_any_annotation_gives_boxes_inside_the_image(text):
    ((boxes, labels),) = targets_of_xmls([text], [LABEL], [REAL])
    assert 1 <= len(boxes) <= max(1, len(parse_annotation(text.encode(), "").names)) and set(labels) == {LABEL}
    edges = np.array(boxes)
    assert (edges >= 0).all() and (edges <= 1).all() and (edges[:, :2] < edges[:, 2:]).all()


EDGE = st.sampled_from([0.0, -0.0, 1.0, 2.5])


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 1), EDGE, EDGE, EDGE, EDGE), max_size=12))
def test_an_object_that_its_image_has_already_is_known(rows):
    """Of the same class and edges, wherever it stands among the image's; another image's does not count."""
    rows.sort(key=lambda row: row[0])
    images, classes, *edges = zip(*rows, strict=True) if rows else [()] * 6
    objects = ImageObjects(
        np.array(images, int), np.array(edges, np.float32).T.reshape(-1, 4), np.array(classes, np.int32)
    )
    odd = odd_objects(objects, np.full(4, BY_OBJECT, np.int32), np.full((4, 2), 3, np.float32))
    assert odd["box twice"].tolist() == [row in rows[:number] for number, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("orientation", "stated", "order"),
    [
        *((orientation, (32, 24), "<>"[orientation % 2]) for orientation in range(1, 9)),
        *((6, stated, ">") for stated in ((24, 32), (64, 48), (32, 24))),
    ],
)
def test_a_size_turned_by_exif_is_refused_of_xmls_and_of_known_boxes(
    orientation: int, stated: tuple[int, int], order: str
) -> None:
    exif = Image.Exif()
    exif.endian = order
    exif[0x010F], exif[0x0112] = "Maker", orientation
    jpeg, size = encoded(picture(24, 32), exif=exif), tf.constant([[24, 32]])
    boxes = Boxes(np.zeros(1, np.int32), np.float32([[0, 0, 1, 1]]), np.zeros(1, np.int32))
    known = KnownTargets(boxes, np.array([0, 1]), np.float32([stated]))
    xml = tf.constant([xml_of([("n02", (1, 2, 9, 9))], stated)]), ["a.xml"], tf.constant([LABEL]), size, [jpeg]
    for find in (
        lambda: target_parser(CLASSES)(*xml),
        lambda: known.at_checked(tf.constant([0], tf.int64), size, [jpeg]),
    ):
        if orientation < 5 or stated != (32, 24):
            assert len(find().boxes) == 1
            continue
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"the boxes is the image\\?'s turned by EXIF"):
            find()


@pytest.mark.parametrize("text", REFUSED)
def test_the_error_is_that_of_the_reader_without_a_traceback(text):
    with pytest.raises(ValueError) as alone:
        parse_annotation(text.encode() if isinstance(text, str) else text, "a.xml")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        targets_of_xmls([TEXT, text, TEXT], [LABEL] * 3, [REAL] * 3)
    unescaped = re.sub(r"\\(['\"])", r"\1", caught.value.message)
    assert f"assertion failed: [{alone.value}]" in unescaped and "Traceback" not in unescaped
