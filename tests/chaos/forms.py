"""The data of a random run, in each form that a source reads."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import routes
from tests.support.packs import LOOSE, packed
from tests.support.routes import Sample, samples
from tests.support.sample import SampleData
from tfpipe import load_config

PACKED = ("original", "crops", "raw")
SPLITS = {"train": 48, "test": 12}


def _folders(root: Path, _: str) -> dict[str, Any]:
    return {"kind": "folders", "path": str(root / "train/images"), "test_path": str(root / "test/images")}


def _table(path: str, write: Callable[[Path, str, list[Sample]], object]) -> Callable[[Path, str], dict[str, Any]]:
    """Writes a table of each split, called `path` with the split for its *."""

    def form(root: Path, url: str) -> dict[str, Any]:
        for split, count in SPLITS.items():
            write(root / path.replace("*", split), url, samples(count))
        return {
            "kind": "coco" if path.endswith("json") else "table",
            "path": str(root / path.replace("*", "train")),
            "test_path": str(root / path.replace("*", "test")),
        }

    return form


def _coco(root: Path, url: str) -> dict[str, Any]:
    source = _table("*.json", lambda path, _, chosen: routes.write_coco(path, chosen))(root, url)
    return {**source, "images": str(root / "train/images"), "test_images": str(root / "test/images")}


def _shards(kind: str, write: Callable[[Path, list[Sample]], object]) -> Callable[[Path, str], dict[str, Any]]:
    def form(root: Path, _: str) -> dict[str, Any]:
        for split, count in SPLITS.items():
            write(root / split / "shards", samples(count))
        return {"kind": kind, "path": str(root / "train/shards"), "test_path": str(root / "test/shards")}

    return form


def _tars_of_urls(root: Path, url: str) -> dict[str, Any]:
    source = _shards("webdataset", routes.write_tars)(root, url)
    paths = {key: Path(source[key]).relative_to(root) for key in ("path", "test_path")}
    return {**source, **{key: f"{url}/{path}/train-{{0000..0002}}.tar" for key, path in paths.items()}}


# Of the pictures that `samples` draws: the kind of source with its paths, by the form's name.
FORMS: dict[str, Callable[[Path, str], dict[str, Any]]] = {
    "folders": _folders,
    "csv": _table("*.csv", lambda path, _, chosen: routes.write_csv(path, chosen, path.with_suffix("") / "images")),
    "parquet": _table("*.parquet", lambda path, _, chosen: routes.write_parquet(path, chosen)),
    "coco": _coco,
    "tar": _shards("webdataset", routes.write_tars),
    "tar with xml": _shards("webdataset", lambda folder, chosen: routes.write_tars(folder, chosen, notes="xml")),
    "tfrecord": _shards("tfrecord", routes.write_tfrecords),
    "url": _table("*.csv", lambda path, url, chosen: routes.write_csv(path, chosen, f"{url}/{path.stem}/images")),
    "tar at url": _tars_of_urls,
}
SERVED = ("url", "tar at url")


def write_data(form: str, sample: SampleData, folder: Path, url: str) -> dict[str, Any]:
    """Writes the data into `folder`, or copies those of `sample`; returns the keys of the `data` section for it.

    A file that has a URL is `folder`/tree at `url`. Packs of the sample are made once, next to it.
    """
    tree = folder / "tree"
    if form in FORMS:
        for split, count in SPLITS.items():
            routes.write_files(tree / split, samples(count))
        data: dict[str, Any] = {**LOOSE, "source": FORMS[form](tree, url), "index": str(folder / "indexes")}
        data |= {"label_source": "object"} if form == "coco" else {}
        return data | ({"remote": {"retries": 5, "timeout_s": 5}} if form in SERVED else {})
    if form in PACKED:
        pack = sample.root.parent / f"packed-{form}"
        if not pack.exists():
            packed(load_config(sample.config(sample.root.parent / "pack.json")), pack, form, shards=3)
        shutil.copytree(pack, folder / "packed")
        return {**LOOSE, "source": {"kind": "packed", "path": "packed"}}
    shutil.copytree(sample.root, tree)
    for split, path in (("train", sample.train), ("val", sample.val)):
        (folder / f"{split}.txt").write_text(path.read_text().replace(str(sample.root), str(tree)))
    return {"train_filelist": "train.txt", "test_filelist": "val.txt", "index": "indexes"}
