"""Recognises the kind of data at a path by looking: the keys of `data` that name it."""

import json
import os
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from tfpipe.config.section import literal, user_path
from tfpipe.data.annotations import yolo
from tfpipe.data.catalog.class_folders import SUFFIXES, has_image
from tfpipe.data.catalog.layout import LAYOUTS
from tfpipe.data.catalog.paths import fault, is_url
from tfpipe.data.catalog.splits import listing, splits_of
from tfpipe.data.sources.data_files import COMPRESSED, RECORDS
from tfpipe.data.sources.packed.manifest import PREFIX
from tfpipe.data.sources.packed.members import tar_members
from tfpipe.errors import ConfigError, counted
from tfpipe.util.files import near
from tfpipe.util.ledger import Ledger

ACCEPTED = (
    "accepted: a folder of class folders (CLASS/*.jpg, or train/CLASS/*.jpg and val/CLASS/*.jpg) or an archive of them "
    "(.tar, .zip), a filelist (.txt), a table (.csv, .tsv, .jsonl, .parquet, .arrow), COCO's instances .json, YOLO's "
    "data.yaml, tar shards (.tar), the output of `tfpipe pack`, ImageNet's TFRecords, or with kind= a kind of your own"
)
# Ends of the names of tables, as tables/formats.py has them, which takes pyarrow to import.
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq", ".arrow", ".feather")
ARCHIVES = (".tar", ".zip")
# Ends of the names of labels in tar shards.
LABELS = (".cls", ".json", ".txt")
# Members of a tar file that tell its kind.
LOOKED_AT = 64
# A larger JSON is no config.
MOST_CONFIG_BYTES = 1_000_000
# Folders of trees whose lists `tfpipe filelist` makes.
TREES = ("Data/CLS-LOC", "ILSVRC/Data/CLS-LOC", "JPEGImages", "VOCdevkit")


def recognize(path: str | os.PathLike[str], split: str, *, labelled: bool = False) -> dict[str, Any]:
    """Returns the keys of `data` that name the data at a path, or behind a URL.

    `split` is "train" or "test": a folder val next to train gives test data with the classes of train. `labelled` is
    whether a file has the labels, so that images need no class folders. Raises ConfigError if it is no data, or may be
    of two kinds; the message lists what was found.
    """
    if "\0" in os.fspath(path):
        raise ConfigError(f"the path {os.fspath(path)!a} {fault(os.fspath(path))}; {ACCEPTED}")
    try:
        path = user_path(path)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if isinstance(path, str) and is_url(path):
        kinds = {".tar": "webdataset", ".json": "coco", **dict.fromkeys(TABLES, "table")}
        kinds |= dict.fromkeys(RECORDS, "tfrecord")
        other = "tfrecord" if "-of-" in path.rpartition("/")[2] else "packed"
        return _source(kinds.get(os.path.splitext(path)[1].lower(), other), literal(path))
    if isinstance(path, str) and is_url(path.lower()):
        raise ConfigError(f"{path}: write the URL's scheme in small letters, {path.partition('://')[0].lower()}://")
    path = Path(path)
    if path.is_dir():
        return _folder(path, split, labelled)
    if not path.exists():
        raise ConfigError(f"there is no file or folder {path}{near(path)}; {ACCEPTED}")
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return _source("table", path)
    if suffix in (*ARCHIVES, *COMPRESSED):
        return _source(_kind_of_archive(path), path)
    if suffix == ".txt":
        return {"train_filelist": path}
    if suffix in yolo.SUFFIXES:
        return _yolo(path)
    if suffix == ".json":
        if _is_config(path):
            raise ConfigError(f'{path} is a config: use tfpipe.Loader(tfpipe.load_config("{path}"), "{split}")')
        return _source("coco", path)
    hint = f"; of TFRecords and packed data give the folder, {path.parent}" if "-of-" in path.name else ""
    if suffix in SUFFIXES:
        hint = "; this is a single image"
    raise ConfigError(f"{path} is no data that tfpipe knows by its name; {ACCEPTED}{hint}")


def _source(kind: str, path: str | Path) -> dict[str, Any]:
    return {"source": {"kind": kind, "path": path}}


def _yolo(path: Path) -> dict[str, Any]:
    """Returns the keys of the data that a data.yaml of YOLO's names."""
    train, test = (yolo.data_folder(path, split) for split in ("train", "test"))
    if train is None:
        raise ConfigError(f"{path} names no training data: accepted: YOLO's data.yaml, with the keys train and names")
    keys = {"train_filelist": train, "layout": "yolo", "classes": yolo.class_names(path), "label_source": "object"}
    return keys | ({"test_filelist": test} if test else {})


def _is_config(path: Path) -> bool:
    try:
        content = json.loads(path.read_bytes()) if path.stat().st_size <= MOST_CONFIG_BYTES else None
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "data" in content and "images" not in content


def _folder(path: Path, split: str, labelled: bool) -> dict[str, Any]:
    try:
        names = sorted(name for name in os.listdir(path) if name[0] != ".")
        folders = [name for name in names if (path / name).is_dir()]
        # Only up to the first: a thousand ranks may look at a thousand folders.
        classes = folders if any(has_image(path / name) for name in folders) else []
    except OSError as error:
        raise ConfigError(f"cannot list {error.filename or path}: {error.strerror}") from error
    files = [name for name in names if name not in folders]
    if "data.yaml" in files and {"names", "train"} <= yolo.read_description(path / "data.yaml").keys():
        return _yolo(path / "data.yaml")
    records = [name for name in files if ("-of-" in name and not name.endswith(TABLES)) or name.endswith(RECORDS)]
    if records and any(f"{prefix}.json" in files for prefix in PREFIX.values()):
        return _source("packed", path)
    archives = _ending(files, *ARCHIVES)
    by_kind = {
        "tfrecord": records,
        **({_kind_of_archive(path / archives[0]): archives} if archives else {}),
        "table": [name for name in _ending(files, *TABLES) if not name.endswith("index.parquet")],
        "coco": [name for name in _ending(files, ".json") if "instances" in name or "coco" in name],
        "folders": classes,
    }
    kinds = [kind for kind, members in by_kind.items() if members]
    if len(kinds) > 1:
        choices = " or ".join(f'kind="{kind}" ({listing(by_kind[kind])})' for kind in kinds)
        raise ConfigError(f"{path} may be data of several kinds: say which, {choices}, or give the path of one file")
    if kinds == ["folders"]:
        return _class_folders(path, split)
    if kinds:
        return _source(kinds[0], path)
    if _ending(files, *SUFFIXES) and (labelled or _has_xmls(path)):
        return {"train_filelist": path}
    raise ConfigError(
        f"{path} holds no data that tfpipe knows, but {_contents(folders, files)}; {_advice(path, files)}"
    )


def _kind_of_archive(path: Path) -> str:
    """Returns the kind of source of an archive: tar shards have files of labels after their images, archives folders.

    Only the first members are looked at. Raises ConfigError if it cannot be read.
    """
    if path.suffix.lower() != ".tar":
        return "archive"
    try:
        with path.open("rb") as tar:
            names = [member.name for member in islice(tar_members(tar, 0, path.stat().st_size, Ledger()), LOOKED_AT)]
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    images = {os.path.splitext(name)[0] for name in _ending(names, *SUFFIXES)}
    # Labels have the name of an image; a LICENSE.txt has none.
    has_labels = any(name.lower().endswith(LABELS) and os.path.splitext(name)[0] in images for name in names)
    some = _ending(names, *SUFFIXES) or names
    in_folders = all("/" in name.removeprefix("./") or name.lower().endswith(ARCHIVES) for name in some)
    return "archive" if in_folders and not has_labels else "webdataset"


def _ending(names: list[str], *ends: str) -> list[str]:
    return [name for name in names if name.lower().endswith(ends)]


def _contents(folders: list[str], files: list[str]) -> str:
    """Returns text about the contents of a folder: its folders, and the number of its files by their ends."""
    ends = Counter(Path(name).suffix.lower() or "no suffix" for name in files)
    parts = [f"{counted(count, 'file')} of {end}" for end, count in ends.most_common(3)]
    parts += [f"the folders {listing(folders)}"] if folders else []
    return " and ".join(parts) or "nothing"


def _advice(path: Path, files: list[str]) -> str:
    if _ending(files, *SUFFIXES):
        return "images without class folders need labels: give a list of (path, label), or a table"
    if len(_ending(files, ".txt")) == 1:
        return f"is {path / _ending(files, '.txt')[0]} a filelist? Then give its path"
    return ACCEPTED


def _has_xmls(path: Path) -> bool:
    """Returns whether a folder lies in the layout of ILSVRC or VOC, with a folder of XMLs."""
    for rule in LAYOUTS.values():
        root, separator, _ = f"{path.absolute()}/".rpartition(f"/{rule.images}/")
        if separator and (Path(root) / rule.annotations).is_dir():
            return True
    return False


def _class_folders(path: Path, split: str) -> dict[str, Any]:
    """Returns the keys for class folders, or for one of the folders train and val; those with XMLs are a filelist."""
    if _has_xmls(path):
        return {"train_filelist": path}
    if any((path / tree).is_dir() for tree in TREES):
        raise ConfigError(
            f"{path} is a tree of ILSVRC or VOC: tfpipe filelist {path} --out lists/ makes lists of it once; then give "
            "lists/train.txt"
        )
    name, parent = path.absolute().name, path.absolute().parent
    splits = _splits(parent)
    trains = [name for name, split in splits.items() if split == "train"]
    if split != "test" or name not in splits or len(trains) != 1 or "train" in _splits(path).values():
        return _source("folders", path)
    if splits[name] == "train":
        return _source("folders", parent)
    return {"source": {"kind": "folders", "path": parent / trains[0], "test_path": path}}


def _splits(folder: Path) -> dict[str, str]:
    """Returns the splits of the folders in a folder whose names say one."""
    return splits_of(path.name for path in folder.glob("[!.]*") if path.is_dir())
