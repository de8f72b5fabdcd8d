"""The same labels in a CSV, TSV, JSON lines, Parquet, tar shards or memory: equal classes and numbers, or refused."""

import csv
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.support.routes import tar_bytes
from tfpipe.config import Columns, DataConfig, make_config
from tfpipe.data.sources.catalogs import catalog_of, classes_of
from tfpipe.data.sources.packed.webdataset import scan_tar
from tfpipe.data.sources.rows import Rows
from tfpipe.data.sources.tables.columns import read_rows
from tfpipe.data.sources.tables.memory import KIND, InMemory, in_memory
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger

Read = Callable[[Path, Sequence[Any], DataConfig], Rows]
Outcome = tuple[tuple[str, ...], list[int], list[tuple[int, int]]]


def cell(value: Any) -> str:
    """The text of a value in a CSV or a .cls."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def delimited(folder: Path, values: Sequence[Any], config: DataConfig, ending: str) -> Rows:
    with (folder / f"t.{ending}").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, delimiter="\t" if ending == "tsv" else ",")
        rows.writerows([("path", "label"), *((f"{number}.jpg", cell(value)) for number, value in enumerate(values))])
    return table(folder / f"t.{ending}", config)


def lines(folder: Path, values: Sequence[Any], config: DataConfig) -> Rows:
    rows = [{"path": f"{number}.jpg", "label": value} for number, value in enumerate(values)]
    (folder / "t.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return table(folder / "t.jsonl", config)


def parquet(folder: Path, values: Sequence[Any], config: DataConfig, texts: bool = False) -> Rows:
    labels = pa.array([cell(value) for value in values]) if texts else pa.array(values)
    pq.write_table(pa.table({"path": paths(values), "label": labels}), folder / "t.parquet")
    return table(folder / "t.parquet", config)


def shard(folder: Path, values: Sequence[Any], config: DataConfig, ending: str) -> Rows:
    members: dict[str, bytes] = {}
    for number, value in enumerate(values):
        note = cell(value) if ending == "cls" else json.dumps({"label": value})
        members |= {f"{number}.jpg": b"x", f"{number}.{ending}": note.encode()}
    path = folder / "t.tar"
    path.write_bytes(tar_bytes(members))
    return scan_tar(path, path.stat().st_size, Columns(), Ledger())


def memory(folder: Path, values: Sequence[Any], config: DataConfig, form: str) -> Rows:
    data: Any = list(zip(paths(values), values, strict=True))
    if form == "DataFrame":
        data = pd.DataFrame({"path": paths(values), "label": values})
    elif form == "table":
        data = pa.table({"path": paths(values), "label": pa.array(values)})
    source = InMemory(config, in_memory(data, None, {})[0])
    return source.rows([Path(source.display_name)], False, "train")


def table(path: Path, config: DataConfig) -> Rows:
    return read_rows([path], Columns(), False, config)


def paths(values: Sequence[Any]) -> list[str]:
    return [f"{number}.jpg" for number in range(len(values))]


FORMS: dict[str, Read] = {
    "csv": partial(delimited, ending="csv"),
    "tsv": partial(delimited, ending="tsv"),
    "jsonl": lines,
    "parquet": parquet,
    "parquet of texts": partial(parquet, texts=True),
    "tar, cls": partial(shard, ending="cls"),
    "tar, json": partial(shard, ending="json"),
    **{f"memory, {form}": partial(memory, form=form) for form in ("list", "DataFrame", "table")},
}


def outcomes(folder: Path, values: Sequence[Any], targets: str = "label") -> dict[str, Outcome | str]:
    """The classes, the images' numbers, and those of lists of labels; or the message of the refusal."""
    found: dict[str, Outcome | str] = {}
    for form, read in FORMS.items():
        kind = {"source": {"kind": KIND}, "targets": targets}
        config = make_config({"data": kind}).data
        try:
            rows = read(folder, values, config)
            classes = classes_of(config, rows, "the data")
            catalog = catalog_of(config, "train", rows, classes, "the data")
            labels, boxes = catalog.labels, catalog.boxes
            pairs = list(zip(boxes.images.tolist(), boxes.labels.tolist(), strict=True)) if targets == "labels" else []
            found[form] = classes.names, labels.tolist(), pairs
        except (ConfigError, ValueError) as error:  # a scan's is reported as an error of its shard
            found[form] = str(error)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            assert form in ("parquet", "memory, table"), f"Arrow cannot hold these values: {error}"
            found[form] = str(error)
    return found


TEXTS = ["cat", " cat", "\ufeffcat", "cat\t", "Cat", "10.0", "10", " 1", "1", "1.0", "-0", "0", "007", "true", "", " "]
TEXTS += ["2024-01-01", "0.50", "1e1", "nan", "null", "a,b", 'a "b"', str(2**53 + 1)]
NUMBERS = [True, None, 10.0, 10, 1, 0, -0.0, 0.5, 1e-7, 1e16, 2.0**53, 2**53 + 1, 2**63, -1]


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(TEXTS),
            st.sampled_from(NUMBERS),
            st.text(max_size=4),
            st.integers(-3, 30),
            st.floats(allow_nan=False, allow_infinity=False),
        ),
        min_size=1,
        max_size=4,
    )
)
@example([2**53 + 1, 0.5])
@example(["2024-01-01", "2024-01-02"])
@example([2**63, 0.5])
def test_every_form_gives_the_same_classes_and_numbers(tmp_path_factory: pytest.TempPathFactory, values: list) -> None:
    # Arrow makes a 1.0 of a True next to floats, before they are a table.
    assume(not {bool, float} <= set(map(type, values)))
    found = outcomes(tmp_path_factory.getbasetemp(), values)
    accepted = {form: outcome for form, outcome in found.items() if not isinstance(outcome, str)}
    assert len(set(map(repr, accepted.values()))) <= 1, accepted


@pytest.mark.parametrize(
    ("values", "classes", "labels"),
    [
        (["cat", " cat", "\ufeffcat", "cat\t ", "dog"], ["cat", "dog"], [0, 0, 0, 0, 1]),
        ([10.0, 2.0], list(map(str, range(11))), [10, 2]),
        (["10.0", "2"], list(map(str, range(11))), [10, 2]),
        (["1", " 1", "0"], ["0", "1"], [1, 1, 0]),
        ([-0.0, 1.0], ["0", "1"], [0, 1]),
        ([True, False], ["false", "true"], [1, 0]),
        ([0.5, 1.0], ["0.5", "1"], [0, 1]),
        (["007", "7"], ["007", "7"], [0, 1]),
        (["2024-01-02", "2024-01-01"], ["2024-01-01", "2024-01-02"], [1, 0]),
    ],
    ids=str,
)
def test_every_form_accepts_these(tmp_path: Path, values: list, classes: list[str], labels: list[int]) -> None:
    expected = tuple(classes), labels, []
    assert outcomes(tmp_path, values) == dict.fromkeys(FORMS, expected)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([2**53 + 1, 0], "would make 9,007,199,254,740,994 classes, as ids do|is no class|have no class"),
        (["cat", None], "have no class"),
        (["cat", " \ufeff"], "have no class"),
        ([-1, 1], 'the label "-1"; class numbers count from 0'),
    ],
    ids=str,
)
def test_every_form_refuses_these(tmp_path: Path, values: list, problem: str) -> None:
    for form, message in outcomes(tmp_path, values).items():
        assert isinstance(message, str) and any(part in message for part in problem.split("|")), (form, message)


LISTS = ("jsonl", "parquet", "tar, json", "memory, list", "memory, DataFrame", "memory, table")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([["cat", " dog"], [], ["dog"]], (("cat", "dog"), [-1, -1, -1], [(0, 0), (0, 1), (2, 1)])),
        ([[2.0, 0.0], [1.0]], (("0", "1", "2"), [-1, -1], [(0, 2), (0, 0), (1, 1)])),
        ([["cat", None], ["dog"]], None),
        ([["cat", " "], ["dog"]], None),
    ],
    ids=str,
)
def test_lists_of_labels_are_the_same_in_every_form(tmp_path: Path, values: list, expected: Outcome | None) -> None:
    found = outcomes(tmp_path, values, "labels")
    for form in LISTS:
        outcome = found[form]
        if expected is not None:
            assert outcome == expected, form
        else:
            assert isinstance(outcome, str) and "a list of labels, none" in outcome, (form, outcome)
