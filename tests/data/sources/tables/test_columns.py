"""The columns of tables: every form is read right, or refused with its row, what was received and what is accepted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.images import encoded, picture
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError

FILE = encoded(picture(24, 32))


def catalog_of(path: Path, columns: dict[str, str] | None = None, **data: object) -> Catalog:
    source = {"kind": "table", "path": str(path), "columns": columns or {}}
    return load_split(make_config({"data": {"source": source, **data}}).data, "train", World()).catalog


def write(path: Path, rows: dict[str, Any], features: dict[str, Any] | None = None) -> Path:
    table = pa.table(rows)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path)
    return path


CATEGORY = {"names": ["cat", "dog"], "_type": "ClassLabel"}
STRUCT = {"bbox": pa.list_(pa.float32(), 4), "category": pa.int64()}


@pytest.mark.parametrize(
    ("kind", "rows", "feature"),
    [
        (
            pa.list_(pa.struct(STRUCT)),
            [[{"bbox": [8, 6, 16, 24], "category": 1}], [], None],
            {"feature": {"bbox": {}, "category": CATEGORY}, "_type": "List"},
        ),
        (
            pa.large_list(pa.struct(STRUCT)),
            [[{"bbox": [8, 6, 16, 24], "category": 1}], [], None],
            [{"bbox": {}, "category": CATEGORY}],
        ),
        (
            pa.struct({name: pa.list_(kind) for name, kind in STRUCT.items()}),
            [{"bbox": [[8, 6, 16, 24]], "category": [1]}, {"bbox": [], "category": []}, None],
            {"feature": {"bbox": {}, "category": CATEGORY}, "_type": "Sequence"},
        ),
    ],
    ids=["list of structs", "large list, older schema", "struct of lists"],
)
@pytest.mark.parametrize("by_object", [True, False])
def test_objects_are_read_as_datasets_writes_them(
    tmp_path: Path, kind: pa.DataType, rows: list[Any], feature: Any, by_object: bool
) -> None:
    """The objects' ClassLabel is another one than the images'."""
    labels = {"names": ["dog", "mouse"], "_type": "ClassLabel"}
    columns = {
        "path": list("abc"), "label": [0, 1, 1], "width": [32] * 3, "height": [24] * 3, "objects": pa.array(rows, kind)
    }  # fmt: skip
    path = write(tmp_path / "t.parquet", columns, {"label": labels, "objects": feature})
    names = {"boxes": "objects.bbox", "box_labels": "objects.category"}
    catalog = catalog_of(path, names, **({"label_source": "object"} if by_object else {}))
    assert catalog.annotated.tolist() == [True, False, False]
    assert np.allclose(catalog.boxes.boxes[0], [0.25, 0.25, 1, 0.5])
    if by_object:
        assert (catalog.classes, catalog.boxes.labels.tolist()) == (("cat", "dog"), [1])
    else:
        assert (catalog.classes, catalog.labels.tolist()) == (("dog", "mouse"), [0, 1, 1])


def test_a_list_of_four_numbers_is_one_box(tmp_path: Path) -> None:
    rows = {"path": list("abc"), "label": list("xyz"), "boxes": [[0.25, 0.5, 0.75, 1.0], [], None]}
    catalog = catalog_of(write(tmp_path / "t.parquet", rows))
    assert np.allclose(catalog.boxes.boxes, [[0.5, 0.25, 1, 0.75], [0, 0, 1, 1], [0, 0, 1, 1]])
    assert catalog.annotated.tolist() == [True, False, False]


GOOD = [[0.0, 0.0, 0.5, 0.5]]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ({"boxes": [[0.0, 0.0, 0.5, 0.5], [0.1, 0.2, 0.3]]}, r"received \[0\.1, 0\.2, 0\.3\] in the column \"boxes\""),
        (
            {"boxes": [GOOD, [[0.1, 0.2, 0.3], [0.1] * 5]]},
            r"received \[\[0\.1, 0\.2, 0\.3\], .* accepted: a list of boxes",
        ),
        ({"boxes": [GOOD, [[0.1, 0.2, 0.3, None]]]}, r"received \[\[0\.1, 0\.2, 0\.3, null\]\] .* accepted: a list"),
        ({"boxes": [GOOD, [[0.1, 0.2, 0.3, float("nan")]]]}, r"received \[\[0\.1, 0\.2, 0\.3, NaN\]\]"),
        ({"boxes": [GOOD, [None]]}, r"received \[null\] in the column \"boxes\""),
        (
            {"boxes": [GOOD, GOOD], "box_labels": [["x"], ["x", "y"]]},
            r'received \["x", "y"\] in the column "box_labels"; accepted: one label for each box, of 1',
        ),
        ({"boxes": [GOOD, GOOD], "width": ["32", "big"], "height": [24, 24]}, r'received "big" in the column "width"'),
        ({"path": ["a", None]}, r'received an empty cell in the column "path"; accepted: the path of an image'),
        (
            {"path": ["a", "b\nc"]},
            r'received "b\\nc" in the column "path"; accepted: the path of an image, on one line',
        ),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_used_is_named_with_its_row(tmp_path: Path, rows: dict, problem: str) -> None:
    path = write(tmp_path / "t.parquet", {"path": ["a", "b"], "label": ["x", "y"], **rows})
    with pytest.raises(ConfigError, match=rf"row 1 of .*t\.parquet: {problem}"):
        catalog_of(path)


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ("1,2,x,4", r'received "x" in the column "xmax"; accepted: a number, or an empty cell'),
        (
            "1,,3,4",
            r'received an empty cell in the column "ymin"; accepted: a number; only a row without a box has none',
        ),
    ],
)
def test_a_row_with_half_a_box_is_named(tmp_path: Path, cells: str, problem: str) -> None:
    (tmp_path / "t.csv").write_text(
        f"path,label,width,height,xmin,ymin,xmax,ymax\na,x,32,24,1,2,3,4\nb,y,32,24,{cells}\n"
    )
    with pytest.raises(ConfigError, match=rf"row 1 of .*t\.csv: {problem}"):
        catalog_of(tmp_path / "t.csv")


def test_a_row_is_that_of_its_own_file(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", {"path": ["a", "b"], "label": ["x", "y"]})
    write(tmp_path / "train-1.parquet", {"path": ["c", "d"], "label": ["x", None]})
    with pytest.raises(ConfigError, match=r"e\.g\. row 1 of .*train-1\.parquet, .*/d has no label"):
        catalog_of(tmp_path)


def test_files_may_state_the_same_in_other_types(tmp_path: Path) -> None:
    """The second file's ClassLabel has another order: names count, not numbers."""
    for number, names in enumerate((["cat", "dog"], ["dog", "cat"])):
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        write(tmp_path / f"train-{number}.parquet", {"path": [f"{number}a", f"{number}b"], "label": [0, 1]}, features)
    assert catalog_of(tmp_path).labels.tolist() == [0, 1, 1, 0]
    write(tmp_path / "train-1.parquet", {"path": ["c"], "label": pa.array(["dog"]).dictionary_encode()})
    assert catalog_of(tmp_path).labels.tolist() == [0, 1, 1]


def test_a_label_that_is_missing_among_floats_is_named(tmp_path: Path) -> None:
    """Pandas makes floats of a column with a missing value."""
    rows = {"path": list("abc"), "label": pa.array([2.0, float("nan"), 1.0])}
    with pytest.raises(ConfigError, match=r"row 1 of .*/b has no label"):
        catalog_of(write(tmp_path / "t.parquet", rows))


@pytest.mark.parametrize("stored", [False, True], ids=["paths", "bytes"])
@pytest.mark.parametrize("missing", [None, 0.0, float("nan")], ids=str)
def test_the_size_that_a_row_lacks_is_the_images(tmp_path: Path, stored: bool, missing: float | None) -> None:
    (tmp_path / "b.jpg").write_bytes(FILE)
    image = {"image": [FILE, FILE, FILE]} if stored else {"path": ["nowhere.jpg", "b.jpg", "nowhere.jpg"]}
    rows = {
        **image,
        "label": ["x", "y", "x"],
        "boxes": [[[8.0, 6.0, 16.0, 24.0]], [[8.0, 6.0, 16.0, 24.0]], []],
        "width": pa.array([32.0, missing, missing]),
        "height": pa.array([24.0, missing, 24.0]),
    }
    catalog = catalog_of(write(tmp_path / "t.parquet", rows))
    assert np.allclose(catalog.boxes.boxes, [[0.25, 0.25, 1, 0.5], [0.25, 0.25, 1, 0.5], [0, 0, 1, 1]])


def test_a_size_that_cannot_be_read_is_named_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(FILE)
    rows = {"path": ["a.jpg", "b.jpg"], "label": ["x", "y"], "boxes": [[[8.0, 6.0, 16.0, 24.0]]] * 2}
    path = write(tmp_path / "t.parquet", {**rows, "width": pa.nulls(2), "height": pa.nulls(2)})
    with pytest.raises(
        ConfigError, match=r"row 1 of .*, .*/b\.jpg has boxes in pixels but no width and height, and its"
    ):
        catalog_of(path)


def test_further_columns_of_a_row_a_box_are_those_of_the_image(tmp_path: Path) -> None:
    edges = "0,0,0.5,0.5"
    rows = [f"a,x,{edges},5,left", f"a,x,{edges},5,left", f"b,y,{edges},6,up", f"c,x,{edges},7,down"]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["path,label,xmin,ymin,xmax,ymax,id,side", *rows]))
    source = {"kind": "table", "path": str(tmp_path / "t.csv"), "columns": {"extra": ["id", "side"]}}
    values = load_split(make_config({"data": {"source": source}}).data, "train", World()).catalog.values
    side = values["side"]
    assert values["id"].tolist() == [5, 6, 7] and bytes(side.text) == b"left\nup\ndown\n"
    table.write_text(table.read_text().replace("left", "right", 1))
    with pytest.raises(ConfigError, match=r"row 1 of .*, a has another side than row 0 of .*, a: the rows"):
        load_split(make_config({"data": {"source": source}}).data, "train", World())


def test_boxes_in_pixels_need_no_columns_of_sizes(tmp_path: Path) -> None:
    """The images have them; a file that states them and one that does not go together."""
    for name in "ab":
        (tmp_path / f"{name}.jpg").write_bytes(FILE)
    for number, sizes in enumerate(({}, {"width": [64], "height": [48]})):
        rows = {"path": ["ab"[number] + ".jpg"], "label": ["x"], "boxes": [[[8.0, 6.0, 16.0, 24.0]]]}
        write(tmp_path / f"train-{number}.parquet", {**rows, **sizes})
    catalog = catalog_of(tmp_path)
    assert np.allclose(catalog.boxes.boxes, [[0.25, 0.25, 1, 0.5], [0.125, 0.125, 0.5, 0.25]])


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string_view()], ids=str)
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_labels_and_paths_may_be_bytes_or_views(tmp_path: Path, kind: pa.DataType, ending: str) -> None:
    columns = {"path": ["a", "é"], "label": ["cat", "dög"]}
    table = pa.table({name: pa.array(values).cast(kind) for name, values in columns.items()})
    path = tmp_path / f"t.{ending}"
    if ending == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    catalog = catalog_of(path)
    assert (catalog.classes, list(catalog.paths)) == (("cat", "dög"), [f"{tmp_path}/a", f"{tmp_path}/é"])


@pytest.mark.parametrize("name", ["path", "label"])
def test_bytes_that_are_no_text_are_named_with_their_row(tmp_path: Path, name: str) -> None:
    rows = {"path": ["a", "b"], "label": ["cat", "dog"], name: [b"a", b"\xff\xd8"]}
    with pytest.raises(
        ConfigError, match=rf'row 1 of .*t\.parquet: received .* in the column "{name}"; accepted: .*UTF-8'
    ):
        catalog_of(write(tmp_path / "t.parquet", rows))


def test_categories_of_polars_are_names(tmp_path: Path) -> None:
    """Dictionaries of views, which Arrow does not cast."""
    categories = pa.DictionaryArray.from_arrays(
        pa.array([1, 0, 1], pa.uint32()), pa.array(["x", "y"], pa.string_view())
    )
    with pa.ipc.new_file(
        str(tmp_path / "t.arrow"), pa.schema([("path", pa.string()), ("label", categories.type)])
    ) as out:
        out.write_table(pa.table({"path": list("abc"), "label": categories}))
    catalog = catalog_of(tmp_path / "t.arrow")
    assert (catalog.classes, catalog.labels.tolist()) == (("x", "y"), [1, 0, 1])


@pytest.mark.parametrize("value", [2.0**53, float("inf")])
def test_a_float_that_stands_for_several_numbers_is_named(tmp_path: Path, value: float) -> None:
    rows = {"path": ["a", "b"], "label": [1.0, value]}
    with pytest.raises(ConfigError, match=r'row 1 of .* in the column "label"; accepted: .* a float below 2\^53'):
        catalog_of(write(tmp_path / "t.parquet", rows))


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.decimal128(21, 2), pa.int8()], ids=str)
def test_numbers_of_any_type_are_class_numbers(tmp_path: Path, kind: pa.DataType) -> None:
    rows = {"path": list("abc"), "label": pa.array([2, 0, 1]).cast(kind)}
    assert catalog_of(write(tmp_path / "t.parquet", rows)).labels.tolist() == [2, 0, 1]


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=1, max_size=5),
    st.sampled_from(["int64", "float32", "bool", "string"]),
)
def test_a_row_of_zeros_and_ones_names_no_classes(
    tmp_path_factory: pytest.TempPathFactory, hot: list[list[int]], kind: str
) -> None:
    """As scikit-learn's MultiLabelBinarizer writes labels: read as names they would be classes 0 and 1."""
    numbers = np.array(hot).astype(kind if kind != "string" else str).tolist()
    rows = {"path": [f"{number}.jpg" for number in range(len(hot))], "label": numbers}
    path = write(tmp_path_factory.mktemp("hot") / "t.parquet", rows)
    if len({*np.ravel(hot)}) == 2:
        with pytest.raises(ConfigError, match=r"each list of labels has 3 numbers, 0 or 1, .* accepted: lists of the"):
            catalog_of(path, targets="labels", classes=["0", "1", "2"])
    if kind in ("int64", "float32"):
        assert len(catalog_of(path, targets="number", annotations="none")) == len(hot)
    sets = {"path": ["a.jpg", "b.jpg", "c.jpg"], "label": [[0, 1], [1, 0], [0, 1]]}
    catalog = catalog_of(write(path, sets), targets="labels", classes=["0", "1", "2"])
    assert np.bincount(catalog.boxes.labels).tolist() == [3, 3]


@pytest.mark.parametrize("keys", [{"targets": "labels"}, {"share": 0.5}], ids=str)
def test_rows_of_one_image_state_the_same_labels(tmp_path: Path, keys: dict[str, Any]) -> None:
    """One row a label would say that an image lacks the others, and its rows may be of both splits."""
    source = {"test_share": keys["share"]} if "share" in keys else {}
    data = {name: value for name, value in keys.items() if name != "share"}
    rows = [("a.jpg", "beach"), ("b.jpg", "dog"), ("a.jpg", "beach"), ("c.jpg", "beach"), ("d.jpg", "dog")]
    for last, said in (
        (("b.jpg", "dog"), ""),
        (("a.jpg", "dog"), r"row 5 of .*, a\.jpg has other labels than row 0 of"),
    ):
        names, labels = map(list, zip(*rows, last, strict=True))
        path = write(tmp_path / "t.parquet", {"path": names, "label": labels})
        about = {"kind": "table", "path": str(path), **source}
        config = make_config({"data": {"source": about, "crop": "full", "test_crop": "full", **data}}).data
        if said:
            with pytest.raises(ConfigError, match=said):
                load_split(config, "train", World())
        else:
            assert len(load_split(config, "train", World()).catalog) > 0


@pytest.mark.parametrize("turned", [False, True])
def test_tables_with_a_row_a_box_stand_beside_no_others(tmp_path: Path, turned: bool) -> None:
    edges = "xmin,ymin,xmax,ymax"
    texts = [f"path,label,{edges}\na.jpg,x,0,0,.5,.5\n", "path,label\nb.jpg,y\n"]
    for number, text in enumerate(reversed(texts) if turned else texts):
        (tmp_path / f"train_{number}.csv").write_text(text)
    with pytest.raises(ConfigError, match=r"train_0\.csv and .*train_1\.csv: one has a row a box"):
        catalog_of(tmp_path)


def test_a_row_of_bytes_has_the_box_of_its_columns(tmp_path: Path) -> None:
    """Each row is an image of its own, also if names are the same."""
    edges = {"xmin": [0.0, 0.25, None], "ymin": [0.0, 0.0, None], "xmax": [0.5, 1.0, None], "ymax": [0.5, 1.0, None]}
    rows = {"image": [{"bytes": FILE, "path": "a.jpg"}] * 3, "label": ["x", "y", "x"], **edges}
    catalog = catalog_of(write(tmp_path / "t.parquet", rows))
    assert catalog.annotated.tolist() == [True, True, False] and [*catalog.labels] == [0, 1, 0]
    assert catalog.boxes.images.tolist() == [0, 1, 2]
    assert catalog.boxes.boxes.tolist() == [[0, 0, 0.5, 0.5], [0, 0.25, 1, 1], [0, 0, 1, 1]]
