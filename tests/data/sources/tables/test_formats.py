"""Tables of each format, by the end of their names; and files that are none."""

import gzip
import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.flaky import fail_once
from tests.support.routes import samples, write_arrow
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.registry import load_split
from tfpipe.data.sources.tables import formats
from tfpipe.data.sources.tables.formats import holds_bytes, read_table
from tfpipe.errors import ConfigError

ROWS = [{"path": "a.jpg", "label": "007"}, {"path": "b.jpg", "label": "07"}]
TEXTS = {
    "csv": "path,label\na.jpg,007\nb.jpg,07\n",
    "tsv": "path\tlabel\na.jpg\t007\nb.jpg\t07\n",
    "jsonl": "".join(f"{json.dumps(row)}\n" for row in ROWS),
}


def catalog_of(path: Path, split: str = "train") -> Catalog:
    return load_split(
        make_config({"data": {"source": {"kind": "table", "path": str(path)}}}).data, split, World()
    ).catalog


def write(path: Path) -> Path:
    """Writes ROWS in the format of a name."""
    ending = path.suffix.lower()[1:]
    if ending in ("parquet", "pq"):
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif ending in ("arrow", "feather"):
        with pa.ipc.new_file(str(path), pa.Table.from_pylist(ROWS).schema) as writer:
            writer.write_table(pa.Table.from_pylist(ROWS))
    else:
        path.write_text(TEXTS["jsonl" if ending == "ndjson" else ending])
    return path


@pytest.mark.parametrize(
    "ending", ["csv", "CSV", "tsv", "TSV", "jsonl", "ndjson", "parquet", "Parquet", "pq", "arrow", "ARROW", "feather"]
)
@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_a_table_is_read_by_the_end_of_its_name(tmp_path: Path, ending: str, folder: bool) -> None:
    path = write(tmp_path / f"train.{ending}")
    write(tmp_path / f"test.{ending}")
    catalog = catalog_of(tmp_path if folder else path)
    assert list(catalog.paths) == [f"{tmp_path}/a.jpg", f"{tmp_path}/b.jpg"]
    assert (catalog.classes, catalog.labels.tolist()) == (("007", "07"), [0, 1])
    if folder:
        assert len(catalog_of(tmp_path, "test")) == 2


@pytest.mark.parametrize(
    ("ending", "owner", "name"),
    [
        ("csv", formats.csv, "read_csv"),
        ("jsonl", formats.pyarrow.json, "read_json"),
        ("parquet", formats.pq, "ParquetFile"),
        ("arrow", formats, "open_arrow"),
    ],
)
def test_a_read_is_tried_again_after_an_error_that_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ending: str, owner, name: str
) -> None:
    path = write(tmp_path / f"a.{ending}")
    pauses = fail_once(monkeypatch, owner, name)
    assert read_table(path, ["label"]).to_pylist() == ROWS
    assert pauses == [1]
    assert f"{path}" in caplog.text and "Input/output error" in caplog.text


@pytest.mark.parametrize(
    ("ending", "owner", "name"), [("parquet", formats.pq, "ParquetFile"), ("arrow", formats, "open_arrow")]
)
def test_so_is_the_search_for_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, owner, name: str
) -> None:
    path = write(tmp_path / f"a.{ending}")
    pauses = fail_once(monkeypatch, owner, name)
    assert holds_bytes(path, "path") is False
    assert pauses == [1]


def test_notes_beside_a_table_are_no_table(tmp_path: Path) -> None:
    write(tmp_path / "birds.csv")
    (tmp_path / "notes.tsv").write_text("who\twhen\n")
    assert len(catalog_of(tmp_path)) == 2
    write(tmp_path / "train.tsv")
    (tmp_path / "birds.csv").write_text("no,table\n")
    assert len(catalog_of(tmp_path)) == 2


@pytest.mark.parametrize("name", ["t.xlsx", "t.csv.gz", "t.zip", "t.json", "t"])
def test_another_end_is_refused_with_what_is_accepted(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError) as caught:
        catalog_of(tmp_path / name)
    assert (
        f'{tmp_path / name}: received a table that ends with "{(tmp_path / name).suffix}"; accepted: .csv, .tsv'
        in str(caught.value)
    )


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_an_archive_is_called_one(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t.{ending}"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("t.csv", TEXTS["csv"])
    for read in (catalog_of, lambda path: read_table(path, [])):
        with pytest.raises(ConfigError, match=rf"cannot read .*/t\.{ending}: it is a zip archive .*: unpack it first"):
            read(path)
    path.write_bytes(gzip.compress(TEXTS["csv"].encode()))
    with pytest.raises(ConfigError, match=r"it is compressed by gzip: unpack it first"):
        catalog_of(path)


def test_a_format_under_the_name_of_another_is_called_what_it_is(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet").rename(tmp_path / "t.csv")
    with pytest.raises(ConfigError, match=r"t\.csv: it is a Parquet file"):
        catalog_of(tmp_path / "t.csv")


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_line_that_is_not_utf8_is_named(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"t.{ending}").write_bytes(TEXTS[ending].replace("b.jpg", "é.jpg").encode("latin-1"))
    with pytest.raises(ConfigError, match=r"line \d is not UTF-8: received b'.*\\xe9\.jpg.*'; save the file in UTF-8"):
        catalog_of(tmp_path / f"t.{ending}")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label,label\na.jpg,x,y\n")
    with pytest.raises(ConfigError, match=r't\.csv has several columns "label": rename them'):
        catalog_of(tmp_path / "t.csv")


def test_a_stream_that_was_cut_off_after_a_batch_is_no_shorter_table(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "t.arrow", samples(12), stream=True)
    whole = path.read_bytes()
    assert len(catalog_of(path)) == 12
    path.write_bytes(whole[:-8])
    with pytest.raises(ConfigError, match=r"t\.arrow: the stream ends without its end mark: it was cut off"):
        catalog_of(path)
    write_arrow(path, samples(12))
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ConfigError, match=r"t\.arrow: the file ends without its footer: it was cut off"):
        catalog_of(path)


def test_a_column_of_bytes_that_are_null_holds_none(tmp_path: Path) -> None:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    for bytes_of_b, holds in ((None, False), (b"x", True)):
        images = pa.array([{"bytes": None, "path": "a.jpg"}, {"bytes": bytes_of_b, "path": "b.jpg"}], kind)
        pq.write_table(pa.table({"image": images, "label": ["x", "y"]}), tmp_path / "t.parquet")
        assert holds_bytes(tmp_path / "t.parquet", "image") is holds
        assert not holds_bytes(tmp_path / "t.parquet", "other")
        if not holds:
            assert list(catalog_of(tmp_path / "t.parquet").paths) == [f"{tmp_path}/a.jpg", f"{tmp_path}/b.jpg"]
    with pytest.raises(
        ConfigError, match=r't\.parquet: row 0 has no bytes in the column "image": a table holds the byt'
    ):
        catalog_of(tmp_path / "t.parquet")


def test_a_shard_without_rows_is_no_other_kind_of_table(tmp_path: Path) -> None:
    for number, images in enumerate(([b"x"], [])):
        rows = {"image": pa.array(images, pa.binary()), "label": pa.array(["x"] * len(images), pa.string())}
        pq.write_table(pa.table(rows), tmp_path / f"train-{number}.parquet", write_statistics=number > 0)
        with pa.ipc.new_file(str(tmp_path / f"{number}.arrow"), pa.table(rows).schema) as writer:
            writer.write_table(pa.table(rows))
        assert holds_bytes(tmp_path / f"train-{number}.parquet", "image")
        assert holds_bytes(tmp_path / f"{number}.arrow", "image") and not holds_bytes(tmp_path / f"{number}.arrow", "y")
    assert len(catalog_of(tmp_path)) == 1


def test_tables_with_images_and_with_paths_do_not_mix(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [b"x"], "label": ["x"]}), tmp_path / "train-0.parquet")
    pq.write_table(pa.table({"image": ["a.jpg"], "label": ["y"]}), tmp_path / "train-1.parquet")
    message = r'train-0\.parquet holds images in the column "image", and .*train-1\.parquet does not'
    with pytest.raises(ConfigError, match=message):
        catalog_of(tmp_path)


def test_dates_in_json_are_texts(tmp_path: Path) -> None:
    """As in a CSV: JSON has no dates, and a name may look like one."""
    rows = [{"path": "a", "label": "2024-01-02", "more": {"days": ["2024-01-03T04:05:06Z"]}, "id": 7}]
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    days = {"more.days": rows[0].pop("more")["days"]}
    assert read_table(tmp_path / "t.jsonl", []).to_pylist() == [rows[0] | days]
    assert catalog_of(tmp_path / "t.jsonl").classes == ("2024-01-02",)
