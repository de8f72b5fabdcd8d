"""Tables as a source: the samples are those of the same files and XMLs, and what a table lacks is named."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.routes import CLASSES, SMALL, samples, write_files, write_parquet
from tfpipe import Config, World
from tfpipe.cli import main
from tfpipe.config import make_config
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError

SAMPLES = samples(12)


def config_of(source: dict, **data: object) -> Config:
    return make_config({"data": {**SMALL, "source": {"kind": "table", **source}, **data}})


def split_of(source: dict, split: str = "train", world: World = World(), **data: object) -> Split:
    return load_split(config_of(source, **data).data, split, world)


def catalog_of(source: dict, split: str = "train", **data: object) -> Catalog:
    return split_of(source, split, **data).catalog


def test_a_split_is_the_files_that_begin_with_its_name(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-00000-of-00002.parquet", SAMPLES[:7])
    write_parquet(tmp_path / "train-00001-of-00002.parquet", SAMPLES[7:])
    write_parquet(tmp_path / "test-00000-of-00001.parquet", SAMPLES[:5])
    for _ in range(2):  # the second time from the copies
        train, test = (split_of({"path": str(tmp_path)}, split) for split in ("train", "test"))
        assert [train.image(item) for item in range(12)] == [sample.file for sample in SAMPLES]
        assert (len(train.catalog), len(test.catalog), train.catalog.classes) == (12, 5, CLASSES)
    alone = open_source(config_of({"path": str(tmp_path / "test-00000-of-00001.parquet")}).data)
    assert not alone.has_test()
    alone.check(test=True)


@pytest.mark.parametrize("form", ["xyxy", "xywh", "yxyx"])
@pytest.mark.parametrize("relative", [False, True])
def test_boxes_are_read_in_each_format(tmp_path: Path, form: str, relative: bool) -> None:
    box = {"xyxy": [4, 6, 20, 12], "xywh": [4, 6, 16, 6], "yxyx": [6, 4, 12, 20]}[form]
    scale = {"xyxy": [32, 24], "xywh": [32, 24], "yxyx": [24, 32]}[form] * 2 if relative else [1] * 4
    rows = {
        "path": ["a.jpg", "b.jpg"],
        "label": ["x", "y"],
        "objects": [{"bbox": [np.divide(box, scale)]}, {"bbox": []}],
    }
    sizes = {} if relative else {"width": [32, 32], "height": [24, 24]}
    pq.write_table(pa.table({**rows, **sizes}), tmp_path / "t.parquet")
    columns = {"boxes": "objects.bbox", "box_format": form}
    catalog = catalog_of({"path": str(tmp_path / "t.parquet"), "columns": columns})
    assert np.allclose(catalog.boxes.boxes, [[6 / 24, 4 / 32, 12 / 24, 20 / 32], [0, 0, 1, 1]])
    assert catalog.annotated.tolist() == [True, False]


def test_objects_may_have_the_labels(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "path,label,xmin,ymin,xmax,ymax\na.jpg,dog,0,0,0.5,1\nb.jpg,cat,,,,\na.jpg,cat,0.5,0,1,1\n"
    )
    with pytest.raises(
        ConfigError, match=r'1 of 2 images have no class, e\.g\. .*a\.jpg has .*label_source to "object"'
    ):
        catalog_of({"path": str(tmp_path / "t.csv")})
    catalog = catalog_of({"path": str(tmp_path / "t.csv")}, label_source="object")
    assert catalog.classes == ("cat", "dog")
    assert [list(column) for column in (catalog.boxes.images, catalog.boxes.labels)] == [[0, 0], [1, 0]]


@pytest.mark.parametrize(
    ("rows", "source", "problem"),
    [
        ({"file": ["a"], "label": ["x"]}, {}, r'no column "path", but file, label: set data\.source\.columns\.path'),
        ({"path": ["a"], "y": ["x"]}, {"columns": {"label": "z"}}, r'no column "z", .* data\.source\.columns\.label'),
        ({"path": ["a"], "y": ["x"]}, {}, r"has no labels: set data\.source\.columns\.label"),
        ({"path": ["a"], "label": ["x"], "boxes": ["1 2 3 4"]}, {}, "must hold lists of boxes; received string"),
        (
            {"path": ["a"], "label": ["x"], "boxes": [[["x"] * 4]]},
            {},
            r'row 0 of .*: received "x" in the column "boxes"; accep',
        ),
        ({"path": [], "label": []}, {}, "has no row"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, rows: dict, source: dict, problem: str) -> None:
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=problem):
        catalog_of({"path": str(tmp_path / "t.parquet"), **source})


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no train table in .*nowhere.csv; expected a file, or a folder of them"):
        catalog_of({"path": str(tmp_path / "nowhere.csv")})
    (tmp_path / "t.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(ConfigError, match=r"cannot read .*t\.parquet"):
        catalog_of({"path": str(tmp_path / "t.parquet")})


def test_commands_work_with_bytes_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_parquet(tmp_path / "t.parquet", [*SAMPLES[:-1], SAMPLES[-1]._replace(file=SAMPLES[-1].file[:700])])
    data = {**SMALL, "source": {"kind": "table", "path": "t.parquet"}}
    (tmp_path / "c.json").write_text(json.dumps({"data": data}))
    config = str(tmp_path / "c.json")
    assert main(["check", "-c", config]) == 1
    assert "Premature end of JPEG file" in capsys.readouterr().out
    assert main(["pack", "-c", config, "--out", str(tmp_path / "out"), "--kind", "crops"]) == 2
    assert "of 011.jpg" in capsys.readouterr().err


def test_ids_become_paths_by_a_format(tmp_path: Path) -> None:
    """As those of Open Images and of Kaggle, without a folder and an ending; also with one row a box."""
    write_files(tmp_path, SAMPLES)
    lines = ["ImageID,LabelName,xmin,ymin,xmax,ymax,width,height"]
    lines += [f"{one.name},{one.label},1,2,9,9,32,24\n{one.name},{one.label},3,4,9,9,32,24" for one in SAMPLES[:4]]
    (tmp_path / "train-boxes.csv").write_text("\n".join(lines))
    source = {"path": str(tmp_path / "train-boxes.csv"), "columns": {"path": "ImageID", "label": "LabelName"}}
    source["columns"]["path_format"] = "images/bird/{}.jpg"
    split = split_of(source)
    assert [split.image(item) for item in range(4)] == [one.file for one in SAMPLES[:4]]
    assert len(split.catalog.boxes.boxes) == 8
    write_parquet(tmp_path / "t.parquet", SAMPLES)
    with pytest.raises(ConfigError, match=r't\.parquet: data\.source\.columns\.path_format.*"image" holds the images'):
        split_of({"path": str(tmp_path / "t.parquet"), "columns": {"path_format": "{}.jpg"}})
    for wrong in ("train", "{}/{}.jpg", "{id}.jpg"):
        with pytest.raises(ConfigError, match=r"columns\.path_format"):
            config_of({**source, "columns": {"path_format": wrong}})
    with pytest.raises(ConfigError, match=r"columns\.path_format .*: it is for table"):
        config_of({"kind": "webdataset", "path": str(tmp_path), "columns": {"path_format": "{}.jpg"}})


@pytest.mark.parametrize("endings", [("csv", "parquet"), ("jsonl", "tsv")])
def test_tables_of_several_formats_are_refused(tmp_path: Path, endings: tuple[str, str]) -> None:
    """Each image would come twice."""
    for ending in endings:
        text = {"csv": "path,label\na,x\n", "tsv": "path\tlabel\na\tx\n", "jsonl": '{"path": "a", "label": "x"}\n'}
        (tmp_path / f"train.{ending}").write_text(text.get(ending, ""))
    if "parquet" in endings:
        pq.write_table(pa.table({"path": ["a"], "label": ["x"]}), tmp_path / "train.parquet")
    one, other = (tmp_path / f"train.{ending}" for ending in endings)
    with pytest.raises(
        ConfigError, match=rf"{one} and {other} are tables of the train .* one of them in data\.source\.p"
    ):
        catalog_of({"path": str(tmp_path)})
    assert len(catalog_of({"path": str(one)})) == 1


def test_files_that_are_left_out_next_to_a_table_are_counted(tmp_path: Path) -> None:
    for name in ("train.csv", "train.tsv", "extra.csv"):
        (tmp_path / name).write_text("path,label\na,x\n")
    assert catalog_of({"path": str(tmp_path)}).ledger.texts == [
        f"files of no split (1, e.g. {tmp_path}/extra.csv)",
        "files that end in .tsv or .jsonl or .ndjson or .pq next to tables of another end "
        f"(1, e.g. {tmp_path}/train.tsv)",
    ]
