"""Class folders are found at any depth, with their splits and classes, and what is no image is counted."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.data.catalog.class_folders import (
    BySplit,
    class_level,
    images_below,
    of_split,
    places_of,
    splits_in,
    whole_split,
    why_left_out,
)
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def test_images_are_found_at_any_depth_sorted_and_the_rest_is_counted(tmp_path: Path) -> None:
    images = ["a/1.jpg", "a/10.JPEG", "a/b/c/x.png", "fox.png/1.jpe", "z/0.webp", "z/2.jfif"]
    touch(tmp_path, *images, "a/notes.txt", "a/.hidden.jpg", ".git/1.jpg", "z/Thumbs.db", "z/3.PSD", "README")
    touch(tmp_path, "@eaDir/1.jpg", "__MACOSX/a/1.jpg", "lost+found/1.jpg", "train.catalog/table.npy", "only/text.txt")
    (tmp_path / "empty").mkdir()
    ledger = Ledger()
    assert images_below(tmp_path, ledger) == sorted(f"{tmp_path}/{name}" for name in images)
    assert {reason: count for reason, (count, _) in ledger.counts.items()} == {
        ".txt": 2,
        "names that begin with a dot": 2,
        "names of the operating system": 4,
        ".psd": 1,
        "names without an ending": 1,
        "files of tfpipe's own": 1,
        "folders without an image": 2,
    }
    assert ledger.counts[".psd"] == (1, f"{tmp_path}/z/3.PSD")


def test_a_link_to_a_folder_above_is_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "root/a/1.jpg", "elsewhere/2.jpg")
    (tmp_path / "root/a/up").symlink_to(tmp_path / "root")
    (tmp_path / "root/b").symlink_to(tmp_path / "elsewhere")
    ledger = Ledger()
    assert images_below(tmp_path / "root", ledger) == [f"{tmp_path}/root/a/1.jpg", f"{tmp_path}/root/b/2.jpg"]
    assert ledger.texts == [f"1 links to folders that are listed already (e.g. {tmp_path}/root/a/up)"]


NAMES = st.sampled_from(["a", "b.jpg", "c.JPE", "d.txt", "@eaDir", ".x", "x.catalog", "Thumbs.db", "train"])
TREES = st.recursive(st.none(), lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=12)


@given(st.dictionaries(NAMES, TREES, max_size=4))
def test_every_entry_is_an_image_or_a_folder_that_is_listed_or_counted(
    tmp_path_factory: pytest.TempPathFactory, tree: dict
) -> None:
    root, listed, others, ledger = tmp_path_factory.mktemp("tree"), 0, 0, Ledger()

    def make(folder: Path, contents: dict, *, seen: bool) -> None:
        nonlocal listed, others
        folder.mkdir(exist_ok=True)
        for name, inner in contents.items():
            used = seen and not why_left_out(name, is_folder=inner is not None)
            listed += used and inner is not None
            others += seen and not (used and inner is not None)
            if inner is None:
                (folder / name).touch()
            else:
                make(folder / name, inner, seen=used)

    make(root, tree, seen=True)
    images = images_below(root, ledger)
    empty = ledger.counts.pop("folders without an image", (0, ""))[0]
    assert len(images) + sum(count for count, _ in ledger.counts.values()) == others
    assert empty <= listed + 1
    assert all(Path(example).exists() for _, example in ledger.counts.values())


def splits_of(images: list[str]) -> dict[str, tuple[str | None, str]]:
    """Returns the split and the folder below the split's of each image's folder."""
    folders = sorted({image.rpartition("/")[0] + "/" for image in images})
    return {
        folder: (place.split, "/".join(place.names)) for folder, place in zip(folders, places_of(folders), strict=True)
    }


@pytest.mark.parametrize(
    ("train", "test"),
    [("training", "validation"), ("Train", "Val"), ("TRAIN", "TEST"), ("seg_train", "seg_test"), ("train_set", "test")],
)
@pytest.mark.parametrize("above", ["", "ds/images/"])
def test_splits_are_named_by_words_in_any_case_at_any_depth(train: str, test: str, above: str) -> None:
    found = splits_of([f"{above}{train}/a/1.jpg", f"{above}{test}/a/1.jpg", f"{above}docs/1.jpg"])
    kind = "test" if "test" in test.lower() else "val"
    assert found == {
        f"{above}{train}/a/": ("train", "a"),
        f"{above}{test}/a/": (kind, "a"),
        f"{above}docs/": (None, f"{above}docs"),
    }


@pytest.mark.parametrize(
    ("images", "train", "test"),
    [
        (["train/a/1.jpg", "val/a/1.jpg", "test/a/1.jpg", "other/a/1.jpg"], ["train/a/"], ["val/a/"]),
        (["train/a/1.jpg", "validation/1.jpg"], ["train/a/"], ["validation/"]),
        (["train/a/1.jpg", "train/1.jpg"], ["train/", "train/a/"], []),
        (["a/1.jpg", "val/1.jpg"], ["a/", "val/"], []),  # classes
        (["train/a/1.jpg", "train_old/a/1.jpg"], ["train/a/"], []),
        (["train/a/1.jpg", "seg_test/a/1.jpg"], ["train/a/"], ["seg_test/a/"]),
        (["steam_train/red/1.jpg", "bus/red/1.jpg"], ["bus/red/", "steam_train/red/"], []),  # classes
        (["a/1.jpg", "val/a/1.jpg", "test/a/1.jpg"], ["a/"], ["val/a/"]),
        (["train/1.jpg", "bus/1.jpg", "test/a/1.jpg"], ["bus/", "train/"], ["test/a/"]),  # classes
        (["images/train/1.jpg", "images/val/1.jpg"], ["images/train/"], ["images/val/"]),  # YOLO's
    ],
    ids=str,
)
def test_splits_are_folders_of_folders_or_beside_one_of_training_data(
    images: list[str], train: list[str], test: list[str]
) -> None:
    folders = sorted({image.rpartition("/")[0] + "/" for image in images})
    for split, expected in (("train", train), ("test", test)):
        used = of_split(places_of(folders), split, apart=False)
        assert [folder for folder, of in zip(folders, used, strict=True) if of] == expected


@pytest.mark.parametrize("folders", [["train/a/", "Training/a/", "val/a/"], ["x/train/a/", "y/train/a/"]])
def test_several_folders_of_training_data_are_refused(folders: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"by name: .*[Tt]rain.*: name one of them in data\.source\.path"):
        places_of(folders)


def test_several_folders_of_test_data_are_refused() -> None:
    places = places_of(["train/a/", "val/a/", "valid/a/"])
    assert of_split(places, "train", apart=False) == [True, False, False]
    with pytest.raises(ConfigError, match=r"test data, by name: val, valid: name one .* in data\.source\.test_path"):
        of_split(places, "test", apart=False)


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


# ---- splits by the words in names ----

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
    names = {"train": "train", "Training": "train", "val2017": "val", "test_set": "test", "Valid": "val"}
    assert {name: whole_split(name) for name in names} == names
    assert not any(map(whole_split, ["seg_train", "train_old", "bus", "2017", "train_test"]))


@pytest.mark.parametrize(
    ("names", "train", "test", "unused"),
    [
        ([*TRAIN, *VAL, *TEST, *UNSAID], TRAIN, VAL, [*TEST, *UNSAID]),
        ([*TRAIN, *TEST], TRAIN, TEST, []),
        ([*UNSAID, *TEST], UNSAID, TEST, []),
        (UNSAID, UNSAID, [], []),
        (VAL, [], VAL, []),
        ([], [], [], []),
    ],
)
def test_names_of_a_folder_are_split(names: list[str], train: list[str], test: list[str], unused: list[str]) -> None:
    found = BySplit.of(names)
    assert (found.training(False), found.testing(False)) == (sorted(train), sorted(test))
    assert sorted(found.unused()) == sorted(unused)


def test_a_folder_of_its_own_is_used_whatever_its_names_say() -> None:
    for names in (VAL, UNSAID, TRAIN, ["train-or-test.csv"]):
        assert BySplit.of(names).training(True) == BySplit.of(names).testing(True) == sorted(names)
    both = BySplit.of([*TRAIN, *VAL, *UNSAID])
    assert (both.training(True), both.testing(True)) == (sorted(TRAIN), sorted(VAL))


def test_names_of_two_splits_are_refused_with_the_keys_that_decide() -> None:
    found = BySplit.of(["a-train-test-0.csv", "a-train-val-0.csv"])
    message = r"a-train-test-0.csv, a-train-val-0.csv may be .* in data\.source\.path and data\.source\.test_path"
    for choose in (found.training, found.testing):
        with pytest.raises(ConfigError, match=message):
            choose(False)
