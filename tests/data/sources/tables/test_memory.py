"""Data in memory: what would change or split it is done, or refused, never left without effect."""

import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from tests.support.routes import CLASSES, samples, write_files
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.loader import Loader
from tfpipe.data.sources.described import config_of_data
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError

SAMPLES = samples(36)
OPTIONS = list(inspect.signature(Loader).parameters)


def split_of(data: Any, split: str = "train", **keys: Any) -> Split:
    config, opened = config_of_data(data, split, keys, OPTIONS)
    return load_split(config.data, split, World(), opened)


def known(split: Split) -> list[tuple[bytes, str]]:
    names = split.catalog.classes
    return [(split.image(item), names[label]) for item, label in enumerate(split.catalog.labels)]


FORMS = {
    "list": lambda frame, path: [*frame[["path", "label"]].itertuples(index=False, name=None)],
    "DataFrame": lambda frame, path: frame[["path", "label"]],
    "bytes": lambda frame, path: frame,
    "t.csv": lambda frame, path: frame[["path", "label"]].to_csv(path, index=False) or path,
    "t.parquet": lambda frame, path: frame.to_parquet(path) or path,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_share_is_that_of_class_folders(tmp_path: Path, form: str) -> None:
    """The same images of each class, trained or tested, in the order of the data."""
    root = write_files(tmp_path, SAMPLES)
    order = SAMPLES[::-1]
    paths = [f"{sample.label}/{sample.name}.jpg" for sample in order]
    columns = {"path": paths, "label": [sample.label for sample in order], "image": [sample.file for sample in order]}
    data = FORMS[form](pd.DataFrame(columns), tmp_path / form)
    share: dict[str, Any] = {"test_share": 0.3, "test_seed": 5}
    for split in ("train", "test"):
        found = split_of(data, split, images=root, crop="full", **share)
        expected = split_of(root, split, crop="full", **share)
        assert sorted(known(found)) == sorted(known(expected))
        assert [row[0] for row in known(found)] == [one.file for one in order if one.file in dict(known(expected))]
        assert found.catalog.classes == CLASSES
    assert known(split_of(data, "test", images=root, **{**share, "test_seed": 6})) != known(found)


def test_a_share_keeps_rows_weights_and_boxes_with_their_images(tmp_path: Path) -> None:
    rows = [(f"{number}.jpg", number % 2, [[number / 100, 0.0, 1.0, 1.0]], 1.0 + number) for number in range(40)]
    data = pd.DataFrame(rows, columns=["path", "label", "boxes", "weight"])
    seen = []
    for split in ("train", "test"):
        catalog = split_of(data, split, test_share=0.25, columns={"weight": "weight", "extra": ["weight"]}).catalog
        numbers = [int(path.rpartition("/")[2][:-4]) for path in catalog.paths]
        assert catalog.labels.tolist() == [number % 2 for number in numbers]
        assert catalog.values["weight"].tolist() == [1 + number for number in numbers]
        if split == "train":
            assert catalog.weights.tolist() == [1 + number for number in numbers]
            assert [round(100 * edge) for edge in catalog.boxes.boxes[:, 1]] == numbers
        seen += numbers
    assert sorted(seen) == list(range(40)) and len(numbers) == 10
    data.loc[39, "label"] = None
    kept = {int(path.rpartition("/")[2][:-4]) for path in catalog.paths}
    with pytest.raises(ConfigError, match=r"row 39 of the DataFrame, .*39\.jpg has no label"):
        split_of(data, "test" if 39 in kept else "train", test_share=0.25, columns={"weight": "weight"})


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            {"test_path": "val.csv"},
            r'test_path: received "val\.csv", and the data are in memory: load the test data by',
        ),
        ({"args": {"a": 1}}, "args: are for kinds of your own, and the data are in memory"),
        ({"test_share": 0.1}, r"test_share: 0\.1 of each class of the list is less than one image"),
    ],
)
def test_a_key_that_would_have_no_effect_is_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        split_of([("a.jpg", "cat"), ("b.jpg", "dog")], "test", classes=["cat", "dog"], **keys)


class Stored:
    """What a Dataset of Hugging Face has, as far as it is read."""

    column_names = ("path", "label")
    features: Mapping[str, Any] = {}

    def __init__(self, **form: Any) -> None:
        self.format = {"type": None, "columns": ["path", "label"], "format_kwargs": {}, **form}
        self.data = type("Data", (), {"table": pa.table({"path": ["a"], "label": ["cat"]})})()

    def __len__(self) -> int:
        return 1


Stored.__module__ = "datasets.arrow_dataset"


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        (
            {"type": "custom", "format_kwargs": {"transform": len}},
            r'the dataset has the format "custom", by set_format',
        ),
        ({"type": "numpy"}, r'has the format "numpy", .*give dataset\.with_format\(None\)'),
        ({"columns": ["path"]}, r"with the columns path alone, .* choose columns by select_columns"),
    ],
    ids=str,
)
def test_a_format_that_would_be_ignored_is_refused(form: dict[str, Any], problem: str) -> None:
    assert split_of(Stored()).catalog.classes == ("cat",)
    with pytest.raises(ConfigError, match=problem):
        split_of(Stored(**form))


@pytest.mark.full("make test installs no datasets; a stand-in has the same format")
@pytest.mark.parametrize("form", ["transform", "format", "columns"])
def test_so_is_that_of_a_dataset(form: str) -> None:
    import datasets

    data = datasets.Dataset.from_dict({"path": ["a"], "label": ["cat"]})
    assert split_of(data).catalog.classes == ("cat",)
    change = {
        "transform": partial(data.with_transform, len),
        "format": partial(data.with_format, "numpy"),
        "columns": partial(data.with_format, columns=["path"]),
    }[form]
    with pytest.raises(ConfigError, match="has the format"):
        split_of(change())


def test_test_data_and_a_share_contradict_each_other() -> None:
    both = hugging_face("train", "test")
    assert len(split_of(both, "test").catalog) == 1
    with pytest.raises(ConfigError, match=r'test_share: the dataset "test" is the test data: leave test_share out'):
        split_of(both, "test", test_share=0.5)


def hugging_face(*splits: str) -> Any:
    data = {name: Stored() for name in splits}
    return type("DatasetDict", (dict,), {"__module__": "datasets.dataset_dict"})(data)


def test_rows_of_further_splits_are_counted() -> None:
    data = hugging_face("train", "validation", "test", "unsupervised")
    train, test = (split_of(data, split).catalog for split in ("train", "test"))
    assert sorted(train.ledger.texts) == [
        'rows of the split "test" (1, e.g. row 0 of test)',
        'rows of the split "unsupervised" (1, e.g. row 0 of unsupervised)',
    ]
    assert (len(train), len(test), test.ledger.texts) == (1, 1, [])


@pytest.mark.parametrize(
    ("splits", "names", "kind"),
    [
        (("train_clean", "train_noisy"), "train_clean, train_noisy", "training"),
        (("train", "few_shot_train", "test"), "few_shot_train, train", "training"),
        (("a", "b"), "a, b", "training"),
        (("train", "validation_matched", "validation_mismatched"), "validation_matched, validation_mis", "test"),
    ],
)
def test_several_splits_of_one_kind_are_refused_with_their_names(splits: tuple, names: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"the DatasetDict has the splits .*, and {names}.* may be the {kind} data"):
        split_of(hugging_face(*splits))


def test_a_config_of_data_in_memory_needs_them_again() -> None:
    source = {"kind": "tfpipe.data.sources.tables.memory:InMemory"}
    with pytest.raises(ConfigError, match="the data of this config were in memory"):
        load_split(make_config({"data": {"source": source}}).data, "train", World())
