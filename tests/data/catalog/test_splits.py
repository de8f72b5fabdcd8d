"""Splits by the words in names: the names that data sets have, in any case, and nothing within another word."""

import pytest

from tfpipe.data.catalog.splits import BySplit, splits_in, whole_split
from tfpipe.errors import ConfigError

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
