"""Layouts: where an image's XML is, and whether it exists."""

import os

import pytest

from tests.support.trees import touch
from tfpipe.config import Layout
from tfpipe.data.catalog.layout import LAYOUTS, LocalFiles, annotation_folders, annotation_name, existing, find_layout
from tfpipe.data.catalog.paths import FileList
from tfpipe.errors import ConfigError

ILSVRC, VOC = LAYOUTS["ilsvrc"], LAYOUTS["voc"]


def found_in(paths, layout):
    return existing(FileList.of(paths), layout, LocalFiles(), show=False)


def annotation_path(image: str, layout: Layout) -> str:
    (folder,) = annotation_folders(FileList.of([image]), layout)
    return folder + annotation_name(os.path.basename(image), ".xml")


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
    touch(tmp_path / "Annotations/CLS-LOC", "n01/a.xml", "n02/c.xml", "file")  # in a folder's place
    paths = [f"{tmp_path}/Data/CLS-LOC/{name}.JPEG" for name in names]
    found = found_in(paths, ILSVRC)
    assert found.dtype == bool and found.tolist() == [name in ("n01/a", "n02/c") for name in names]


def test_without_any_annotation_folder_no_image_has_one(tmp_path):
    assert found_in([f"{tmp_path}/JPEGImages/a.jpg"] * 3, VOC).tolist() == [False] * 3
    assert found_in([], VOC).tolist() == []


def test_annotation_folders_are_beside_the_image_folders():
    paths = FileList.of(["/d/JPEGImages/b/1.jpg", "/d/JPEGImages/2.jpg", "/d/JPEGImages/b/3.jpg"])
    assert annotation_folders(paths, VOC) == ["/d/Annotations/b/", "/d/Annotations/"]


def test_the_first_image_outside_the_images_folder_is_named():
    paths = FileList.of(["/d/JPEGImages/1.jpg", "/d/2.jpg", "/e/3.jpg", "/d/4.jpg"])
    for look in (annotation_folders, lambda paths, layout: existing(paths, layout, LocalFiles(), show=False)):
        with pytest.raises(ConfigError, match=r'^/d/2\.jpg is in no folder "JPEGImages"'):
            look(paths, VOC)


@pytest.mark.parametrize(("image", "xml"), [("a", "a.xml"), ("a.b.c", "a.b.xml"), (".a", ".a.xml"), ("a.", "a.xml")])
def test_an_xmls_name_is_the_images_without_its_last_extension(image, xml):
    assert annotation_name(image, ".xml") == xml
