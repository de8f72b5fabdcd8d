"""Labels: the same class numbers everywhere, and no image ever given another image's label."""

import random
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.xmls import annotation
from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import number_classes
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.catalog.labels import (
    class_table,
    folder_of,
    image_labels,
    in_test_share,
    label_text,
    near_names,
    numbers_of,
    warn_of_numbers,
)
from tfpipe.data.catalog.paths import FileList
from tfpipe.errors import ConfigError

CLASSES = ("cat", "dog", "eel")
VAL = [f"/data/val/ILSVRC2012_val_{number:08d}.JPEG" for number in (1, 2, 3)]
TWO = ["/x/1.JPEG", "/x/2.JPEG"]
HEADER = "ImageId,PredictionString\n"


def data_config(**keys: Any) -> DataConfig:
    return DataConfig(train_filelist=Path("train.txt"), **keys)


def table(**keys: Any) -> tuple[str, ...]:
    return class_table(
        data_config(**keys), FileList.of(["/x/train/n02/b.JPEG", "/x/train/n01/a.JPEG", "/x/train/n02/c.JPEG"])
    )


@pytest.fixture
def from_file(tmp_path):
    """Labels from a label file with this text."""

    def labels(text: str, paths: list[str], classes: tuple[str, ...] = CLASSES) -> list[int]:
        file = tmp_path / "labels.txt"
        file.write_text(text)
        return image_labels(FileList.of(paths), classes, data_config(), file).tolist()

    return labels


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/data/train/n01/n01_5.JPEG", "n01"),
        ("/n01/a.JPEG", "n01"),
        ("n01/a.JPEG", "n01"),
        ("/a b/c.d/e.JPEG", "c.d"),
        ("/a.JPEG", ""),
        ("a.JPEG", ""),
        ("/data/train/n01/", "n01"),
        ("n01/", "n01"),
        ("/data//n01//a.JPEG", "n01"),
        ("./n01/./a.JPEG", "n01"),
        ("./a.JPEG", ""),
    ],
)
def test_an_images_folder_is_the_last(path, folder):
    assert folder_of(path) == folder


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1), st.randoms())
def test_the_numbering_does_not_depend_on_the_lists_order(folders, shuffle: random.Random):
    paths = [f"/x/{folder}/{number}.JPEG" for number, folder in enumerate(folders)]
    shuffled = shuffle.sample(paths, len(paths))
    classes = class_table(data_config(), FileList.of(paths))
    assert class_table(data_config(), FileList.of(shuffled)) == classes == tuple(sorted(set(folders)))
    labels = image_labels(FileList.of(shuffled), classes, data_config(), None)
    assert labels.dtype == np.int32
    assert [classes[label] for label in labels] == [folder_of(path) for path in shuffled]


WORDS = st.lists(
    st.sampled_from(["café", "cafe", "île", "zebra", "Ångström", "n01", "이미지"]), min_size=1, unique=True
)
SPELT = st.sampled_from(["NFC", "NFD"])


@given(WORDS, st.data())
def test_a_class_is_the_same_in_either_unicode_form_wherever_it_is_named(words: list[str], data: st.DataObject) -> None:
    """Named by folders of training and test data, by the config, by a label file's line and by an XML."""

    def spelt() -> list[str]:
        return [unicodedata.normalize(data.draw(SPELT), word) for word in words]

    classes = sorted(unicodedata.normalize("NFC", word) for word in words)
    wanted = [classes.index(unicodedata.normalize("NFC", word)) for word in words]
    trained = class_table(data_config(), FileList.of(f"/x/train/{word}/1.JPEG" for word in spelt()))
    assert [*trained] == classes
    tested = FileList.of(f"/x/val/{word}/1.JPEG" for word in spelt())
    assert image_labels(tested, trained, data_config(), None).tolist() == wanted
    named = class_table(data_config(classes=spelt()), FileList.of([]))
    assert image_labels(tested, named, data_config(), None).tolist() == [*range(len(words))]
    assert [numbers_of(trained)[label_text(word)] for word in spelt()] == wanted
    xmls = [parse_annotation(annotation((word, (1, 1, 9, 9))).encode(), "a.xml") for word in spelt()]
    assert number_classes(xmls, dict(zip(trained, range(len(words)), strict=True))).classes.tolist() == wanted


def test_given_classes_keep_their_order():
    assert table(classes=["zebra", "ant", "toy poodle"]) == ("zebra", "ant", "toy poodle")


def test_a_synset_mapping_gives_its_wnids_in_its_order(tmp_path):
    file = tmp_path / "LOC_synset_mapping.txt"
    file.write_text("n01443537 goldfish, Carassius auratus\nn01440764 tench, Tinca tinca\n\n")
    assert table(classes=file) == ("n01443537", "n01440764")


def test_a_class_file_of_plain_names_keeps_their_spaces(tmp_path):
    (tmp_path / "names.txt").write_text("toy poodle\r\n  cat \n\nn0144 is no wnid\ndog")
    assert table(classes=tmp_path / "names.txt") == ("toy poodle", "cat", "n0144 is no wnid", "dog")


def test_a_byte_order_mark_is_no_part_of_the_first_class_or_label(tmp_path, from_file):
    (tmp_path / "names.txt").write_text("cat\ndog\n", encoding="utf-8-sig")
    assert table(classes=tmp_path / "names.txt") == ("cat", "dog")
    kaggle = HEADER + "ILSVRC2012_val_00000001,dog 1 2 3 4\nILSVRC2012_val_00000002,cat\nILSVRC2012_val_00000003,eel\n"
    for text in ("dog\ncat\neel\n", kaggle):
        assert from_file(f"\ufeff{text}", VAL) == [1, 0, 2]


@pytest.mark.parametrize("keys", [{"num_classes": 2}, {"num_classes": 1000}, {"num_classes": None}])
def test_there_may_be_more_outputs_than_classes(keys):
    assert table(**keys) == ("n01", "n02")


def test_more_classes_than_outputs_are_refused():
    with pytest.raises(ConfigError, match=r"data\.num_classes is 1, but there are 2 classes as folders"):
        table(num_classes=1)


def test_a_class_given_twice_is_refused(tmp_path):
    (tmp_path / "names.txt").write_text("n01440764 tench\nn01443537 goldfish\nn01440764 tench again\n")
    with pytest.raises(ConfigError, match=r'"n01440764" is there twice in .*names\.txt'):
        table(classes=tmp_path / "names.txt")


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_no_class_is_refused(tmp_path, text):
    (tmp_path / "names.txt").write_text(text)
    with pytest.raises(ConfigError, match=r"no class in .*names\.txt"):
        table(classes=tmp_path / "names.txt")
    with pytest.raises(ConfigError, match=r"no class in data\.classes"):
        table(classes=[])


def test_a_label_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "image.JPEG").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(ConfigError, match=r"cannot read .*image\.JPEG"):
        image_labels(FileList.of(VAL), CLASSES, data_config(), tmp_path / "image.JPEG")


def test_folders_of_one_name_are_one_class():
    paths = FileList.of(["/x/dog/1.JPEG", "/y/dog/2.JPEG", "/y/cat/1.JPEG", "/x/dog/3.JPEG"])
    assert class_table(data_config(), paths) == ("cat", "dog")
    assert image_labels(paths, ("cat", "dog"), data_config(), None).tolist() == [1, 1, 0, 1]


def test_a_folder_that_is_no_class_is_refused_with_what_to_do():
    paths = FileList.of(["/x/dog/1.JPEG", "/x/val/2.JPEG", "/x/val/3.JPEG"])
    said = r'^2 of 3 images have a label that is no class, e\.g\. /x/val/2\.JPEG: "val".*data\.test_label_file'
    with pytest.raises(ConfigError, match=said):
        image_labels(paths, CLASSES, data_config(), None)


def test_images_whose_objects_have_labels_have_none_of_their_own():
    config = data_config(label_source="object", classes=["cat"])
    labels = image_labels(FileList.of(["/x/val/1.JPEG", "/x/2.JPEG"]), ("cat",), config, None)
    assert labels.dtype == np.int32 and labels.tolist() == [-1, -1]


def test_a_label_file_counts_before_the_folders(from_file):
    assert from_file("1.JPEG eel\n2.JPEG cat\n", ["/x/cat/1.JPEG", "/x/dog/2.JPEG"]) == [2, 0]


def test_kaggles_solution_file(from_file):
    text = (
        HEADER + "ILSVRC2012_val_00000003,eel 85 1 499 272 eel 0 0 5 5 \n"
        "ILSVRC2012_val_00000009,dog 1 2 3 4 \n"  # of an image that is not in the list
        "ILSVRC2012_val_00000001,cat 1 2 3 4 \n"
        "ILSVRC2012_val_00000002,dog 1 2 3 4 \n"
    )
    assert from_file(text, VAL) == [0, 1, 2]
    assert from_file(text, VAL[::-1]) == [2, 1, 0]


def test_one_label_a_line_may_be_a_name_with_spaces(from_file):
    classes = ("poodle", "toy poodle", "standard poodle")
    assert from_file("toy poodle\nstandard poodle\ntoy poodle\n", VAL, classes) == [1, 2, 1]


@pytest.mark.parametrize("listed", [["1", "2", "10"], ["1", "10", "2"]], ids=["by number", "by name"])
def test_labels_alone_of_images_whose_names_and_numbers_differ_in_order_are_refused(from_file, listed):
    """The first sorts 10 before 2, the second 2 before 10."""
    with pytest.raises(ConfigError) as caught:
        from_file("cat\ndog\neel\n", [f"/x/{name}.JPEG" for name in listed])
    message = r"line 2 of .* may be the label of 10, .* or of 2, .* each label, e\.g\. 2 dog"
    assert re.fullmatch(message, str(caught.value))


@pytest.mark.parametrize(
    ("text", "paths", "said"),
    [
        (HEADER + "ILSVRC2012_val_00000001,cat 1 2 3 4\nILSVRC2012_val_00000002,\n", VAL,
         r"holds no label for 2 of 3 images, e\.g\. ILSVRC2012_val_00000002"),
        ("cat\ndog\n", VAL, "holds 2 labels for 3 images"),
        ("cat\ndog\neel\ncat\n", VAL, "holds 4 labels for 3 images"),
        ("\n", VAL, "holds no label for 3 of 3 images"),
        ("1.JPEG cat\n3.JPEG dog\n", TWO, r"holds no label for 1 of 2 images, e\.g\. 2"),
        ("1.JPEG cat\n2.JPEG dog\n1.JPEG eel\n", TWO, r"\b1\b"),
        (HEADER + "1,cat 1 2 3 4\n2,dog 1 2 3 4\n1,eel 1 2 3 4\n", TWO, r"\b1\b"),
    ],
)  # fmt: skip
def test_an_image_without_a_label_or_with_several_is_refused(from_file, text, paths, said):
    with pytest.raises(ConfigError, match=said):
        from_file(text, paths)


@pytest.mark.parametrize(
    "line", ["{stem}.JPEG {label}", "{stem}\t{label}", "val/{stem}.JPEG   {label}", "/elsewhere/{stem}.JPEG {label}  "]
)
def test_lines_of_file_and_label_may_be_in_any_order(from_file, line):
    pairs = [("ILSVRC2012_val_00000003", "eel"), ("ILSVRC2012_val_00000001", "dog"), ("ILSVRC2012_val_00000002", "cat")]
    text = "\n".join(line.format(stem=stem, label=label) for stem, label in pairs)
    assert from_file(text, VAL) == [1, 0, 2]


def test_a_label_after_its_file_may_have_spaces(from_file):
    """`toy poodle` is not `poodle`."""
    assert from_file("1.JPEG toy poodle\n2.JPEG poodle\n", TWO, ("poodle", "toy poodle")) == [1, 0]


def test_labels_may_be_numbers_from_0(from_file):
    assert from_file("2\n0\n1\n", VAL) == from_file("2.0\n0.0\n1\n", VAL) == [2, 0, 1]
    assert from_file("b.JPEG 0\na.JPEG 2\n", ["/x/a.JPEG", "/x/b.JPEG"]) == [2, 0]


def test_ids_of_the_devkit_are_refused(from_file):
    """They count from 1, in another order than the class numbers."""
    wnids = ("n01440764", "n01443537", "n02437312")
    # Also those of a part of val in which the last class does not occur, and next to the images' names.
    named = "".join(f"{Path(path).stem} {number}\n" for path, number in zip(VAL, (1, 2, 2), strict=True))
    for text in ("2\n3\n1\n", "2\n1\n1\n", named, HEADER + named.replace(" ", ",")):
        with pytest.raises(
            ConfigError, match=r"holds numbers from 1 to \d and no 0, as ids of .*LOC_val_solution\.csv"
        ):
            from_file(text, VAL, wnids)
    assert from_file("2\n0\n1\n", VAL, wnids) == [2, 0, 1]
    assert from_file("2\n1\n1\n", VAL) == [2, 1, 1]


def test_a_class_whose_name_is_a_number_goes_by_its_name(from_file):
    assert from_file("0\n1\n7\n", VAL, ("1", "7", "0")) == [2, 0, 1]


def test_numbers_and_names_that_are_numbers_do_not_mix(from_file):
    """0, 1 and 2 would be read as a number and two names: 0, 0, 1."""
    with pytest.raises(ConfigError, match=r'1 of 3 images have a label that is no class, .*: "0" \(in '):
        from_file("0\n1\n2\n", VAL, ("1", "2", "3"))
    assert from_file("3\n1\n2\n", VAL, ("1", "2", "3")) == [2, 0, 1]


@pytest.mark.parametrize("label", ["cow", "3", "-1", "Cat", "1.5"])
def test_a_label_that_is_no_class_is_refused_by_image_and_label(from_file, label):
    with pytest.raises(ConfigError) as caught:
        from_file(f"cat\n{label}\ndog\n", VAL)
    assert f'1 of 3 images have a label that is no class, e.g. {VAL[1]}: "{label}" (in ' in str(caught.value)


@pytest.mark.parametrize("text", ["a/1.JPEG cat\nb/1.JPEG dog\n", "cat\ndog\n"])
def test_images_of_one_name_in_two_folders_never_get_each_others_label(from_file, text):
    """Either told apart by their folders, or refused."""
    try:
        labels = from_file(text, ["/x/a/1.JPEG", "/x/b/1.JPEG"])
    except ConfigError as error:
        assert "1" in str(error)
    else:
        assert labels == [0, 1]


@given(st.permutations(range(6)), st.permutations(range(6)), st.lists(st.sampled_from(CLASSES), min_size=6, max_size=6))
def test_all_kinds_of_label_file_agree(tmp_path_factory, order, lines, names):
    paths = [f"/x/val/v_{number}.JPEG" for number in range(6)]
    numbers = [CLASSES.index(name) for name in names]
    file = tmp_path_factory.getbasetemp() / "labels.txt"

    def labels(text: str, order: Sequence[int]) -> list[int]:
        file.write_text(text)
        return image_labels(FileList.of(paths[number] for number in order), CLASSES, data_config(), file).tolist()

    for text in ("\n".join(names), "\n".join(map(str, numbers))):
        assert labels(text, range(6)) == numbers
        if order != sorted(order):
            with pytest.raises(ConfigError, match=r"^line \d of .* may be the label of v_\d, .* or of v_\d, "):
                labels(text, order)
    for text in (
        "\n".join(f"v_{number}.JPEG {names[number]}" for number in lines),
        HEADER + "\n".join(f"v_{number},{names[number]} 1 2 3 4 " for number in lines),
    ):
        assert labels(text, order) == [numbers[number] for number in order]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (" a b\t", "a b"),
        ("\ufeff cat \ufeff", "cat"),
        (b" caf\xc3\xa9", "café"),
        ("10.0", "10"),
        ("-3.00", "-3"),
        ("-0", "0"),
        ("1.", "1."),
        ("007.0", "007.0"),
        ("1.50", "1.50"),
        (2.0, "2"),
        (2**53 + 1, "9007199254740993"),
        (1e-7, "1e-07"),
        (True, "true"),
        (None, None),
        (float("nan"), None),
        ("\ufeff ", None),
    ],
    ids=repr,
)
def test_a_label_is_one_text_whatever_its_type(value: Any, text: str | None):
    assert label_text(value) == text


@pytest.mark.parametrize("value", [2.0**53, -1e300, float("inf"), ["cat"], {"name": "cat"}, b"\xff"], ids=repr)
def test_a_value_that_is_no_single_label_is_refused(value: Any):
    with pytest.raises(ValueError):
        label_text(value)


def test_names_that_only_look_different_are_near():
    classes = ["cat", "Cat", "dog", "\ufeffdog", "toy poodle", "toy  poodle", "poodle", "fox "]
    assert near_names(classes) == [("cat", "Cat"), ("dog", "\ufeffdog"), ("toy poodle", "toy  poodle")]
    assert near_names(["a", "A", "a "]) == [("a", "A"), ("a", "a "), ("A", "a ")]


def test_classes_of_one_label_are_refused():
    with pytest.raises(ConfigError, match=r"the classes '1' and '1\.0' are the same label: rename one of them"):
        numbers_of(["1", "1.0"])


def test_a_share_is_that_of_each_class_by_name():
    """The same images whatever their order and how often each comes; no class loses its last."""
    names, classes = [f"{number}.jpg" for number in range(30)], [number % 3 for number in range(30)]
    chosen = in_test_share(names, classes, 0.25, 7)
    assert [np.count_nonzero(chosen[start::3]) for start in range(3)] == [2, 2, 2]
    assert in_test_share(names[::-1], classes[::-1], 0.25, 7).tolist() == chosen.tolist()[::-1]
    assert in_test_share(names * 2, classes * 2, 0.25, 7).tolist() == [*chosen, *chosen]
    assert in_test_share(names, classes, 0.25, 8).tolist() != chosen.tolist()
    assert not in_test_share(["a", "b"], [0, 1], 0.99, 0).any()


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ([str(number) for number in range(10)], ""),
        (sorted(map(str, range(12))), 'numbered as texts: "10" is class 2, and "2" is class 4; data.classes names'),
        (["001", "002", "010"], ""),
        (["10", "2", "cat"], ""),
    ],
)
def test_folders_that_are_numbers_are_told_if_their_order_is_another(
    classes: list[str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_numbers(classes, data_config())
    assert said in caplog.text and bool(said) is bool(caplog.text)
    caplog.clear()
    warn_of_numbers(classes, data_config(classes=classes))
    assert not caplog.text


@pytest.mark.parametrize("kind", ["none", "number", "mask"])
def test_where_images_need_no_class_a_label_file_is_not_asked(tmp_path: Path, kind: str) -> None:
    (tmp_path / "labels.csv").write_text("ImageId,PredictionString\n1,x 1 1 9 9\n")
    labels = image_labels(FileList.of(["/d/1.jpg"]), (), data_config(targets={"kind": kind}), tmp_path / "labels.csv")
    assert labels.tolist() == [0]
