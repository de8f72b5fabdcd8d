"""Columns that come with each crop: exact, or refused by the row."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError

BIG = 2**53 + 1


def value_of(folder: Path, *files: Any, **data: Any) -> Any:
    """The column "id" of tables with these values, one a file."""
    for number, ids in enumerate(files):
        rows = {"path": [f"{number}-{row}" for row in range(len(ids))], "label": [0] * len(ids), "id": ids}
        pq.write_table(pa.table(rows), folder / f"train-{number}.parquet")
    source = {"kind": "table", "path": str(folder), "columns": {"extra": ["id"]}}
    return load_split(make_config({"data": {"source": source, **data}}).data, "train", World()).catalog.values["id"]


@pytest.mark.parametrize("ids", [[BIG, -BIG], [2**63 - 1, 0], [[BIG, 1], [2, 3]]], ids=str)
def test_whole_numbers_are_exact(tmp_path: Path, ids: list) -> None:
    values = value_of(tmp_path, ids)
    assert values.dtype == np.int64 and values.tolist() == ids


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (
            [pa.array([1, 2**63], pa.uint64())],
            r"row 1 of .*: received 9223372036854775808 .*; accepted: whole numbers bel",
        ),
        (
            [[2**24 + 1, None]],
            r"row 0 of .*: received 16777217 in the column \"id\"; accepted: whole numbers up to 2\^24",
        ),
        ([[2.0**24 + 1, float("nan")]], r"row 0 of .*: received 16777217\.0 .*accepted: whole numbers up to 2\^24"),
        (
            [[3, 2**24 + 1], [0.5]],
            r'row 1 of .*train-0\.parquet, .* has 16777217 as "id"; accepted: whole numbers up to',
        ),
        ([[3], ["three"]], r'the column of "id" has numbers in .*train-0\.parquet, and texts in .*train-1\.parquet'),
        ([[[1, 2]], [[1, 2, 3]]], r"has lists of 2 numbers in .*train-0\.parquet, and lists of 3 numbers in .*-1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_be_another_number_is_refused(tmp_path: Path, files: list, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        value_of(tmp_path, *files)


def test_whole_numbers_are_floats_next_to_floats(tmp_path: Path) -> None:
    values = value_of(tmp_path, [3, 4], [0.5, float("nan")])
    assert values.dtype == np.float32 and values.tolist()[:3] == [3, 4, 0.5] and np.isnan(values[3])
    (tmp_path / "more").mkdir()
    assert value_of(tmp_path / "more", [1e9 + 0.5, 1.6e9]).tolist() == [1e9, 1.6e9]


def test_a_number_to_learn_may_be_large(tmp_path: Path) -> None:
    rows = {"path": ["a", "b"], "label": [BIG, 1]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    data = {"source": {"kind": "table", "path": str(tmp_path / "t.parquet")}, "targets": "number"}
    values = load_split(make_config({"data": data}).data, "train", World()).catalog.values["number"]
    assert values.tolist() == [2.0**53, 1]
