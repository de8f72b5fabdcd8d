"""The same pictures by every route: the same catalog, bytes and batches; a run resumes from one to the next."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.support.batches import crops_of
from tests.support.routes import (
    CLASSES,
    SMALL,
    Sample,
    samples,
    write_arrow,
    write_coco,
    write_csv,
    write_files,
    write_parquet,
    write_tars,
    write_tfrecords,
)  # fmt: skip
from tfpipe import Config, Loader, World
from tfpipe.config import make_config
from tfpipe.data.contract import contract_differences, data_contract
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.prepare.index import build_index
from tfpipe.prepare.pack import PackPlan, pack

SAMPLES = [sample for sample in samples(30) if sample.boxes]
ROUTES = ("filelist", "csv", "parquet", "arrow", "coco", "tar", "packed", "tfrecord", "folders")


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """The `data` section of each route."""
    root = tmp_path_factory.mktemp("routes")
    images = write_files(root, SAMPLES)
    paths = [f"{images}/{sample.label}/{sample.name}.jpg" for sample in SAMPLES]
    (root / "train.txt").write_text("".join(f"{path}\n" for path in paths))
    layout = {"images": "images", "annotations": "xmls"}
    listed = {**SMALL, "train_filelist": str(root / "train.txt"), "layout": layout}
    build_index(make_config({"data": listed}).data, "train", World(), 1)
    pack(make_config({"data": listed}).data, "train", root / "packed", PackPlan("original", 3), World())
    where = {
        "csv": ("table", write_csv(root / "t.csv", SAMPLES, images)),
        "parquet": ("table", write_parquet(root / "t.parquet", SAMPLES)),
        "arrow": ("table", write_arrow(root / "t.arrow", SAMPLES)),
        "coco": ("coco", write_coco(root / "instances.json", SAMPLES)),
        "tar": ("webdataset", write_tars(root / "tars", SAMPLES)),
        "packed": ("packed", root / "packed"),
        "tfrecord": ("tfrecord", write_tfrecords(root / "tfrecords", SAMPLES)),
        "folders": ("folders", images),
    }
    sources = {name: {"kind": kind, "path": str(path)} for name, (kind, path) in where.items()}
    sources["coco"]["images"] = str(images)
    return {"filelist": listed} | {name: {**SMALL, "source": source} for name, source in sources.items()}


def config_of(data: dict, **more: object) -> Config:
    return make_config({"data": {**data, **more}})


def split_of(config: Config) -> Split:
    return load_split(config.data, "train", World())


@pytest.mark.parametrize("route", ROUTES[1:-1])
def test_a_route_knows_the_same_samples(routes: dict[str, dict], route: str) -> None:
    listed, other = (config_of(routes[name], unit="box") for name in ("filelist", route))
    expected, split = split_of(listed), split_of(other)
    catalog = split.catalog
    assert catalog.classes == expected.catalog.classes == CLASSES
    assert np.array_equal(catalog.labels, expected.catalog.labels)
    assert all(np.array_equal(*pair) for pair in zip(catalog.boxes, expected.catalog.boxes, strict=True))
    assert [split.image(item) for item in range(len(catalog))] == [entry.file for entry in SAMPLES]
    assert contract_differences(data_contract(expected), data_contract(split)) == []


def crops_in(loader: Loader, batches: int) -> list[tuple]:
    return crops_of([part.numpy() for part in batch] for batch in islice(loader, batches))


@pytest.mark.parametrize(
    "names",
    [
        ("filelist", "parquet", "coco", "tar"),
        pytest.param(tuple(ROUTES), marks=pytest.mark.full("each route's samples are compared in make test")),
    ],
    ids=len,
)
def test_a_run_goes_on_from_route_to_route(routes: dict[str, dict], names: tuple[str, ...]) -> None:
    """Two batches from each, over more than an epoch; class folders have no boxes, so the crops are of the middle."""
    configs = [config_of(routes[name], crop="center") for name in names]
    with Loader(configs[0], "train", World(), positions=True) as loader:
        expected = crops_in(loader, 2 * len(names))
    state, seen = None, []
    for config in configs:
        with Loader(config, "train", World(), positions=True) as loader:
            if state is not None:
                loader.load_state_dict(state)
            seen += crops_in(loader, 2)
            state = json.loads(json.dumps(loader.state_dict()))
    assert seen == expected
    assert len({position for position, *_ in seen}) == len(seen) == 8 * len(names) > len(SAMPLES)


def changed(number: int, **values: object) -> list[Sample]:
    return [entry._replace(**values) if place == number else entry for place, entry in enumerate(SAMPLES)]


@pytest.mark.parametrize(
    ("others", "difference"),
    [
        (SAMPLES[::-1], "file names"),
        (changed(3, name="other"), "file names"),
        (changed(3, label="dog"), "labels"),
        (changed(3, boxes=[[1, 1, 9, 9]]), "boxes"),
        (SAMPLES[:-1], "images: 20 then, 19 now"),
    ],
)
def test_other_samples_are_refused(
    routes: dict[str, dict], tmp_path: Path, others: list[Sample], difference: str
) -> None:
    data = {**SMALL, "source": {"kind": "webdataset", "path": str(write_tars(tmp_path, others))}}
    then, now = (data_contract(split_of(config)) for config in map(config_of, (routes["tar"], data)))
    assert any(line.startswith(difference) for line in contract_differences(then, now))
