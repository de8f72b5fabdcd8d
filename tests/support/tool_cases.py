"""Writes the data of each source of the tools' table, and runs each command on it."""

import json
from pathlib import Path
from typing import Any

import keras

from tests.support.archives import tree, write_zip
from tests.support.routes import CLASSES, HEIGHT, SMALL, WIDTH, as_txt, samples, write_files
from tests.support.sources import write_config, write_source
from tfpipe.cli import main

TRAIN, TEST = samples(12), [samples(45)[number] for number in (13, 16, 31)]
SHORT = ("--seconds", "0.2", "--repeats", "1")
TOOLS = {
    "check": ("check", "--split", "all", "--processes", "1"),
    "check --fix-list": ("check", "--processes", "1", "--fix-list", "OUT/list.txt"),
    "index": ("index", "--processes", "1"),
    "index --entry-points": ("index", "--entry-points", "--processes", "1"),
    "bench": ("bench", *SHORT),
    "bench --stages": ("bench", "--stages", *SHORT),
    "tune": ("tune", "--minutes", "0.01", "--pipeline-only"),
    "view": ("view", "--count", "4", "-o", "OUT/view.png"),
    "view --boxes": ("view", "--boxes", "--count", "4", "-o", "OUT/view.png"),
    "view --epochs": ("view", "--epochs", "--count", "2", "-o", "OUT/view.png"),
    "pack": ("pack", "--split", "all", "--out", "OUT/packed"),
    "stage": ("stage", "--out", "OUT/staged"),
    "filelist": ("filelist", "DATA", "--out", "OUT/lists"),
    "evaluate": ("evaluate", "-m", "OUT/model.keras"),
    "predict": ("predict", "-m", "OUT/model.keras", "-o", "OUT/predicted.csv"),
}


def write(source: str, root: Path) -> Path:
    """Writes the data of a source, with boxes where it has some, and its config."""
    root.mkdir(parents=True, exist_ok=True)
    return write_config(root / "c.json", {**SMALL, **WRITERS[source](root)})


def run(tool: str, config: Path) -> int:
    """Runs a command in this process; returns its exit code."""
    out = config.parent / "out"
    out.mkdir(exist_ok=True)
    words = [word.replace("OUT", str(out)) for word in TOOLS[tool]]
    if tool == "filelist":
        data = json.loads(config.read_text())["data"]
        return main([word.replace("DATA", data.get("train_filelist") or data["source"]["path"]) for word in words])
    if str(out / "model.keras") in words:
        write_model(out / "model.keras")
    return main([words[0], "-c", str(config), *words[1:]])


def write_model(path: Path) -> None:
    """Writes a model that knows nothing, for crops of the sources and their classes."""
    if path.exists():
        return
    inputs = keras.Input((*SMALL["crop_image_size"], 3), dtype="uint8")
    pixels = keras.layers.Rescaling(1 / 255)(inputs)
    keras.Model(inputs, keras.layers.Dense(len(CLASSES))(keras.layers.Flatten()(pixels))).save(path)
    (path.parent / "classes.json").write_text(json.dumps({"classes": CLASSES, "normalize": None}))


def _as(kind: str) -> Any:
    return lambda root: write_source(kind, root, TRAIN, TEST)


def _list_folder(root: Path) -> dict[str, Any]:
    lists = {f"{split}_filelist": root / "images" / split for split in ("train", "val")}
    for path, chosen in zip(lists.values(), (TRAIN, TEST), strict=True):
        write_files(root, chosen, f"images/{path.name}")
    return {"train_filelist": str(lists["train_filelist"]), "test_filelist": str(lists["val_filelist"])}


def _yolo(root: Path) -> dict[str, Any]:
    for split, chosen in (("train", TRAIN), ("val", TEST)):
        for sample in chosen:
            boxed = sample if sample.boxes else sample._replace(boxes=[[0, 0, WIDTH, HEIGHT]])
            for folder, suffix, contents in (("images", "jpg", sample.file), ("labels", "txt", as_txt(boxed).encode())):
                path = root / folder / split / f"{sample.name}.{suffix}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(contents)
    (root / "data.yaml").write_text(f"train: images/train\nval: images/val\nnames: [{', '.join(CLASSES)}]\nnc: 3\n")
    lists = {"train_filelist": str(root / "images/train"), "test_filelist": str(root / "images/val")}
    return {**lists, "layout": "yolo", "classes": str(root / "data.yaml"), "label_source": "object"}


def _archive(root: Path) -> dict[str, Any]:
    for split, chosen in (("train", TRAIN), ("val", TEST)):
        write_zip(root / f"{split}.zip", tree(chosen, "images", "xmls"), method=8)
    return {"source": {"kind": "archive", "path": str(root / "train.zip"), "test_path": str(root / "val.zip")}}


def _own(root: Path) -> dict[str, Any]:
    (root / "own").mkdir(exist_ok=True)
    return {"source": {"kind": "tests.support.dict_source:Samples", "path": str(root / "own")}}


WRITERS = {
    "list folder": _list_folder,
    "yolo": _yolo,
    **{kind: _as(kind) for kind in ("filelist", "folders", "csv", "parquet", "tar", "tfrecord")},
    "coco": lambda root: {**write_source("coco", root, TRAIN, TEST), "label_source": "object"},
    "archive": _archive,
    "original": _as("packed"),
    **{kind: _as(kind) for kind in ("coefficients", "crops", "raw")},
    "own": _own,
}
