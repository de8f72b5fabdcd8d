"""The rows of a table that `data.source.where` names: they alone are read, and the others are counted."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.support.routes import SMALL, samples, write_files
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.catalog.entries import entries_name
from tfpipe.data.contract import contract_differences, data_contract
from tfpipe.data.sources.described import config_of_data
from tfpipe.data.sources.packed.manifest import about_of
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError

SAMPLES = samples(12)
TYPES = {"text": ["a", "b", "007", ""], "whole": [1, 2, 300], "real": [0.5, 1.0, 2.0], "truth": [True, False]}
FORMATS = ("csv", "jsonl", "parquet", "arrow")


def split_of(
    path: Path, where: dict[str, Any], split: str = "train", classes: list[str] | None = None, **source: Any
) -> Split:
    about = {"kind": "table", "path": str(path), "where": where, **source}
    return load_split(make_config({"data": {**SMALL, "classes": classes, "source": about}}).data, split, World())


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    table = pa.table(columns)
    if path.suffix == ".csv":
        table.to_pandas().to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    elif path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=3)
    else:
        feather.write_feather(table, path, compression="uncompressed")
    return path


ROWS = st.lists(st.tuples(*(st.sampled_from([None, *values]) for values in TYPES.values())), min_size=2, max_size=12)
WHERE = st.fixed_dictionaries(
    {}, optional={name: st.lists(st.sampled_from(v), min_size=1, max_size=2, unique=True) for name, v in TYPES.items()}
)


@given(ROWS, WHERE, st.sampled_from(FORMATS), st.booleans())
def test_the_rows_that_have_the_values_are_used_and_the_others_counted(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]], where: dict, form: str, alone: bool
) -> None:
    # A value of each type, by which it is known of a CSV, in which an empty cell is an empty text.
    rows = [tuple(values[0] for values in TYPES.values()), *rows]
    if form == "csv":
        rows = [(text or "", *others) for text, *others in rows]
    columns = {name: [row[number] for row in rows] for number, name in enumerate(TYPES)}
    labels = ["x", "y", *["x"] * len(rows)][: len(rows)]
    root = tmp_path_factory.mktemp("where")
    path = write(root / f"t.{form}", {"path": [f"{n}.jpg" for n in range(len(rows))], "label": labels, **columns})
    asked = {name: values[0] if alone else values for name, values in where.items()}
    wanted = {name: values[:1] if alone else values for name, values in where.items()}
    used = [
        number
        for number, row in enumerate(rows)
        if all(value in wanted.get(name, [value]) for name, value in zip(TYPES, row, strict=True))
    ]
    if not used:
        with pytest.raises(ConfigError, match=r"has no row that data.source.where leaves: not used are rows whose"):
            split_of(path, asked)
        return
    catalog = split_of(path, asked).catalog
    assert [name.rpartition("/")[2] for name in catalog.paths] == [f"{number}.jpg" for number in used]
    assert [catalog.classes[label] for label in catalog.labels] == [labels[number] for number in used]
    assert sum(count for count, _ in catalog.ledger.counts.values()) == len(rows) - len(used)


def by_split(values: list[Any]) -> st.SearchStrategy[Any]:
    some = st.one_of(st.sampled_from(values), st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True))
    return st.one_of(some, st.fixed_dictionaries({"train": some, "test": some}))


def fits(row: tuple[Any, ...], where: dict[str, Any], split: str) -> bool:
    wanted = {name: values[split] if isinstance(values, dict) else values for name, values in where.items()}
    lists = {name: values if isinstance(values, list) else [values] for name, values in wanted.items()}
    return all(value in lists.get(name, [value]) for name, value in zip(TYPES, row, strict=True))


@given(
    ROWS,
    st.fixed_dictionaries({}, optional={name: by_split(values) for name, values in TYPES.items()}),
    st.sampled_from(FORMATS),
)
@example(  # rows with a value of each split
    [("a", 2, 1.0, True), ("b", 2, 1.0, True), ("b", 1, 1.0, True)],
    {"text": {"train": "a", "test": "b"}, "whole": {"train": 1, "test": 2}},
    "parquet",
)
def test_each_row_is_of_one_split_or_counted_or_the_splits_are_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]], where: dict[str, Any], form: str
) -> None:
    assume(any(isinstance(values, dict) for values in where.values()))
    rows = [tuple(values[0] for values in TYPES.values()), *rows]
    if form == "csv":
        rows = [(text or "", *others) for text, *others in rows]
    columns = {name: [row[number] for row in rows] for number, name in enumerate(TYPES)}
    names = {"path": [f"{number}.jpg" for number in range(len(rows))], "label": ["x"] * len(rows)}
    path = write(tmp_path_factory.mktemp("where") / f"t.{form}", {**names, **columns})
    used = {
        split: [number for number, row in enumerate(rows) if fits(row, where, split)] for split in ("train", "test")
    }
    refused = r"of the others; accepted: values that no row" if {*used["train"]} & {*used["test"]} else ""
    if all(values["train"] == values["test"] for values in where.values() if isinstance(values, dict)):
        refused = "the same for training and test data"
    found = {}
    for split, numbers in used.items():
        if refused or not numbers:
            with pytest.raises(ConfigError, match=refused or f"has no row that .* leaves to the {split} data"):
                split_of(path, where, split, classes=["x"])
            continue
        found[split] = split_of(path, where, split, classes=["x"]).catalog
        assert [int(name.rpartition("/")[2][:-4]) for name in found[split].paths] == numbers
    if len(found) == 2:
        left_out = sum(count for count, _ in found["train"].ledger.counts.values())
        assert not found["test"].ledger
        assert len(used["train"]) + len(used["test"]) + left_out == len(rows)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_each_row_that_is_used_has_its_own_image(tmp_path: Path, form: str) -> None:
    for part, chosen in enumerate([SAMPLES[:7], SAMPLES[7:9], SAMPLES[9:]]):
        columns = {"image": [s.file for s in chosen], "label": [s.label for s in chosen]}
        folds = [2] * 2 if part == 1 else [number % 2 for number in range(len(chosen))]
        write(tmp_path / f"train-{part}.{form}", {**columns, "fold": folds})
    split = split_of(tmp_path, {"fold": 1})
    used = [1, 3, 5, 10]
    assert [split.image(item) for item in range(len(split.catalog))] == [SAMPLES[number].file for number in used]
    assert [*split.catalog.paths] == ["train-0:1", "train-0:3", "train-0:5", "train-2:1"]
    assert split.catalog.ledger.texts == [f'rows whose "fold" is not 1 (8, e.g. row 0 of {tmp_path}/train-0.{form}, 0)']


def table_of(root: Path, **columns: list[Any]) -> Path:
    images = write_files(root, SAMPLES)
    paths = [f"{images}/{sample.label}/{sample.name}.jpg" for sample in SAMPLES]
    return write(root / "t.parquet", {"path": paths, "label": [sample.label for sample in SAMPLES], **columns})


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"fold": 0}, r't\.parquet has no column "fold", but path, label, .*: correct data\.source\.where'),
        ({"n": "1"}, r'names "1" of the column "n", which has other values, of the type int64: 0, 1, 2, 3, 4 \.\.\.;'),
        ({"n": True}, r'names true of the column "n"'),
        ({"text": 1}, r'names 1 of the column "text", which has other values, of the type string: "a", "b"; name some'),
        ({"text": ["a", 1.5]}, r'names 1\.5 of the column "text"'),
        ({"flag": 1}, r'names 1 of the column "flag", which has other values, of the type bool: true, false;'),
        ({"lists": 1}, r'names 1 of the column "lists", which has other values, of the type list<.*>: \[1\]'),
        (
            {"text": "c"},
            r'no row that .* leaves: not used are rows whose "text" is not "c" \(12, e\.g\. row 0 of .*, "a"',
        ),
        ({"text": []}, r"data\.source\.where: received \[\]; accepted: .* or a list of values, not empty"),
        ({"text": None}, r"data\.source\.where: received null; accepted: "),
    ],
)
def test_what_no_row_can_have_is_refused_with_what_the_column_has(tmp_path: Path, where: dict, message: str) -> None:
    half = ["a", "b"] * 6
    path = table_of(tmp_path, n=list(range(12)), text=half, flag=[True, False] * 6, lists=[[1]] * 12)
    with pytest.raises(ConfigError, match=message):
        split_of(path, where)


def test_the_rows_of_test_data_are_chosen_alike_and_messages_name_rows_of_the_file(tmp_path: Path) -> None:
    good = [number > 3 for number in range(12)]
    path = table_of(tmp_path, good=good, name=[*map(str, range(11)), ""])
    split = split_of(path, {"good": True}, "test", test_path=str(path))
    assert len(split.catalog) == 8 and set(split.catalog.paths) == set([*split_of(path, {}).catalog.paths][4:])
    with pytest.raises(ConfigError, match=r"row 11 of .*t\.parquet: received an empty cell"):
        split_of(path, {"good": True}, columns={"path": "name"})


def test_one_row_a_box_and_data_in_memory(tmp_path: Path) -> None:
    rows = {"path": ["a", "a", "b", "c"], "label": ["x", "y", "y", "x"], "sure": [1, 0, 1, 0]}
    edges = {edge: [2.0] * 4 if "min" in edge else [8.0] * 4 for edge in ("xmin", "ymin", "xmax", "ymax")}
    frame = pd.DataFrame({**rows, **edges, "width": 32, "height": 24})
    config, opened = config_of_data(frame, "train", {"where": {"sure": 1}}, [])
    catalog = load_split(config.data, "train", World(), opened).catalog
    assert [Path(name).name for name in catalog.paths] == ["a", "b"] and len(catalog.boxes.labels) == 2
    assert catalog.ledger.texts == ['rows whose "sure" is not 1 (2, e.g. row 1 of the DataFrame, 0)']
    frame = pd.DataFrame({"image": [sample.file for sample in SAMPLES], "label": [s.label for s in SAMPLES]})
    config, opened = config_of_data(frame.assign(n=range(12)), "train", {"where": {"n": [3, 8]}}, [])
    split = load_split(config.data, "train", World(), opened)
    assert [split.image(item) for item in (0, 1)] == [SAMPLES[3].file, SAMPLES[8].file]


def test_what_is_made_of_some_rows_is_told_from_what_is_made_of_others(tmp_path: Path) -> None:
    """Two folds with the same names, labels and number of images."""
    half = SAMPLES[::2]
    images = [{"bytes": sample.file, "path": f"{number % 6}.jpg"} for number, sample in enumerate([*half, *half[::-1]])]
    columns = {"image": images, "label": ["x", "y"] * 6, "fold": [0] * 6 + [1] * 6}
    path = write(tmp_path / "t.parquet", columns)
    one, other, all_rows = (split_of(path, {"fold": fold}) for fold in (0, 1, [0, 1]))
    assert [*one.catalog.paths] == [*other.catalog.paths]
    assert contract_differences(data_contract(one), data_contract(other)) == [
        'data.source.where: {"fold": 0} then, {"fold": 1} now'
    ]
    assert about_of(one, "original", None) != about_of(other, "original", None)
    assert entries_name(one.catalog) != entries_name(all_rows.catalog)
    with pytest.raises(ConfigError, match=r"data\.source\.where\.fold: 0 there, 1 here"):
        one.adapt(other.config, World())


def test_a_column_tells_the_splits_of_a_file_and_of_data_in_memory(tmp_path: Path) -> None:
    path = table_of(tmp_path, part=["train", "val", "extra"] * 4)
    where = {"part": {"train": "train", "test": ["val", "dev"]}}
    names = [*split_of(path, {}).catalog.paths]
    train, test = (split_of(path, where, split).catalog for split in ("train", "test"))
    assert [*train.paths] == names[::3] and [*test.paths] == names[1::3] and train.classes == test.classes
    assert train.ledger.texts == [
        f'rows whose "part" is not "train" or "val" or "dev" (4, e.g. row 2 of {path}, "extra")'
    ]
    assert not test.ledger
    frame = pd.read_parquet(path)
    for split, wanted in (("train", train), ("test", test)):
        config, opened = config_of_data(frame, split, {"where": where}, [])
        assert [*load_split(config.data, split, World(), opened).catalog.paths] == [*wanted.paths]
    # Test data of another file has rows of its own.
    frame.assign(part=["val", "train", "train"] * 4).to_parquet(tmp_path / "t_val.parquet")
    assert [*split_of(tmp_path, where, "test").catalog.paths] == names[::3]
    with pytest.raises(ConfigError, match=r"row 0 of .*t\.parquet: data\.source\.where .* leaves it, and so does"):
        split_of(path, {"part": {"train": ["train", "val"], "test": ["val", "train"]}})


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["train", "val", "no"])), min_size=1, max_size=8),
    st.sampled_from(["path", "image"]),
    st.sampled_from(["", "./", " "]),
)
def test_an_image_with_rows_of_both_splits_is_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], column: str, before: str
) -> None:
    """As a split at random of a table with a row a box gives them: training would see the test data."""
    rows = [("x", "train"), ("y", "val"), *rows]
    names, parts = map(list, zip(*rows, strict=True))
    edges = {edge: [1.0 if "min" in edge else 8.0] * len(rows) for edge in ("xmin", "ymin", "xmax", "ymax")}
    # The same path may be written in several ways.
    spelt = [f"{before if number % 2 else ''}{name}" for number, name in enumerate(names)]
    columns = {column: spelt, "label": ["x"] * len(rows), "width": [9] * len(rows), "height": [9] * len(rows), **edges}
    path = write(tmp_path_factory.mktemp("both") / "t.csv", {**columns, "part": parts})
    used = {split: {name for name, part in rows if part == split} for split in ("train", "val")}
    where = {"part": {"train": "train", "test": "val"}}
    for split, images in (("train", used["train"]), ("test", used["val"])):
        if used["train"] & used["val"]:
            with pytest.raises(ConfigError, match=r"has rows of both splits, by data\.source\.where"):
                split_of(path, where, split, classes=["x"])
        else:
            paths = split_of(path, where, split, classes=["x"]).catalog.paths
            assert {name.rpartition("/")[2] for name in paths} == images


def test_a_run_resumes_on_the_training_rows_whatever_is_tested(tmp_path: Path) -> None:
    path = table_of(tmp_path, fold=[0, 1, 2] * 4)
    one, other = (split_of(path, {"fold": {"train": 0, "test": test}}) for test in (1, 2))
    assert data_contract(one) == data_contract(other)
