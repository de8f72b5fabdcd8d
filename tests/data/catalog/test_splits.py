"""Names say splits by one rule: of files by a word, of folders by the word alone, or next to one that differs by it."""

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.data.catalog.splits import (
    FolderRule,
    FolderUse,
    class_level,
    find_splits,
    sorted_files,
    splits_in,
    splits_of,
    uses_of,
    whole_split,
)
from tfpipe.errors import ConfigError

# ---- words ----

TRAIN = ["imagenet-train-000000.tar", "train.csv", "TRAIN_0.tar", "Training-00.parquet", "instances_train2017.json",
         "trainset.csv", "TrainData.csv", "train-00000-of-01024", "seg_train"]  # fmt: skip
VAL = ["imagenet-val-000000.tar", "valid.csv", "Val.parquet", "VALIDATION-1.tar", "validation-00000-of-00128",
       "instances_val2017.json", "imagenet1k-validation-00.tar", "birdsVal.csv"]  # fmt: skip
TEST = ["test.parquet", "Testing_1.tar", "my.test.csv", "test-set.csv"]
UNSAID = ["labels.parquet", "valley.csv", "contest.tar", "trains.tar", "trainval.csv", "latest.csv", "000.tar"]


@pytest.mark.parametrize(("names", "split"), [(TRAIN, {"train"}), (VAL, {"val"}), (TEST, {"test"}), (UNSAID, set())])
def test_a_name_says_its_split_by_a_word(names: list[str], split: set[str]) -> None:
    assert {name: splits_in(name) for name in names} == dict.fromkeys(names, split)


def test_a_whole_name_says_nothing_else() -> None:
    names = {"train": "train", "Training": "train", "test_set": "test", "test-set": "test", "Valid": "val"}
    assert {name: whole_split(name) for name in names} == names
    assert not any(map(whole_split, ["seg_train", "train_old", "bus", "2017", "val2017", "train_test", ""]))


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["seg_train", "seg_test", "docs"], {"seg_train": "train", "seg_test": "test"}),
        (["train2017", "val2017"], {"train2017": "train", "val2017": "val"}),
        (["2012_img_train", "2012_img_val"], {"2012_img_train": "train", "2012_img_val": "val"}),
        (["ImagesTrain", "ImagesTest"], {"ImagesTrain": "train", "ImagesTest": "test"}),
        (["steam_train", "bus"], {}),
        (["train2017", "val2014"], {}),
        (["seg_train", "seg_Train"], {}),
        (["train", "seg_test"], {"train": "train"}),
    ],
    ids=str,
)  # fmt: skip
def test_a_longer_name_of_a_folder_says_a_split_next_to_one_that_differs_by_the_word(names: list, splits: dict) -> None:
    assert splits_of(names) == splits


# ---- files ----

NAMES = st.sets(st.sampled_from([*TRAIN, *VAL, *TEST, *UNSAID, "train-test.csv", "a-val-test.tar"]), max_size=8)


@given(NAMES, st.sampled_from(["both", "train", "test"]))
def test_every_file_is_used_once_or_left_out_with_its_reason(names: set[str], role) -> None:
    try:
        files = sorted_files(names, role)
    except ConfigError as error:
        assert role == "both" and any(len(splits_in(name)) > 1 for name in names)
        assert "data.source.path and data.source.test_path" in str(error)
        return
    left_out = [name for members in files.left_out.values() for name in members]
    assert sorted([*files.train, *files.test, *left_out]) == sorted(names)
    assert (role == "both" or not names) or bool(files.test if role == "test" else files.train)
    assert not (files.train if role == "test" else files.test if role == "train" else [])
    assert all("split" in reason and members for reason, members in files.left_out.items())


@pytest.mark.parametrize(
    ("names", "train", "test", "left_out"),
    [
        ([*TRAIN, *VAL, *TEST, *UNSAID], TRAIN, VAL, [*TEST, *UNSAID]),
        ([*TRAIN, *TEST], TRAIN, TEST, []),
        ([*UNSAID, *TEST], UNSAID, TEST, []),
        (UNSAID, UNSAID, [], []),
        (VAL, [], VAL, []),
        ([], [], [], []),
    ],
)
def test_names_of_a_folder_are_split(names: list[str], train: list[str], test: list[str], left_out: list[str]) -> None:
    files = sorted_files(names, "both")
    assert (files.train, files.test) == (sorted(train), sorted(test))
    assert sorted(name for members in files.left_out.values() for name in members) == sorted(left_out)


# ---- folders ----


def uses(folders: Collection[str], **rule: object) -> dict[str, str]:
    """Returns the use of each folder of images, or why it has none."""
    folders = sorted(folders)
    about = FolderRule(**rule)  # type: ignore[arg-type]
    found = uses_of(find_splits(folders, about), about)
    return {folder: use.split or use.reason for folder, use in zip(folders, found, strict=True)}


NO_SPLIT, FLAT = "images of no split", "images of test data without class folders"


@pytest.mark.parametrize(
    "expected",
    [
        {"train/a/": "train", "val/a/": "test", "test/a/": "images of test next to those of val", "other/a/": NO_SPLIT},
        {"train/a/": "train", "validation/": FLAT},  # Kaggle's form
        {"train/a/": "train", "train/": "train"},
        {"train/a/": "train", "": NO_SPLIT},
        {"a/": "train", "b/": "train", "val/": FLAT},
        {"a/": "train", "b/2/": "train", "val/a/": "test", "val/b/3/": "test"},
        {"a/": "train", "b/": "train", "val/a/": "test", "test/b/": "images of test next to those of val"},
        {"train/": "train", "bus/": "train"},  # classes
        {"train/": "train", "bus/": "train", "test/": FLAT},
        {"steam_train/red/": "train", "bus/red/": "train"},  # classes
        {"seg_train/seg_train/a/": "train", "seg_test/seg_test/a/": "test"},
        {"ds/images/train2017/a/": "train", "ds/images/val2017/a/": "test", "ds/images/docs/": NO_SPLIT},
        {"train/train/a/": "train", "test/test/a/": "test"},
        {"vehicles/train/": "train", "vehicles/bus/": "train", "animals/cat/": "train"},
    ],
    ids=str,
)  # fmt: skip
def test_folders_are_used_by_the_rule(expected: dict[str, str]) -> None:
    assert uses(expected) == expected


@pytest.mark.parametrize("odd", ["train", "test"])
def test_flat_folders_with_labels_of_their_own_are_splits(odd: str) -> None:
    folders = {"images/train/": "train", "images/val/": "test", "images/docs/": NO_SPLIT}  # YOLO's
    assert uses(folders, labelled=("train", "test")) == folders
    beside = {"train/a/": "train", "val/": "test"}
    assert uses(beside, labelled=("test",)) == beside
    with pytest.raises(ConfigError, match=r"several folders may be the .* data, .*train\w*.*data\.source\.test_path"):
        uses([f"{odd}/", f"{odd}_set/", "train/", "val/"], labelled=("train", "test"))


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("train", {"train/a/": "train", "val/a/": "the config takes others", "docs/": NO_SPLIT}),
        ("train", {"a/": "train", "val/a/": "the config takes others"}),
        ("test", {"train/a/": NO_SPLIT, "val/a/": "test", "docs/": NO_SPLIT}),
        ("test", {"a/": "test", "b/": "test"}),
        ("test", {"train/a/": "test"}),
    ],
    ids=str,
)
def test_a_folder_of_one_split_holds_no_other(role: str, expected: dict[str, str]) -> None:
    found = uses(expected, role=role)
    assert all(use == found[folder] or found[folder].endswith(use) for folder, use in expected.items()), found


def test_test_data_next_to_a_share_are_left_out() -> None:
    assert uses(["train/a/", "val/a/", "valid/a/"], has_share=True)["val/a/"].endswith("takes others")


@pytest.mark.parametrize(
    "folders",
    [
        ["bus/2023/", "car/2023/", "train/2023/"],
        ["bus/2023/", "car/2023/", "test/2023/"],
        ["train/a/", "train_old/a/"],
        ["train/", "bus/2023/"],
        ["cat/", "dog/", "cat/test/dog/"],
        ["cat/train/", "cat/test/", "dog/train/"],
        ["train/cat/val/", "train/dog/"],
        ["images/train/a/", "images/val/a/", "masks/train/a/"],
    ],
    ids=str,
)
def test_what_may_be_a_split_or_a_class_is_refused_with_the_keys_that_decide(folders: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"by its name, .*data\.source\.path, .*test_path, or if .*data\.class_level"):
        uses(folders)
    assert {*uses(folders, level=1).values()} == {"train"}


@pytest.mark.parametrize(
    "folders",
    [["train/a/", "Training/a/", "val/a/"], ["train/a/", "val/a/", "valid/a/"], ["a/", "val/a/", "validation/a/"]],
)
def test_several_folders_of_a_split_are_refused(folders: list[str]) -> None:
    with pytest.raises(
        ConfigError, match=r"several folders may be the (training|test) data, .*data\.source\.test_path"
    ):
        uses(folders)
    assert "train" in uses(folders[1:2], role="test").values() or uses(folders[:1]) == {folders[0]: "train"}


FOLDERS = st.lists(st.sampled_from(["a", "b", "train", "Test", "val", "seg_train", "seg_test", "2023"]), max_size=4)
RULES = st.builds(
    FolderRule,
    level=st.sampled_from([None, 1, -1]),
    labelled=st.sampled_from([(), ("test",), ("train", "test")]),
    role=st.sampled_from(["both", "train", "test"]),
    has_share=st.booleans(),
)


@given(st.lists(FOLDERS.map(lambda names: "".join(f"{name}/" for name in names)), min_size=1, max_size=6), RULES)
def test_every_folder_has_one_use_or_a_reason_whatever_the_order(folders: list[str], rule: FolderRule) -> None:
    def sort(folders: list[str]) -> dict[str, FolderUse] | str:
        try:
            places = find_splits(folders, rule)
        except ConfigError as error:
            return str(error)
        # What is above and below the name of a split is the folder.
        assert ["/".join(filter(None, [place.root, *place.names])) for place in places] == [
            folder[:-1] for folder in folders
        ]
        return dict(zip(folders, uses_of(places, rule), strict=True))

    result = sort(folders)
    assert sort(folders[::-1]) == result
    if isinstance(result, str):
        assert "data.source.path" in result and "data.source.test_path" in result
        return
    assert all((use.split is None) == bool(use.reason) for use in result.values())
    allowed = {"both": {"train", "test"}, "train": {"train"}, "test": {"test"}}[rule.role]
    assert {use.split for use in result.values()} <= allowed | {None}
    for folder, use in result.items():
        names = folder.split("/")[:-1]
        tests = [name for name in names if whole_split(name) in ("val", "test")]
        if use.split == "train" and rule.level is None and rule.role != "test":
            assert not tests, "nothing that says test is trained on"


@pytest.mark.parametrize(
    ("folders", "level", "classes"),
    [
        (["cat", "dog"], None, ["cat", "dog"]),
        (["cat/2024", "dog/2023", "dog"], None, ["cat", "dog", "dog"]),
        (["n01/images", "n02/images"], None, ["n01", "n02"]),  # Tiny ImageNet
        (["flowers/cat", "flowers/dog", ""], None, ["cat", "dog", None]),
        (["flowers/cat", "flowers/dog", "flowers"], None, ["cat", "dog", None]),
        (["cat/2024", "dog/2023"], 2, ["2024", "2023"]),
        (["cat/2024", "dog/2023/5"], -1, ["2024", "5"]),
        (["cat"], None, ["cat"]),
    ],
    ids=str,
)
def test_classes_are_the_first_level_of_folders_that_part(
    folders: list[str], level: int | None, classes: list[str | None]
) -> None:
    names = [tuple(folder.split("/")) if folder else () for folder in folders]
    at = class_level(names, level)
    assert [path[at] if -len(path) <= at < len(path) else None for path in names] == classes


def test_classes_of_several_levels_below_one_folder_are_refused_with_the_key_that_decides() -> None:
    with pytest.raises(ConfigError, match=r"below the folder ds, .* set data\.class_level .*: 2 for dog, -1"):
        class_level([("ds", "cat"), ("ds", "dog", "2024")], None)
